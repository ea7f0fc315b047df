"""Run the README's commands in order, as a new user would, and print how long each takes: `make readme`.

Its photos are the drawn pictures of `equipoise serve --demo`. What takes long or needs a data set is only listed,
unless `--all` is given: the tests, and experiments on the data set in EQUIPOISE_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = 3600
"""Seconds that a command may take."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also run what takes hours")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="equipoise-readme-") as folder:
        for command in commands_of((ROOT / "README.md").read_text(encoding="utf-8")):
            failed += not run(command, Path(folder), options.all)
    started = time.monotonic()
    python = subprocess.run([BIN / "python", "-m", "doctest", ROOT / "README.md"])
    report(time.monotonic() - started, "the examples in Python", python.returncode == 0)
    return int(failed + python.returncode > 0)


def commands_of(text: str) -> list[str]:
    """Return the commands in blocks of shell, without comments.

    >>> commands_of("```sh\\nmake run   # set up\\n\\nequipoise run a \\\\\\n  --seed 1\\n```\\n")
    ['make run', 'equipoise run a --seed 1']
    """
    lines = "\n".join(BLOCK.findall(text)).replace("\\\n", " ").splitlines()
    return [shlex.join(words) for line in lines if (words := shlex.split(line, comments=True))]


def run(command: str, folder: Path, everything: bool) -> bool:
    """Run one command and print its time; return whether it succeeded."""
    words = shlex.split(command)
    if words == ["make", "test"] or "--data-root" in words:
        if not everything:
            print(f"{'not run':>9}  {command}")
            return True
        words = [os.environ["EQUIPOISE_DATA"] if word == "DIR" else word for word in words]
    started = time.monotonic()
    if words[:2] == ["equipoise", "serve"]:
        good = serve(words, folder)
    elif words[0] == "make":
        good = subprocess.run(words, cwd=ROOT, timeout=SECONDS).returncode == 0
    else:
        if not (folder / "photo.jpg").exists():
            draw_photos(folder)
            started = time.monotonic()
        good = subprocess.run([BIN / words[0], *words[1:]], cwd=folder, timeout=SECONDS).returncode == 0
    report(time.monotonic() - started, command, good)
    return good


def report(seconds: float, what: str, good: bool) -> None:
    print(f"{seconds:7.1f} s  {what}{'' if good else '  FAILED'}", flush=True)


BIN = ROOT / ".venv" / "bin"


def draw_photos(folder: Path) -> None:
    """Draw the folders that the README names, and the photo."""
    code = (
        "import sys; from pathlib import Path; from equipoise.serve.demo import KINDS, draw\n"
        "for name, kinds in (('FOLDER', KINDS[:3]), ('MORE', KINDS[3:5])):\n"
        "    for kind in kinds:\n"
        "        place = Path(sys.argv[1], name, kind); place.mkdir(parents=True)\n"
        "        for number in range(12): (place / f'{number}.jpg').write_bytes(draw(kind, number))\n"
        "Path(sys.argv[1], 'photo.jpg').write_bytes(draw(KINDS[0], 13))\n"
    )
    subprocess.run([BIN / "python", "-c", code, folder], check=True)


def serve(words: list[str], folder: Path) -> bool:
    """Start the page without a browser, ask for it, and stop the server."""
    command = [str(BIN / words[0]), *(word for word in words[1:] if word != "--open"), "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            with urllib.request.urlopen(url) as answer:  # noqa: S310 - our own
                return bool(answer.status == 200)
        finally:
            server.terminate()


if __name__ == "__main__":
    sys.exit(main())
