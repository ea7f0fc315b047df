"""Precision, and memory that is freed."""

from __future__ import annotations

import inspect
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

import equipoise as eq
from equipoise.engine.recipes import parse_overrides, resolve
from equipoise.engine.settings import Settings
from equipoise.learn.backbones import Architecture
from equipoise.learn.runtime import Runtime, keep_freed_memory
from equipoise.methods.registry import make
from equipoise.study import process_group
from equipoise.study.launch.remote import RemoteJob, execute_job
from tests.conftest import Quick, Ran


@pytest.mark.parametrize(
    ("able", "precision"),
    [({"avx512_bf16": True}, "bf16"), ({"amx_bf16": True, "avx2": True}, "bf16"), ({"avx2": True}, "32"), ({}, "32")],
)
def test_auto_is_bfloat16_where_the_processor_supports_it(
    able: Mapping[str, bool], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    assert Runtime(precision="auto").precision == precision


def test_the_command_line_can_ask_for_32_bits() -> None:
    """The command line parses 32 as a number, but the setting is a string."""
    assert resolve("digits", overrides=parse_overrides(["runtime.precision=32"])).runtime.precision == "32"


def test_a_run_that_continues_on_another_machine_keeps_its_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    settings = resolve("digits", overrides={"runtime": {"precision": "auto"}})
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    assert settings.identity()["runtime"] == {"precision": "bf16"}
    assert Settings.from_identity(settings.identity()).runtime.precision == "bf16"


def test_only_backbones_compute_in_bfloat16() -> None:
    """Features and logits have 32 bits: with 8 bits of mantissa, many of a hundred classes' logits would be equal."""
    torch.manual_seed(0)
    method = make("wa")
    method.build(Architecture("tiny", (3, 8, 8), bf16=True))
    method.head.grow(100)
    x = torch.rand(16, 3, 8, 8)
    dtypes: list[torch.dtype] = []
    forward_stages = method.backbone.forward_stages

    def recorded(x: torch.Tensor) -> list[torch.Tensor]:
        maps = forward_stages(x)
        dtypes.extend(each.dtype for each in maps)
        return maps

    method.backbone.forward_stages = recorded  # type: ignore[method-assign]

    with torch.no_grad():
        features, logits = method.features(x), method.predict(x)
        assert {each.dtype for each in method.backbone.maps(x)} == {torch.float32}
    assert set(dtypes) == {torch.bfloat16}
    assert features.dtype == logits.dtype == torch.float32
    assert torch.equal(logits, F.linear(features, method.head.weight.detach()))
    method.backbone.bf16 = False
    with torch.no_grad():
        exact = method.features(x)
    assert not torch.equal(features, exact)
    torch.testing.assert_close(features, exact, rtol=0.05, atol=0.02)


HAS_GLIBC = platform.libc_ver()[0] == "glibc"
GLIBC = pytest.mark.skipif(not HAS_GLIBC, reason="other C libraries have other allocators")


def new_pages() -> int:
    """Return the page faults of ten batches of four 16 MB tensors, after five to warm up."""
    before = 0
    for times in (5, 10):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(times):
            batch = [torch.ones(2**22) for _ in range(4)]
            del batch
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def check_freed_memory_is_reused() -> None:
    """Called in the processes of a group, in tests/test_processes.py."""
    assert new_pages() < 100


@GLIBC
def test_freed_memory_is_reused() -> None:
    """In new processes. Without the setting, most processes get new pages for every batch, but by chance not all."""
    imports = "import resource, torch\nfrom equipoise.learn.runtime import keep_freed_memory\n"
    code = f"{imports}{inspect.getsource(new_pages)}\nkeep_freed_memory()\nprint(new_pages())"
    for _ in range(3):
        assert int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) < 100


@pytest.fixture
def malloc_options(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the options that are passed to malloc from now on; they have no effect."""
    options: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda option, value: options.append((option, value)))
    monkeypatch.setattr("ctypes.CDLL", lambda name: library)
    return options


def test_options_of_malloc(malloc_options: list[tuple[int, int]]) -> None:
    """M_TRIM_THRESHOLD is -1 and M_MMAP_THRESHOLD is -3 in malloc.h; 32 MB is the largest that glibc accepts."""
    keep_freed_memory()
    assert malloc_options == [(-1, 2**31 - 1), (-3, 32 * 2**20)]


def test_library_calls_leave_malloc_alone(malloc_options: list[tuple[int, int]], quick: Quick, tmp_path: Path) -> None:
    Runtime(threads=1).start()
    quick(overrides={"stream": {"steps": "1,1", "classes": 2}, "train": {"epochs": 1}})
    rows = torch.randn(12, 4).numpy()
    classifier = eq.IncrementalClassifier(epochs=1).fit(rows, [0, 1] * 6)
    classifier.predict(rows)
    classifier.save(tmp_path / "model")
    eq.load(tmp_path / "model").predict(rows)
    assert malloc_options == []


def test_commands_set_the_options_of_malloc(malloc_options: list[tuple[int, int]], cli: Callable[..., Ran]) -> None:
    assert cli("methods").code == 0
    assert malloc_options == []  # a listing needs no torch
    assert cli("predict", "nowhere", "nothing.png").code == 2
    assert len(malloc_options) == 2


def test_processes_for_a_run_set_the_options_of_malloc(
    malloc_options: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all launchers: processes of this machine, Ray's and SLURM's."""
    monkeypatch.setattr(process_group, "launch", lambda task: None)
    job = RemoteJob("wa", resolve("digits"), tmp_path / "run", None, cpus=1, gpus=0, track="")
    assert execute_job(job) is None
    assert len(malloc_options) == 2
