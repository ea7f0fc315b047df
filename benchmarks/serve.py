"""Measure `equipoise serve`: a new class taught to a model, a webcam frame, and many clients while versions change.

    python benchmarks/serve.py --photos FOLDER --new FOLDER

--photos is a folder of photos per class, which the model learns first; --new is a folder of photos of one more class.
Without --new, the last class of --photos is the new one; without --photos, the pictures are drawn.

"teach": twelve photos of the new class are uploaded and learned, until others of it are predicted right. "frame": a
224-pixel JPEG is predicted, as the page does with a webcam. "load": clients predict pictures while jobs change the
model; every answer is compared with what its version predicts. The exit code is 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from PIL import Image

from equipoise.app.model_dir import ModelDir
from equipoise.app.predict import predict
from equipoise.serve.demo import KINDS, PICTURES, draw

TEACH_SECONDS, FRAME_MS = 5, 150
"""Limits: a new class is predicted right, and a frame is answered (median)."""
DRAWN = 4
"""Drawn pictures of each class but the last."""
KNOWN = 40
"""Photos of each class that the model knows, at most."""
TAUGHT, ASKED = 12, 4
"""Photos of the new class to learn, and others to predict."""
CLOSE = 1e-4
"""Difference of probabilities that is accepted: a picture alone and in a batch may differ in the last bits."""
PICTURES_ASKED = 24
"""Different pictures that the clients send."""


class Client:
    """A client of a server."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=120)

    def send(self, path: str, files: Sequence[bytes]) -> dict[str, Any]:
        answer = self.http.post(path, files=[("files", ("x", data)) for data in files])
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def upload(self, files: Sequence[bytes]) -> list[str]:
        parts = [files[start : start + 16] for start in range(0, len(files), 16)]
        return [one["id"] for part in parts for one in self.send("/api/pictures", part)["pictures"]]

    def do(self, **task: Any) -> None:
        """Start a job and wait for it."""
        job = self.http.post("/api/jobs", json=task).raise_for_status().json()["id"]
        with self.http.stream("GET", f"/api/jobs/{job}/events") as stream:
            last = [line for line in stream.iter_lines() if line.startswith("data:")][-1]
        if json.loads(last[5:])["state"] != "done":
            raise RuntimeError(last)


def read_classes(photos: Path | None, new: Path | None) -> dict[str, list[bytes]]:
    """Return the files of each class; the last one is taught later."""
    if new is not None and (photos is None or (photos / new.name).exists()):
        raise SystemExit("--new needs --photos, and a folder that is called differently from those")
    if photos is None:
        counts = dict.fromkeys(KINDS, DRAWN) | {KINDS[-1]: PICTURES}
        return {kind: [draw(kind, number) for number in range(count)] for kind, count in counts.items()}
    folders = sorted(folder for folder in photos.iterdir() if folder.is_dir()) + ([new] if new else [])
    return {folder.name: [file.read_bytes() for file in sorted(folder.iterdir())] for folder in folders}


def measure_teaching(client: Client, name: str, files: Sequence[bytes]) -> dict[str, Any]:
    """Teach a new class; the clock stops when other pictures of it are answered."""
    started = time.monotonic()
    client.do(kind="learn", classes={name: client.upload(files[:TAUGHT])})
    answers = client.send("/api/predict", files[TAUGHT : TAUGHT + ASKED])["predictions"]
    seconds = time.monotonic() - started
    right = sum(answer["predictions"][0]["class"] == name for answer in answers)
    return {"seconds": round(seconds, 2), "right": right, "of": len(answers)}


def measure_frames(client: Client, picture: bytes, count: int) -> dict[str, Any]:
    """Predict one frame after the other."""
    small = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").resize((224, 224)).save(small, "JPEG", quality=90)
    seconds = []
    for _ in range(count):
        started = time.monotonic()
        client.send("/api/predict", [small.getvalue()])
        seconds.append(time.monotonic() - started)
    return {"median_ms": round(1000 * median(seconds), 1), "frames": count}


