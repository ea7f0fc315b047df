"""Do the runs that are not published yet, and keep what is small of each.

A call goes on where the last one stopped:

    python results/queue_runs.py --data-root DIR [--at-once 2] [--only lite/wa-0 …]

With several at once, each has its own share of the cores (Linux): two runs on a core each are done sooner than one
after the other on both, because a second core makes a small network's run only some 1.6 times as fast.
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
    parser.add_argument("--data-root", required=True, help="where CIFAR-100 is")
    parser.add_argument("--work", type=Path, default=Path("runs/results"), help="where runs are while they go on")
    parser.add_argument("--at-once", type=int, default=1, help="how many runs share the cores")
    parser.add_argument("--only", nargs="*", default=list(RUNS), help="names of runs; all unless named")
    asked = parser.parse_args()
    for name in asked.only:
        if name not in RUNS:
            parser.error(f"there is no run '{name}': results/plan.py lists them")
    places: Queue[list[str]] = Queue()
    for place in range(asked.at_once):
        places.put(pinned(place, asked.at_once) if asked.at_once > 1 else [])
    with ThreadPoolExecutor(asked.at_once) as pool:
        runs = [pool.submit(do, name, asked.data_root, asked.work, places) for name in asked.only]
        try:
            for run in runs:
                run.result()
        except BaseException:  # Ctrl-C, too: what has not begun does not begin
            pool.shutdown(cancel_futures=True)
            raise


def do(name: str, data_root: str, work: Path, places: Queue[list[str]]) -> None:
    if (HERE / name / "summary.json").exists():
        print(f"{name} is there already", flush=True)
        return
    place = places.get()
    print(f"{name} …", flush=True)
    command = [*place, sys.executable, "-m", "equipoise", "run", "cifar100", *RUNS[name]]
    try:
        subprocess.run([*command, "--data-root", data_root, "--out", str(work / name)], check=True)
    finally:
        places.put(place)
    keep(name, work / name, HERE / name)


def pinned(place: int, places: int) -> list[str]:
    """What gives a command its share of the cores."""
    cores = sorted(os.sched_getaffinity(0))[place::places]
    return ["taskset", "--cpu-list", ",".join(map(str, cores))]


def keep(name: str, run: Path, place: Path) -> None:
    """Copy what the page needs; ``summary.json`` comes last, because it says that the rest is there."""
    place.mkdir(parents=True, exist_ok=True)
    if name in WITH_PREDICTIONS:
        last = len((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        (place / "predictions").mkdir(exist_ok=True)
        for step in range(1 if name in WITH_EVERY_STEP else last, last + 1):
            file = f"predictions/step-{step}.safetensors"
            save_file({key: smaller(value) for key, value in load_file(run / file).items()}, place / file)
    for file in SMALL:
        text = (run / file).read_text(encoding="utf-8")
        if file == "config.json":  # where it was computed is nobody's business, and the same command works elsewhere
            config = json.loads(text)
            config["command"] = " ".join(["equipoise run cifar100 --data-root DIR", *RUNS[name]])
            text = json.dumps(config, indent=1, ensure_ascii=False) + "\n"
        (place / file).write_text(text, encoding="utf-8")


def smaller(values: torch.Tensor) -> torch.Tensor:
    """Class numbers in two bytes instead of eight, shares and norms in two instead of four."""
    return values.to(torch.int16 if values.dtype == torch.int64 else torch.float16).contiguous()


if __name__ == "__main__":
    main()
