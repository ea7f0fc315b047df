"""Commands of researchers: run, compare, ablate, report, align, and the lists of what there is."""

from __future__ import annotations

import json as json_module
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from equipoise.cli.base import STUDIES, Flag, app
from equipoise.cli.launch import Launch
from equipoise.cli.options import Common, Options, step_count
from equipoise.errors import EquipoiseError, RunError, UsageError
from equipoise.started import said_once, speaks

NO_OPTIONS = Options()
Shared = Annotated[Options, Parameter(name="*")]
HERE = Launch()
Launched = Annotated[Launch, Parameter(name="*")]


@app.command(group=STUDIES)
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
    """Learn a data set in steps; the same command goes on where it stopped.

    Parameters
    ----------
    dataset
        glyphs (nothing to download), digits, cifar100, imagenet100, imagenet1000, folder: see `equipoise datasets`.
    method
        wa, ce, ce+kd, icarl, bic, …: see `equipoise methods`.
    seed
        Another seed, another run; the same seed, the same bits.
    out
        The run's directory.
    json
        One JSON object a line instead of a table.
    quiet
        Only the last lines.
    dry_run
        Show what would be learned, and how long it would take, and stop.
    """
    from equipoise.study.experiment import Experiment, default_directory, estimate, load_data
    from equipoise.study.processes import Work, company_of, launch
    from equipoise.study.recipe import resolve
    from equipoise.study.trackers import make_trackers

    with said_once():
        settings = resolve(dataset, method, options.recipe, seed, options.overrides())
        company_of(settings.runtime)
        make_trackers(options.track)
    if dry_run:
        if speaks():
            _show_plan(Experiment.prepare(settings, load_data(settings, options.data_root)), json, estimate)
        return
    out = out or default_directory(settings)
    load = partial(load_data, settings, options.data_root)
    launch(Work(settings, out, load, partial(_reporter, json, quiet, options.track)))
    if speaks():
        _add_page(out, silent=json)


def _reporter(json: bool, quiet: bool, track: str) -> Any:
    """Whoever is told of a run."""
    from equipoise.study.progress import Together, make_reporter
    from equipoise.study.trackers import make_trackers

    return Together(make_reporter(json, quiet), *make_trackers(track))


def _add_page(directory: Path, silent: bool) -> None:
    """The report at the end of a run; where none can be made the run is not less done."""
    from equipoise.study.report import NEEDED, available, report

    if not available():
        if not silent:
            print(f"no page was made: {NEEDED}")
        return
    try:
        made = report(directory)
    except (EquipoiseError, OSError) as error:
        print(f"equipoise: no page was made: {error}", file=sys.stderr)
        return
    if not silent:
        print(f"report: {made.page}")


def _show_plan(experiment: Any, json: bool, estimate: Any) -> None:
    from equipoise.study.progress import duration

    settings, stream = experiment.settings, experiment.stream
    loads = experiment.workload()
    plan = {
        "dataset": settings.dataset,
        "method": settings.method,
        "recipe": settings.recipe,
        "classes": stream.sizes,
        "images": loads,
        "epochs": [settings.train.for_step(index).epochs for index in range(1, len(stream) + 1)],
        "memory": settings.memory,
        "backbone": settings.net.backbone,
        "parameters": sum(p.numel() for p in experiment.method.parameters()),
        "seconds": round(estimate(experiment), 1),
    }
    if json:
        print(json_module.dumps(plan))
        return
    print(f"{plan['method']} on {plan['dataset']}, recipe {plan['recipe']}, {plan['backbone']}:")
    for index, (size, images, epochs) in enumerate(zip(stream.sizes, loads, plan["epochs"], strict=True), 1):
        print(f"  step {index}: {size} new classes, {images:,} images × {epochs} epochs")
    runtime = settings.runtime
    alone = ", by one process" if runtime.devices * runtime.nodes > 1 else ""
    print(f"about {duration(plan['seconds'])} of training on this machine{alone}")


@app.command(group=STUDIES)
def compare(
    dataset: str = "glyphs",
    *,
    methods: str = "ce,ce+wa,ce+kd,wa",
    seeds: str = "0",
    steps: Annotated[list[str] | None, Parameter(negative=())] = None,
    out: Path = Path("runs/compare"),
    options: Annotated[Common, Parameter(name="*")] = NO_OPTIONS,
    launch: Launched = HERE,
    json: Flag = False,
    quiet: Flag = False,
) -> None:
    """Run several methods, seeds and numbers of steps and print them side by side; goes on where it stopped.

    Parameters
    ----------
    dataset
        See `equipoise datasets`.
    methods
        Names with commas between them: see `equipoise methods`.
    seeds
        Whole numbers with commas between them.
    steps
        A number of equal steps, or their sizes: 5, or 50,10x5; may be repeated.
    out
        The comparison's directory: a run directory for each run, and compare.json, compare.csv and compare.tex.
    json
        The whole comparison as one JSON object.
    quiet
        Only the comparison.
    """
    from equipoise.study.compare import plan

    names = [name.strip() for name in methods.split(",")]
    counts = [step_count(text) for text in steps or []]
    cells = plan(dataset, names, _seeds(seeds), counts, recipe=options.recipe, overrides=options.overrides())
    _compare(cells, None, out, options, launch, json, quiet)


