"""Change one thing at a time in the modules that compute the figures, and see whether their tests notice.

    make mutants OPTIONS="--only learn/ridge.py --every 5 --json before.json"
    make mutants OPTIONS="--only learn/ridge.py --again before.json"     # after tests were added: what survived

Each change is a mutant: an operator, a constant, a condition, a slice, a function or a statement of one module. A
mutant is killed if one of the module's tests fails, and survives if all pass. Third-party packages are imported once;
then each mutant runs in a fork that imports equipoise again, with the changed module. (mutmut leaves out decorated
functions, such as ``align_head``; cosmic-ray starts Python for every mutant, and importing torch takes longer than most
tests.)
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/equipoise"
SHARED = ("tests/test_methods.py", "tests/test_released_code.py")
SINGULAR = ("a_singular_gram_matrix_is_harmless", "zeros_tell_nothing_apart", "one_image_of_a_new_class_is_learned")
CLOSED_FORM = ("tests/test_closed_form.py", *(f"tests/test_numerical.py::test_{name}" for name in SINGULAR))
TESTS: dict[str, tuple[str, ...]] = {
    "learn/align.py": ("src/equipoise/learn/align.py", "tests/test_align.py"),
    "learn/losses.py": ("tests/test_align.py", *SHARED),
    "learn/closed_form.py": CLOSED_FORM,
    "learn/ridge.py": ("tests/test_ridge.py", *CLOSED_FORM),
    "data/memory.py": ("tests/test_data.py", "tests/test_authors.py"),
    "data/herding.py": ("src/equipoise/data/herding.py", "tests/test_data.py", "tests/test_released_code.py"),
    "engine/evaluate.py": ("tests/test_evaluate.py",),
    "engine/metrics.py": ("tests/test_evaluate.py",),
    "methods/ncm.py": CLOSED_FORM,
    "methods/slda.py": CLOSED_FORM,
    "methods/ridge.py": CLOSED_FORM,
    "methods/ranpac.py": CLOSED_FORM,
    "methods/fecam.py": CLOSED_FORM,
}
"""The tests of each module, fastest first."""
LEFT_OUT = "not passes_the_checks"
"""Tests left out, because they train every method."""
MEMORY = 4 * 2**30
"""Bytes that a mutant may allocate."""
EXPLAINED = Path(__file__).with_name("mutants.toml")
"""Mutants that no test can kill, and why."""

COMPARE: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
PAIRS = ("min max", "amin amax", "argmin argmax", "sum mean", "any all", "zeros_like ones_like")
SWAPPED = {a: b for pair in PAIRS for a, b in (pair.split(), pair.split()[::-1])}
DROPPED = ["abs", "clamp", "clone", "contiguous", "detach", "double", "float", "int", "long", "normalize", "relu"]
DROPPED += ["sigmoid", "sorted", "sqrt", "square"]
"""Functions that are replaced by what they are called on."""


@dataclass
class Mutant:
    """One change, and what became of it."""

    module: str
    line: int
    change: str
    status: str = ""
    by: str = ""
    """The test that killed it."""
    seconds: float = 0.0
    """Processor time."""


Change = tuple[Any, Any, ast.AST]
"""Where a node is (a list or the fields of its parent, and the place in it), and the node to put there."""


def find_mutants(module: str, tree: ast.Module) -> Iterator[tuple[Mutant, Change]]:
    """Return all mutants of a module, and how to make each of them in its tree."""
    for owner, place, node, parent in walk(tree):
        for new in variants(node, parent):
            shown = parent if isinstance(node, ast.Constant | ast.Slice) else node
            before, owner[place] = ast.unparse(shown), new
            after = ast.unparse(parent if shown is parent else new)
            owner[place] = node
            if isinstance(parent, ast.arguments):  # show only the one that differs
                before, after = next(p for p in zip(before.split(", "), after.split(", "), strict=True) if p[0] != p[1])
            change = f"deleted: {before}" if after == "pass" else f"{before} → {after}"
            line = getattr(node, "lineno", getattr(parent, "lineno", 0))
            yield Mutant(module, line, " ".join(change.split())), (owner, place, new)


def walk(parent: ast.AST) -> Iterator[tuple[Any, Any, ast.AST, ast.AST]]:
    """Return each node that may change with its owner, place and parent; not annotations, messages and decorators."""
    for name, value in ast.iter_fields(parent):
        if name in ("annotation", "returns", "decorator_list", "exc") or isinstance(parent, ast.Assert | ast.JoinedStr):
            continue
        owner: Any = value if isinstance(value, list) else vars(parent)
        for place in range(len(value)) if isinstance(value, list) else [name]:
            if isinstance(owner[place], ast.AST):
                yield owner, place, owner[place], parent
                yield from walk(owner[place])


def variants(node: Any, parent: ast.AST) -> Iterator[ast.AST]:
    """Return what a node is replaced by, once each."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Name(id=name)]) if name in [
            getattr(used, "id", "") for used in ast.walk(node.value)
        ]:
            yield ast.Pass()  # that it is assigned anew; others would be a NameError
        case ast.Return(value=ast.expr()) if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.With():
            yield ast.If(ast.Constant(True), node.body, [])
        case ast.FunctionDef() if any("no_grad" in ast.unparse(wrapper) for wrapper in node.decorator_list):
            yield ast.FunctionDef(**{**vars(node), "decorator_list": []})
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                for other in COMPARE[type(operator)]:
                    operators = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                    yield ast.Compare(node.left, operators, node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
        case ast.UnaryOp():
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float() as number):
            yield from (ast.Constant(number + 1), ast.Constant(number - 1))
        case ast.Slice(lower=lower, upper=upper, step=None) if (lower is None) != (upper is None):
            yield ast.Slice(upper, lower)
        case ast.Call():
            yield from calls(node)
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield type(node)(**{**vars(node), "op": ARITHMETIC[type(node.op)]()})
    conditions = [getattr(parent, "test", None), *getattr(parent, "ifs", [])]
    if node in conditions and not isinstance(node, ast.Compare | ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), node)


