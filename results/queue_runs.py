"""Execute the published runs that are missing, and keep the small files of each.

A call continues where the last one stopped:

    python results/queue_runs.py --data-root DIR [--parallel 2] [--only lite/wa-0 …]

Parallel runs share the cores (Linux): two runs on one core each finish sooner than one after the other on two cores,
because a second core makes the run of a small network only about 1.6 times as fast.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import torch
from plan import RUNS, WITH_EVERY_STEP, WITH_PREDICTIONS
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
SMALL = ("config.json", "metrics.jsonl", "summary.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True, help="directory of CIFAR-100")
    parser.add_argument("--work", type=Path, default=Path("runs/results"), help="directory for runs in progress")
    parser.add_argument("--parallel", type=int, default=1, help="number of runs at a time")
    parser.add_argument("--only", nargs="*", default=list(RUNS), help="names of runs (default: all)")
    options = parser.parse_args()
    for name in options.only:
        if name not in RUNS:
            parser.error(f"unknown run '{name}': results/plan.py lists them")
    places: Queue[list[str]] = Queue()
    for place in range(options.parallel):
        places.put(pin_to_cores(place, options.parallel) if options.parallel > 1 else [])
    with ThreadPoolExecutor(options.parallel) as pool:
        runs = [pool.submit(execute, name, options.data_root, options.work, places) for name in options.only]
        try:
            for run in runs:
                run.result()
        except BaseException:  # also Ctrl-C: do not start the waiting runs
            pool.shutdown(cancel_futures=True)
            raise


def execute(name: str, data_root: str, work: Path, places: Queue[list[str]]) -> None:
    """Execute a run unless it is published already."""
    if (HERE / name / "summary.json").exists():
        print(f"{name} exists", flush=True)
        return
    place = places.get()
    print(f"{name} …", flush=True)
    command = [*place, sys.executable, "-m", "equipoise", "run", "cifar100", *RUNS[name]]
    try:
        subprocess.run([*command, "--data-root", data_root, "--out", str(work / name)], check=True)
    finally:
        places.put(place)
    keep(name, work / name, HERE / name)


def pin_to_cores(place: int, places: int) -> list[str]:
    """Return the start of a command that restricts it to its share of the cores."""
    cores = sorted(os.sched_getaffinity(0))[place::places]
    return ["taskset", "--cpu-list", ",".join(map(str, cores))]


def keep(name: str, run: Path, place: Path) -> None:
    """Copy what the page needs; ``summary.json`` is last, because it marks a complete copy."""
    place.mkdir(parents=True, exist_ok=True)
    if name in WITH_PREDICTIONS:
        last = len((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        (place / "predictions").mkdir(exist_ok=True)
        for step in range(1 if name in WITH_EVERY_STEP else last, last + 1):
            file = f"predictions/step-{step}.safetensors"
            save_file({key: half_size(value) for key, value in load_file(run / file).items()}, place / file)
    for file in SMALL:
        text = (run / file).read_text(encoding="utf-8")
        if file == "config.json":  # publish no local path; the same command works elsewhere
            config = json.loads(text)
            config["command"] = " ".join(["equipoise run cifar100 --data-root DIR", *RUNS[name]])
            text = json.dumps(config, indent=1, ensure_ascii=False) + "\n"
        (place / file).write_text(text, encoding="utf-8")


def half_size(values: torch.Tensor) -> torch.Tensor:
    """Store class numbers in two bytes instead of eight, and other numbers in two instead of four."""
    return values.to(torch.int16 if values.dtype == torch.int64 else torch.float16).contiguous()


if __name__ == "__main__":
    main()