@app.command(group=STUDIES)
def ablate(
    dataset: str = "glyphs",
    *,
    method: str = "wa",
    seeds: str = "0",
    out: Path = Path("runs/ablate"),
    options: Shared = NO_OPTIONS,
    launch: Launched = HERE,
    json: Flag = False,
    quiet: Flag = False,
) -> None:
    """The paper's four ablations: clipping, norm, bias and herding, each turned round; goes on where it stopped.

    Parameters
    ----------
    dataset
        See `equipoise datasets`.
    method
        wa, or another of its family: ce+wa, ce+kd, …
    seeds
        Whole numbers with commas between them.
    out
        The ablation's directory, made as that of `equipoise compare`.
    json
        The whole ablation as one JSON object.
    quiet
        Only the table.
    """
    from equipoise.study.ablate import plan_ablation

    overrides = options.overrides()
    cells, panels = plan_ablation(dataset, method, _seeds(seeds), recipe=options.recipe, overrides=overrides)
    _compare(cells, panels, out, options, launch, json, quiet)


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError as error:
        raise UsageError(f"seeds '{text}' cannot be read: give whole numbers, as 0,1,2") from error


def _compare(cells: Any, panels: Any, out: Path, options: Common, launch: Launch, json: bool, quiet: bool) -> None:
    """Run all cells and show them side by side."""
    from rich.console import Console
    from rich.markup import escape

    from equipoise.study.compare import Board, Onlooker, SideBySide
    from equipoise.study.compare import compare as run_all
    from equipoise.study.tables import comparison, notes

    launcher = launch.make(out, options.track)
    onlooker = Onlooker() if json or quiet else SideBySide() if launch.launcher == "local" else Board()
    try:
        table = run_all(cells, out, panels=panels, data_root=options.data_root, onlooker=onlooker, launcher=launcher)
    finally:
        onlooker.close()
    if json:
        print(json_module.dumps(table))
    else:
        console = Console(highlight=False)
        console.print(comparison(table, console))
        console.print(notes(table), style="dim", soft_wrap=True)
        console.print(
            f"files: {escape(str(out))} (finished runs are kept: remove the directory to run them anew)", soft_wrap=True
        )
    if table["entries"]:
        _add_page(out, silent=json)
    if table["failed"]:
        names = ", ".join(f"{run['label']} with seed {run['seed']}" for run in table["failed"])
        raise RunError(f"{len(table['failed'])} of {len(cells)} runs failed and are left out of the table: {names}")


@app.command(group=STUDIES)
def report(directory: Path, *, figures: Path | None = None, formats: str | None = None, json: Flag = False) -> None:
    """Make one HTML page of a run or a comparison: charts, tables, pictures; it needs no network.

    Parameters
    ----------
    directory
        A run's directory, or one with runs below it; report.html is written into it.
    figures
        Write every chart as a picture into this directory too.
    formats
        Of the pictures: svg, png, pdf, with commas between them; svg and png unless told.
    json
        What was written, as one JSON object.
    """
    from equipoise.study.report import report as make_report

    if formats and figures is None:
        raise UsageError("--formats is for pictures: say where they go with --figures DIR")
    made = make_report(directory, figures, formats or "svg,png")
    for name, why in made.left_out:
        print(f"equipoise: left out {name}: {why}", file=sys.stderr)
    if json:
        left_out = [{"run": name, "why": why} for name, why in made.left_out]
        pictures = [str(file) for file in made.pictures]
        print(json_module.dumps({"page": str(made.page), "pictures": pictures, "left_out": left_out}))
        return
    print(f"report: {made.page}")
    if made.pictures:
        print(f"{len(made.pictures)} pictures: {figures}")


@app.command(group=STUDIES)
def align(checkpoint: Path, *, head: str = "fc.weight", old: int, out: Path, norm: int = 1, clamp: bool = True) -> None:
    """Weight Aligning alone: correct the head of anybody's checkpoint.

    Parameters
    ----------
    checkpoint
        A safetensors file, or a torch file that holds nothing but tensors.
    head
        The name of the last layer's weight in it; a bias beside it is scaled too.
    old
        How many of its classes, the first ones, are old.
    out
        Where the corrected checkpoint goes, in the same format.
    norm
        The norm of the weights, 1 or 2.
    clamp
        Never make new classes stronger (γ at most 1).
    """
    from equipoise.study.align_file import align_file

    report = align_file(checkpoint, head, old, out, norm, clamp)
    print(
        f"γ = {report.gamma:.4f}: mean norm of {report.old} old classes {report.norm_old:.3f}, "
        f"of {report.new} new ones {report.norm_new:.3f} → {report.norm_new * report.gamma:.3f}; wrote {out}"
    )


@app.command(group=STUDIES)
def methods(name: str | None = None) -> None:
    """List the methods, or the settings of one.

    Parameters
    ----------
    name
        A method whose settings are to be listed.
    """
    from equipoise.study.catalogue import describe_method, list_methods

    print(describe_method(name) if name else list_methods())


@app.command(group=STUDIES)
def datasets() -> None:
    """List the data sets."""
    from equipoise.data.sources import SOURCES

    for name, source in SOURCES.items():
        print(f"{name:18} {source.about}")


@app.command(group=STUDIES)
def recipes() -> None:
    """List the recipes."""
    from equipoise.study.recipe import read_recipe, recipe_names

    for name in recipe_names():
        print(f"{name:20} {read_recipe(name).get('about', '')}")