def calls(node: ast.Call) -> Iterator[ast.AST]:
    """Return other functions for a call, other limits for ``clamp``, and what it is called on."""
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in SWAPPED and isinstance(function, ast.Attribute):
        yield ast.Call(ast.Attribute(function.value, SWAPPED[name], ast.Load()), node.args, node.keywords)
    elif name in ("min", "max", "any", "all"):
        yield ast.Call(ast.Name(SWAPPED[name], ast.Load()), node.args, node.keywords)
    if name == "clamp":
        limits = [ast.keyword(SWAPPED[limit.arg or ""], limit.value) for limit in node.keywords]
        yield ast.Call(function, node.args, limits)
    if name in DROPPED:
        yield function.value if isinstance(function, ast.Attribute) and not node.args else node.args[0]


class Changed(SourceFileLoader):
    """Loads a changed module; as a finder, finds only that one."""

    def __init__(self, module: str, code: CodeType) -> None:
        super().__init__(f"equipoise.{module[:-3].replace('/', '.')}", str(SOURCE / module))
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.code

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None


def run_tests(tests: Sequence[str], changed: Changed, scratch: Path, limit: int) -> None:
    """Run tests in this process, a fork, until one fails; never return."""
    status = 1
    try:
        os.setsid()
        signal.alarm(20 * limit)  # it may wait for a thread that has ended
        for kind, most in ((resource.RLIMIT_CPU, limit), (resource.RLIMIT_DATA, MEMORY), (resource.RLIMIT_CORE, 0)):
            resource.setrlimit(kind, (most, most + 1))
        output = os.open(scratch / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        import pytest
        from hypothesis import Phase, settings

        settings.register_profile("mutants", database=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutants")
        sys.meta_path.insert(0, changed)
        importlib.import_module(changed.name)  # before pytest, which has a finder of its own
        status = int(pytest.main(["-x", "-k", LEFT_OUT, "--tb=line", *tests]))
        (scratch / "modules").write_text("\n".join(sys.modules))
    except BaseException as error:
        print(f"FAILED {error!r}")
    finally:
        sys.stdout.flush()
        os._exit(status)


def run_mutants(mutants: Sequence[tuple[Mutant, Change]], tree: ast.Module, lanes: int) -> None:
    """Run the tests without a change, and then with each; note what became of it."""
    whole, running = Mutant(mutants[0][0].module, 0, "no change"), dict[int, tuple[Mutant, Path]]()
    with tempfile.TemporaryDirectory() as folder:

        def begin(mutant: Mutant, owner: Any, place: Any, new: Any, limit: int) -> None:
            before, owner[place] = owner[place], new
            code = compile(ast.fix_missing_locations(tree), str(SOURCE / whole.module), "exec")
            owner[place] = before
            scratch = Path(tempfile.mkdtemp(dir=folder))
            if not (child := os.fork()):
                run_tests(TESTS[whole.module], Changed(whole.module, code), scratch, limit)
            running[child] = (mutant, scratch)

        try:
            begin(whole, vars(tree), "body", tree.body, 600)
            modules = finish(running)
            if whole.status != "survived":
                raise SystemExit(f"{whole.module}: tests fail without any change: {whole.by}")
            for name in modules:
                if name.partition(".")[0] not in ("__main__", "equipoise", "tests"):
                    with suppress(Exception):
                        importlib.import_module(name)
            gc.freeze()
            for mutant, change in mutants:
                if len(running) == lanes:
                    finish(running)
                begin(mutant, *change, round(10 + 5 * whole.seconds))
            while running:
                finish(running)
        finally:
            for child in running:
                os.killpg(child, signal.SIGKILL)


def finish(running: dict[int, tuple[Mutant, Path]]) -> list[str]:
    """Wait for a fork, note what became of its mutant, and return the modules that were imported."""
    child, status, used = os.wait4(-1, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # whatever its tests started
    mutant, scratch = running.pop(child)
    mutant.seconds = round(used.ru_utime + used.ru_stime, 2)
    code, output = os.waitstatus_to_exitcode(status), (scratch / "output").read_text(errors="replace")
    late = -code in (signal.SIGXCPU, signal.SIGALRM)
    mutant.status = "timed out" if late else "killed" if code else "survived"
    if code:
        found = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        mutant.by = found[0] if found else f"exit code {code}: {output[-200:]}"
    modules = (scratch / "modules").read_text().split() if not code else []
    shutil.rmtree(scratch, ignore_errors=True)
    return modules


def report(mutants: Sequence[Mutant], explained: dict[str, dict[str, list[str]]]) -> list[str]:
    """Return a line for each module, and for each mutant that survived."""
    lines = [f"{'module':24}{'mutants':>9}{'killed':>9}{'timed out':>11}{'survived':>10}{'explained':>11}{'score':>9}"]
    reasons = {(m, change): why for m, part in explained.items() for why, changes in part.items() for change in changes}
    left = [mutant for mutant in mutants if mutant.status == "survived"]
    for module in [*dict.fromkeys(mutant.module for mutant in mutants), "total"]:
        ends = [mutant.status for mutant in mutants if module in (mutant.module, "total")]
        killed, late, survived = (ends.count(status) for status in ("killed", "timed out", "survived"))
        known = sum((mutant.module, mutant.change) in reasons for mutant in left if module in (mutant.module, "total"))
        score = 100 * (killed + late) / max(len(ends), 1)
        lines.append(f"{module:24}{len(ends):9}{killed:9}{late:11}{survived:10}{known:11}{score:7.1f} %")
    for mutant in left:
        why = reasons.get((mutant.module, mutant.change), "no test notices")
        lines.append(f"{mutant.module}:{mutant.line}: {mutant.change}  ({why})")
    return [*lines, f"{sum(mutant.seconds for mutant in mutants) / 60:.1f} minutes of processor time"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Change one thing at a time, and see whether the tests notice.")
    parser.add_argument("--only", action="append", metavar="MODULE", choices=TESTS, help="this module (repeatable)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth mutant of a module")
    parser.add_argument("--lanes", type=int, default=2, metavar="N", help="processes at a time (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all mutants to this file")
    parser.add_argument("--again", type=Path, metavar="FILE", help="only those that this file says survived")
    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the forks, too
    earlier = [Mutant(**entry) for entry in json.loads(options.again.read_text())] if options.again else []
    killed = {(old.module, old.line, old.change): old for old in earlier if old.status == "killed"}
    done: list[Mutant] = []
    for module in options.only or TESTS:
        tree = ast.parse((SOURCE / module).read_text())
        found = list(find_mutants(module, tree))[:: options.every]
        todo = [pair for pair in found if (module, pair[0].line, pair[0].change) not in killed]
        if todo:
            run_mutants(todo, tree, options.lanes)
        done += [killed.get((module, mutant.line, mutant.change), mutant) for mutant, _ in found]
        print(
            f"{module}: {len(todo)} mutants tried, {sum(m.status == 'survived' for m, _ in todo)} survived", flush=True
        )
        if options.json:
            options.json.write_text(json.dumps([asdict(mutant) for mutant in done], indent=1, ensure_ascii=False))
    print(*report(done, tomllib.loads(EXPLAINED.read_text())), sep="\n")


if __name__ == "__main__":
    main()
