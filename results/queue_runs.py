"""Execute the published runs that are missing or outdated, and keep the small files of each.

A call continues where the last one stopped:

    python results/queue_runs.py --data-root DIR [--parallel 2] [--only lite/wa-0 …]

A run is outdated if its command would use other settings now, because its method or recipe was corrected; --again also
repeats runs with the same settings. The old files stay until the new run is finished.

Parallel runs share the cores (Linux): two runs on one core each finish sooner than one after the other on two cores,
because a second core makes the run of a small network only about 1.6 times as fast.

A run that takes days is executed by hand. This publishes its finished steps:

    python results/queue_runs.py --publish paper/wa-0 --from DIR
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import torch
from plan import RUNS, WITH_EVERY_STEP, WITH_PREDICTIONS
from safetensors.torch import load_file, save_file
from stored import changes

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", help="directory of the data sets")
    parser.add_argument("--work", type=Path, default=Path("runs/results"), help="directory for runs in progress")
    parser.add_argument("--parallel", type=int, default=1, help="number of runs at a time")
    parser.add_argument("--only", nargs="*", default=list(RUNS), metavar="NAME", help="names of runs (default: all)")
    parser.add_argument("--again", nargs="*", default=[], metavar="NAME", help="finished runs to repeat")
    parser.add_argument("--publish", metavar="NAME", help="keep the finished steps of a run made elsewhere")
    parser.add_argument("--from", dest="source", type=Path, metavar="DIR", help="directory of the run to publish")
    options = parser.parse_args()
    for name in [*options.only, *options.again, *([options.publish] if options.publish else [])]:
        if name not in RUNS:
            parser.error(f"unknown run '{name}': results/plan.py lists them")
    if bool(options.publish) != bool(options.source):
        parser.error("--publish and --from belong together")
    if options.publish:
        print(publish(options.publish, options.source, HERE / options.publish))
    elif options.data_root:
        names = options.again if options.again and len(options.only) == len(RUNS) else options.only
        execute_all(names, options.again, options.data_root, options.work, options.parallel)
    else:
        parser.error("--data-root is required to execute runs")


def execute_all(names: Sequence[str], again: Sequence[str], data_root: str, work: Path, parallel: int) -> None:
    """Execute runs, several at a time."""
    places: Queue[list[str]] = Queue()
    for place in range(parallel):
        places.put(pin_to_cores(place, parallel) if parallel > 1 else [])
    with ThreadPoolExecutor(parallel) as pool:
        runs = [pool.submit(execute, name, name in again, data_root, work, places) for name in names]
        try:
            for run in runs:
                run.result()
        except BaseException:  # also Ctrl-C: do not start the waiting runs
            pool.shutdown(cancel_futures=True)
            raise


def execute(name: str, again: bool, data_root: str, work: Path, places: Queue[list[str]]) -> None:
    """Execute a run unless it is published already."""
    if not again and is_current(name, HERE / name):
        print(f"{name} exists", flush=True)
        return
    set_aside(name, work / name, again)
    place = places.get()
    print(f"{name} …", flush=True)
    command = [*place, sys.executable, "-m", "equipoise", "run", RUNS[name].dataset, *RUNS[name].options]
    try:
        subprocess.run([*command, "--data-root", data_root, "--out", str(work / name)], check=True)
    finally:
        places.put(place)
    publish(name, work / name, HERE / name)


def is_current(name: str, directory: Path) -> bool:
    """Return whether a directory holds the finished run, with the settings that its command has now."""
    return (directory / "summary.json").exists() and not differences(name, directory)


def differences(name: str, directory: Path) -> list[str]:
    """Return the settings that a run would have now, where they differ from those that it was made with."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return changes(RUNS[name], config["settings"])


def set_aside(name: str, directory: Path, again: bool) -> None:
    """Rename the directory of an earlier run that must not be continued."""
    if not (directory / "config.json").exists():
        return
    if differences(name, directory) or (again and (directory / "summary.json").exists()):
        number = next(n for n in range(1, 1000) if not directory.with_name(f"{directory.name}.old{n}").exists())
        directory.rename(directory.with_name(f"{directory.name}.old{number}"))


def pin_to_cores(place: int, places: int) -> list[str]:
    """Return the start of a command that restricts it to its share of the cores."""
    cores = sorted(os.sched_getaffinity(0))[place::places]
    return ["taskset", "--cpu-list", ",".join(map(str, cores))]


def publish(name: str, run: Path, place: Path) -> str:
    """Copy what the page needs of a run, also of one in progress; return what was copied."""
    if not (run / "metrics.jsonl").exists():
        raise SystemExit(f"{run} has no finished step yet")
    if changed := differences(name, run):
        raise SystemExit(f"{run} is not {name}: its command would use {'; '.join(changed)}")
    finished = (run / "summary.json").exists()
    if not finished and (place / "summary.json").exists() and not differences(name, place):
        raise SystemExit(f"{name} is published already, and {run} is not finished")
    steps = keep(name, run, place)
    return f"{name}: {steps} steps{'' if finished else ' so far'}"


def keep(name: str, run: Path, place: Path) -> int:
    """Copy the small files, ``summary.json`` last, because it marks a complete copy; return the number of steps."""
    place.mkdir(parents=True, exist_ok=True)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    lines = [line for line in lines if line.endswith("\n")]  # the last one may be half written
    finished = (run / "summary.json").exists()
    (place / "summary.json").unlink(missing_ok=True)
    if name in WITH_PREDICTIONS and finished:
        (place / "predictions").mkdir(exist_ok=True)
        for step in range(1 if name in WITH_EVERY_STEP else len(lines), len(lines) + 1):
            file = f"predictions/step-{step}.safetensors"
            save_file({key: half_size(value) for key, value in load_file(run / file).items()}, place / file)
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    config["command"] = RUNS[name].command  # publish no local path; the same command works elsewhere
    texts = {
        "config.json": json.dumps(config, indent=1, ensure_ascii=False) + "\n",
        "metrics.jsonl": "".join(lines),
    }
    if finished:
        texts["summary.json"] = (run / "summary.json").read_text(encoding="utf-8")
    for file, text in texts.items():
        (place / file).write_text(text, encoding="utf-8")
    return len(lines)


def half_size(values: torch.Tensor) -> torch.Tensor:
    """Store class numbers in two bytes instead of eight, and other numbers in two instead of four."""
    return values.to(torch.int16 if values.dtype == torch.int64 else torch.float16).contiguous()


if __name__ == "__main__":
    main()
