"""Interrupt every command at every change of the file system, and count what that did.

    python -m tests.faults.torture                  # `make torture`: everything, which takes a while
    python -m tests.faults.torture --every 40       # a sample

Each trial copies a directory, starts a command, interrupts it at one change (SIGKILL, or an error of the system),
repeats the command and then runs another one. The directory must hold the old version or the new one at any time, and
in the end the same files, with the same bytes, as without the interruption.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.faults.inject import FAULTS
from tests.faults.scenarios import SCENARIOS, make_bases
from tests.faults.trial import FaultError, Trials, in_child, run_command


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(SCENARIOS), choices=SCENARIOS, metavar="NAME")
    parser.add_argument("--faults", nargs="*", default=list(FAULTS), choices=FAULTS, metavar="NAME")
    parser.add_argument("--every", type=int, default=1, help="try every n-th change only")
    parser.add_argument("--lanes", type=int, default=1, help="processes that share the work")
    options = parser.parse_args()
    prepare()
    started, counts, harm = time.monotonic(), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="equipoise-torture-") as folder:
        root = Path(folder)
        made = in_child(lambda: make_all_bases(root), root / "output.txt")
        if made:
            raise SystemExit((root / "output.txt").read_text())
        lanes = [start_lane(root, lane, options) for lane in range(options.lanes)]
        for lane in lanes:
            os.waitpid(lane, 0)
        for file in sorted(root.glob("lane-*.jsonl")):
            for line in file.read_text().splitlines():
                found = json.loads(line)
                counts[found["fault"]] += 1
                harm += found["harm"]
    print(json.dumps({**counts, "harm": harm, "seconds": round(time.monotonic() - started)}))
    return int(harm > 0)


def prepare() -> None:
    """Use one thread, because processes are forked; ``import_all`` imports the rest."""
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = True
    import torch

    torch.set_num_threads(1)


def make_all_bases(root: Path) -> int:
    make_bases(root, run_command)
    return 0


def start_lane(root: Path, lane: int, options: argparse.Namespace) -> int:
    """Start a process that does its share of the trials; return its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work(root, lane, options)
        code = 0
    finally:
        os._exit(code)


def work(root: Path, lane: int, options: argparse.Namespace) -> None:
    """Do every n-th trial."""
    room = root / f"lane-{lane}"
    room.mkdir()
    with (root / f"lane-{lane}.jsonl").open("w") as results:
        for number, name in enumerate(options.only):
            trials = Trials(SCENARIOS[name], root, room)
            changes = trials.reference.changes
            points = [(at, fault) for at in range(1, len(changes) + 1) for fault in options.faults]
            mine = points[number % options.every :: options.every][lane :: options.lanes]
            harm, seen = 0, Counter[str]()
            for at, fault in mine:
                try:
                    seen[trials.interrupt(at, fault)] += 1
                    bad = False
                except FaultError as error:
                    bad = True
                    print(f"{name}: {fault} at change {at} ({changes[at - 1]}): {error}", flush=True)
                harm += bad
                print(json.dumps({"scenario": name, "at": at, "fault": fault, "harm": bad}), file=results, flush=True)
            what = f"{name}: {len(changes)} changes, {len(mine)} interruptions in lane {lane}"
            print(f"{what}: {seen['old']} before and {seen['new']} after the commit, {harm} did harm", flush=True)
            shutil.rmtree(room / "trial", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
