"""Predictions for files, folders and standard input."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import equipoise as eq
import equipoise.app.predict as predict_module
from equipoise.app.model_dir import ModelDir
from equipoise.app.predict import expand_paths, predict
from equipoise.errors import UsageError
from tests.conftest import Ran
from tests.folders import crops, glyph_folder

Cli = Callable[..., Ran]


@pytest.fixture(scope="module")
def tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with eight images of each of the model's classes."""
    return glyph_folder(tmp_path_factory.mktemp("glyphs"), range(6), test=True)


def objects(ran: Ran) -> list[Any]:
    """Return what a command printed, one JSON object per line."""
    return [json.loads(line) for line in ran.out.splitlines()]


def test_predict_takes_files_folders_and_standard_input(
    cli: Cli, two_steps: Path, tests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = tests / "B" / "001.png"
    text = cli("predict", two_steps, picture)
    assert text.code == 0
    assert text.out.startswith(f"{picture}  ")
    assert text.out.rstrip().removesuffix(")").endswith("%")
    lines = objects(cli("predict", two_steps, tests, "--json", "--top", 3))
    assert len(lines) == 48
    for line in lines:
        probabilities = [entry["probability"] for entry in line["predictions"]]
        assert len(probabilities) == 3
        assert probabilities == sorted(probabilities, reverse=True)
    correct = sum(line["predictions"][0]["class"] == Path(line["path"]).parent.name for line in lines)
    table = list(csv.reader(io.StringIO(cli("predict", two_steps, tests, "--csv", "--top", 2).out)))
    assert table[0] == ["path", "class", "probability", "class_2", "probability_2", "unknown"]
    assert [row[5] for row in table[1:]] == [str(line["unknown"]).lower() for line in lines]
    assert [row[1] for row in table[1:]] == [line["predictions"][0]["class"] for line in lines]
    paths = "\n".join(line["path"] for line in lines).encode() + b"\n\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(paths)))
    assert objects(cli("predict", two_steps, "-", "--json", "--top", 3)) == lines
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(picture.read_bytes())))
    (piped,) = objects(cli("predict", two_steps, "-", "--json", "--top", 3))
    assert piped["path"] == "-"
    assert piped["predictions"] == next(line for line in lines if line["path"] == str(picture))["predictions"]
    facts = json.loads(cli("evaluate", two_steps, tests, "--json").out)
    assert (facts["total"], facts["correct"]) == (48, correct)


def test_predict_continues_after_a_bad_file_and_reports_it(
    cli: Cli, two_steps: Path, tests: Path, tmp_path: Path
) -> None:
    good = tests / "A" / "000.png"
    (tmp_path / "bad.jpg").write_bytes(b"no")
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:200])
    ran = cli("predict", two_steps, tmp_path / "bad.jpg", good, tmp_path / "cut.png", tmp_path / "none.png", "--json")
    assert [("error" in line) for line in objects(ran)] == [True, False, True, True]
    assert ran.code == 2
    assert "cannot read 3 of 4 images" in ran.err
    assert "--top must be at least 1" in cli("predict", two_steps, good, "--top", 0).err
    (tmp_path / "empty").mkdir()
    assert "no images found in" in cli("predict", two_steps, tmp_path / "empty").err


def test_options_may_come_first(cli: Cli, two_steps: Path, tests: Path) -> None:
    files = [tests / "A" / "000.png", tests / "B" / "001.png"]
    assert cli("predict", two_steps, "--top", 2, *files).out == cli("predict", two_steps, *files, "--top", 2).out
    assert "name at least one image" in cli("predict", two_steps).err


def test_predict_reports_folders_that_cannot_be_read(
    cli: Cli, two_steps: Path, tests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = tmp_path / "photos"
    (photos / "locked").mkdir(parents=True)
    (photos / "a.png").write_bytes((tests / "A" / "000.png").read_bytes())
    scan = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("locked"):  # root may read every folder
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    ran = cli("predict", two_steps, photos)
    assert ran.code == 2
    assert "locked: cannot read the folder" in ran.err
    assert "a.png" in ran.out


def test_batches_of_any_size_keep_the_order(two_steps: Path, tests: Path, tmp_path: Path) -> None:
    files = [str(file) for file in sorted(tests.rglob("*.png"))]
    (tmp_path / "bad.png").touch()
    paths = [*files[:5], str(tmp_path / "bad.png"), *files[5:]]
    model = ModelDir(two_steps).load()
    single = [next(iter(predict(model, expand_paths([file])))) for file in paths]
    for batch in (1, 7, 64):
        predictions = list(predict(model, expand_paths(paths), batch=batch))
        assert [one.path for one in predictions] == paths
        assert [best(one) for one in predictions] == [best(one) for one in single]


def best(prediction: predict_module.Prediction) -> object:
    return prediction.classes[0][0] if prediction.classes else None


def test_a_stream_is_read_only_a_little_ahead(two_steps: Path, tests: Path) -> None:
    """Thousands of files must not be listed first: no more than two batches are read ahead."""
    taken = 0

    def endless() -> Iterator[predict_module.Source]:
        nonlocal taken
        while True:
            taken += 1
            yield "x", str(tests / "A" / "000.png")

    predictions = predict(ModelDir(two_steps).load(), endless())
    for _ in range(200):
        next(predictions)
    assert taken <= 200 + 3 * predict_module.BATCH


def test_memory_use_is_constant_over_thousands_of_files(two_steps: Path, tmp_path: Path) -> None:
    """Compare resident memory after 300 files and after 3,000, in a separate process."""
    for number, picture in enumerate(crops("china.jpg", 30, seed=5)):
        picture.save(tmp_path / f"{number}.jpg")
    code = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from equipoise.app.model_dir import ModelDir\n"
        "from equipoise.app.predict import expand_paths, predict\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4 / 1024\n"
        "files = sorted(str(f) for f in Path(sys.argv[2]).glob('*.jpg'))\n"
        "sources = (one for _ in range(100) for one in expand_paths(files))\n"
        "predictions = predict(ModelDir(Path(sys.argv[1])).load(), sources)\n"
        "for _ in range(300): next(predictions)\n"
        "early = resident()\n"
        "count = sum(1 for _ in predictions)\n"
        "print(count, early, resident())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(two_steps), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    count, early, late = done.stdout.split()
    assert int(count) == 2700
    assert float(late) - float(early) < 20


def test_predict_does_not_import_what_only_training_needs(two_steps: Path, tests: Path) -> None:
    """A cold start is mostly imports: scikit-learn and the compiler would double it."""
    code = (
        "import sys\nfrom equipoise.cli import main\n"
        "try: main(['predict', sys.argv[1], sys.argv[2]])\nexcept SystemExit: pass\n"
        "print([name for name in ('sklearn', 'torch._dynamo', 'altair', 'jinja2') if name in sys.modules])"
    )
    picture = str(tests / "A" / "000.png")
    done = subprocess.run([sys.executable, "-c", code, str(two_steps), picture], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_a_greyscale_model_from_python_rejects_files(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (20, 8, 8), dtype=np.uint8)
    settings = {"net": {"backbone": "tiny"}}
    eq.IncrementalClassifier(epochs=1, settings=settings).fit(pixels, [0, 1] * 10).save(tmp_path / "m")
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    with pytest.raises(UsageError, match="use it from Python"):
        list(predict(ModelDir(tmp_path / "m").load(), expand_paths([str(tmp_path / "x.png")])))