def measure_load(url: str, model: Path, classes: dict[str, list[bytes]], total: int, clients: int) -> dict[str, Any]:
    """Let clients predict while jobs change the model, and check every answer against its version."""
    everything = [data for files in classes.values() for data in files[:2]]
    pictures = everything[:: max(1, len(everything) // PICTURES_ASKED)]
    expected: dict[str, list[Any]] = {}

    def remember() -> None:
        loaded = ModelDir(model).config().version, ModelDir(model).load()
        answers = predict(loaded[1], [("", data) for data in pictures], top=3)
        expected[loaded[0]] = [(one.unknown, *one.classes) for one in answers]

    numbers = itertools.count()
    answers: list[tuple[int, dict[str, Any], float]] = []
    failed: list[str] = []
    versions: set[str] = set()
    finished = threading.Event()

    def ask() -> None:
        client = Client(url)
        while (number := next(numbers)) < total or (len(versions) < 2 and not changing.done()):
            started = time.monotonic()
            try:
                answer = client.send("/api/predict?top=3", [pictures[number % len(pictures)]])
            except httpx.HTTPError as error:
                failed.append(repr(error))
                continue
            answers.append((number % len(pictures), answer, time.monotonic() - started))
            versions.add(answer["version"])

    def change() -> None:
        client, names = Client(url), list(classes)
        for number in itertools.count():
            if finished.is_set():
                return
            if number % 2:
                client.do(kind="undo")
            elif number % 4:
                client.do(kind="rename", name=names[0], to=f"renamed {number}")
            else:
                client.do(kind="learn", classes={f"class {number}": client.upload(classes[names[-1]][-3:])})
            remember()

    remember()
    with ThreadPoolExecutor(clients + 1) as pool:
        changing = pool.submit(change)
        for future in [pool.submit(ask) for _ in range(clients)]:
            future.result()
        finished.set()
        changing.result()
    seconds = sorted(elapsed for _, _, elapsed in answers)
    wrong = sum(not matches(expected.get(answer["version"]), place, answer) for place, answer, _ in answers)
    return {
        "predictions": len(answers),
        "clients": clients,
        "failed": len(failed),
        "mixed": wrong,
        "versions": len(versions),
        "p50_ms": round(1000 * seconds[len(seconds) // 2]),
        "p95_ms": round(1000 * seconds[int(len(seconds) * 0.95)]),
    }


def matches(expected: list[Any] | None, place: int, answer: dict[str, Any]) -> bool:
    """Return whether an answer is what its version predicts."""
    if expected is None:
        return False
    unknown, *classes = expected[place]
    given = answer["predictions"][0]["predictions"]
    pairs = zip(given, classes, strict=True)
    same = all(one["class"] == name and abs(one["probability"] - p) < CLOSE for one, (name, p) in pairs)
    return same and answer["predictions"][0]["unknown"] == unknown


def exceeded(facts: dict[str, Any]) -> list[str]:
    """Return a sentence for each limit that is exceeded."""
    teach, frame, load = facts["teach"], facts["frame"], facts["load"]
    checks = [
        (teach["seconds"] > TEACH_SECONDS, f"teaching took {teach['seconds']} s, more than {TEACH_SECONDS} s"),
        (teach["right"] < teach["of"], f"only {teach['right']} of {teach['of']} pictures of {facts['new']} are right"),
        (frame["median_ms"] > FRAME_MS, f"a frame took {frame['median_ms']} ms, more than {FRAME_MS} ms"),
        (load["failed"] > 0, f"{load['failed']} of {load['failed'] + load['predictions']} predictions failed"),
        (load["mixed"] > 0, f"{load['mixed']} answers differ from what their version predicts"),
    ]
    return [sentence for is_so, sentence in checks if is_so]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="folder with one folder of photos per class")
    parser.add_argument("--new", type=Path, help="folder of photos of the class that is taught later")
    parser.add_argument("--predictions", type=int, default=2000, help="at least; more until two versions have answered")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--frames", type=int, default=50)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    classes = read_classes(options.photos, options.new)
    *known, new = classes
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        command = [sys.executable, "-m", "equipoise", "serve", str(model), "--port", "0", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                url = json.loads(process.stdout.readline())["url"]
                client = Client(url)
                client.do(kind="learn", classes={name: client.upload(classes[name][:KNOWN]) for name in known})
                facts = {
                    "classes": len(known),
                    "new": new,
                    "teach": measure_teaching(client, new, classes[new]),
                    "frame": measure_frames(client, classes[new][0], options.frames),
                    "load": measure_load(url, model, classes, options.predictions, options.clients),
                }
            finally:
                process.terminate()
    print(json.dumps(facts) if options.json else json.dumps(facts, indent=2))
    sys.exit("\n".join(exceeded(facts)) or 0)


if __name__ == "__main__":
    main()
