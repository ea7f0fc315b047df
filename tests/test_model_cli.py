"""The commands of a model, and ONNX."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import equipoise.app.predict as predict_module
from equipoise.app.export import export_onnx
from equipoise.app.model_dir import ModelDir
from equipoise.app.predict import predict, sources
from equipoise.app.console import inspection
from equipoise.cli import main
from equipoise.errors import UsageError
from tests.conftest import interruptible
from tests.folders import crops, glyph_folder, unseen

FIRST = ("--image-size", 24, "--backbone", "tiny", "--set", "augment.flip=false", "--memory", 60)
QUICK = ("--epochs", 40, "--holdout", 0.25, "--threads", 1, "--set", "train.batch_size=16")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("glyphs")
    glyph_folder(root / "first", range(3))
    glyph_folder(root / "second", range(3, 6))
    glyph_folder(root / "test", range(6), test=True)
    return root


@pytest.fixture(scope="module")
def taught(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "m"
    for step, extra in (("first", FIRST), ("second", ())):
        with pytest.raises(SystemExit) as exit_:
            main([str(word) for word in ("learn", place, folders / step, *QUICK, *extra)])
        assert exit_.value.code == 0
    return place


@pytest.fixture
def model(taught: Path, tmp_path: Path) -> Path:
    shutil.copytree(taught, tmp_path / "m")
    return tmp_path / "m"


def test_learn_shows_the_plan_and_the_verdict(cli: Any, folders: Path, tmp_path: Path) -> None:
    place = tmp_path / "m"
    planned = cli("learn", place, folders / "first", "--dry-run", *FIRST, *QUICK)
    assert planned.code == 0
    assert not place.exists()
    first = cli("learn", place, folders / "first", *FIRST, *QUICK)
    assert first.code == 0, first.err
    for word in (
        "step 1: A, B, C",
        "36 images to learn from, 12 held out",
        "wa, tiny, 24 × 24 pixels, 40 epochs: about",
    ):
        assert word in planned.out
        assert word in first.out
    assert "right on 12 held-out images" in first.out
    second = cli("learn", place, folders / "second", *QUICK)
    for word in ("step 2: D, E, F", "beside 36 exemplars of 3 old classes", "before the correction", "old classes",
                 "γ", "old images taken for new classes"):  # fmt: skip
        assert word in second.out, word
    refused = cli("learn", place, folders / "first", *QUICK)
    assert refused.code == 2
    assert "class 'A' is known already (learned in step 1): pass --extend" in refused.err


def test_learn_tells_machines_everything(cli: Any, folders: Path, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    shutil.copytree(folders / "first", tmp_path / "pictures", dirs_exist_ok=True)
    (tmp_path / "pictures" / "A" / "notes.txt").touch()
    told = json.loads(cli("learn", tmp_path / "m", tmp_path / "pictures", "--json", *FIRST, *QUICK).out)
    assert told["classes"] == ["A", "B", "C"]
    assert told["left_out"] == [{"path": "A/notes.txt", "why": "it is not an image (.jpg, .jpeg, .png, .webp, .bmp, .gif, .tif, .tiff)"}]  # fmt: skip  # noqa: E501
    plan = json.loads(cli("learn", tmp_path / "m", folders / "second", "--json", "--dry-run", *QUICK).out)
    assert (plan["classes"], plan["images"], plan["exemplars"]) == (["D", "E", "F"], 36, 36)


def test_ctrl_c_says_how_to_go_on(folders: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "equipoise", "learn", tmp_path / "m", folders / "first", *FIRST, "--epochs", 10**6]
    pipe = subprocess.PIPE
    words = [str(word) for word in command]
    process = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, preexec_fn=interruptible)
    deadline = time.monotonic() + 60
    while not (tmp_path / "m" / ".step" / "stages.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the same command goes on from there" in err
    assert "Traceback" not in err
    assert not ModelDir(tmp_path / "m").exists


# ---- predict


def test_predict_names_files_folders_and_standard_input(
    cli: Any, taught: Path, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = folders / "test" / "B" / "001.png"
    text = cli("predict", taught, picture)
    assert text.code == 0
    assert text.out.startswith(f"{picture}  ")
    assert text.out.rstrip().endswith("%")
    lines = [
        json.loads(line) for line in cli("predict", taught, folders / "test", "--json", "--top", 3).out.splitlines()
    ]
    assert len(lines) == 48
    for line in lines:
        shares = [guess["probability"] for guess in line["predictions"]]
        assert len(shares) == 3
        assert shares == sorted(shares, reverse=True)
    right = sum(line["predictions"][0]["class"] == Path(line["path"]).parent.name for line in lines)
    table = list(csv.reader(io.StringIO(cli("predict", taught, folders / "test", "--csv", "--top", 2).out)))
    assert table[0] == ["path", "class", "probability", "class_2", "probability_2"]
    assert [row[1] for row in table[1:]] == [line["predictions"][0]["class"] for line in lines]
    paths = "\n".join(line["path"] for line in lines).encode() + b"\n\n"
    for data, expected in ((paths, lines), (picture.read_bytes(), None)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        piped = [json.loads(line) for line in cli("predict", taught, "-", "--json", "--top", 3).out.splitlines()]
        if expected is not None:
            assert piped == expected
        else:
            assert [one["path"] for one in piped] == ["-"]
            match = next(line for line in lines if line["path"] == str(picture))
            assert piped[0]["predictions"] == match["predictions"]
    facts = json.loads(cli("evaluate", taught, folders / "test", "--json").out)
    assert (facts["images"], facts["right"]) == (48, right)


def test_predict_goes_on_after_a_bad_file_and_says_so(cli: Any, taught: Path, folders: Path, tmp_path: Path) -> None:
    good = folders / "test" / "A" / "000.png"
    (tmp_path / "bad.jpg").write_bytes(b"no")
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:200])
    ran = cli("predict", taught, tmp_path / "bad.jpg", good, tmp_path / "cut.png", tmp_path / "none.png", "--json")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [("error" in line) for line in lines] == [True, False, True, True]
    assert ran.code == 2
    assert "3 of 4 images could not be read" in ran.err
    assert cli("predict", taught, good, "--top", 0).code == 2
    (tmp_path / "empty").mkdir()
    assert "has no images below it" in cli("predict", taught, tmp_path / "empty").err


def test_pictures_that_differ_get_the_answers_of_their_own(taught: Path, folders: Path, tmp_path: Path) -> None:
    """Batches of every size, in order, with bad ones in between."""
    files = [str(file) for file in sorted((folders / "test").rglob("*.png"))]
    (tmp_path / "bad.png").touch()
    asked = [*files[:5], str(tmp_path / "bad.png"), *files[5:]]
    loaded = ModelDir(taught).load()
    alone = [next(iter(predict(loaded, sources([file])))) for file in asked]
    for batch in (1, 7, 64):
        said = list(predict(loaded, sources(asked), batch=batch))
        assert [one.path for one in said] == asked
        assert [one.guesses[:1] and one.guesses[0][0] for one in said] == [
            one.guesses[:1] and one.guesses[0][0] for one in alone
        ]


def test_a_stream_is_read_as_it_is_answered(taught: Path, folders: Path) -> None:
    """Thousands of files must not be listed first: no more than two batches are taken ahead."""
    taken = 0

    def endless() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield "x", str(folders / "test" / "A" / "000.png")

    answers = predict(ModelDir(taught).load(), endless())
    for _ in range(200):
        next(answers)
    assert taken <= 200 + 3 * predict_module.BATCH


def test_memory_stays_flat_over_thousands_of_files(taught: Path, tmp_path: Path) -> None:
    """Resident memory after 300 files and after 3,000, in a process of its own."""
    for number, picture in enumerate(crops("china.jpg", 30, seed=5)):
        picture.save(tmp_path / f"{number}.jpg")
    code = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from equipoise.app.model_dir import ModelDir\n"
        "from equipoise.app.predict import predict, sources\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4 / 1024\n"
        "files = sorted(str(f) for f in Path(sys.argv[2]).glob('*.jpg'))\n"
        "asked = (one for _ in range(100) for one in sources(files))\n"
        "said = predict(ModelDir(Path(sys.argv[1])).load(), asked)\n"
        "for _ in range(300): next(said)\n"
        "early = resident()\n"
        "count = sum(1 for _ in said)\n"
        "print(count, early, resident())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(taught), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    count, early, late = done.stdout.split()
    assert int(count) == 2700
    assert float(late) - float(early) < 20


# ---- the other commands


def test_history_inspect_and_card_tell_the_same_story(cli: Any, taught: Path) -> None:
    rows = json.loads(cli("history", taught, "--json").out)
    assert [(row["step"], row["classes"]) for row in rows] == [(1, ["A", "B", "C"]), (2, ["D", "E", "F"])]
    steps = ModelDir(taught).steps()
    assert rows[0]["accuracy_then"] == pytest.approx(steps[0]["accuracy_new"])
    assert rows[0]["accuracy_now"] == pytest.approx(steps[1]["accuracy_old"])
    assert rows[1]["accuracy_now"] == pytest.approx(rows[1]["accuracy_then"])
    shown = cli("history", taught).out
    for word in ("then", "now", "γ", "A, B, C", f"{steps[0]['accuracy_new']:.1f} %", f"{steps[1]['gamma']:.3f}"):
        assert word in shown
    facts = json.loads(cli("inspect", taught, "--json").out)
    assert facts["exemplars"] == sum(entry["exemplars"] for entry in facts["classes"]) <= 60
    assert [entry["class"] for entry in facts["classes"]] == list("ABCDEF")
    assert all(entry["norm"] > 0 for entry in facts["classes"])
    assert facts["bytes"]["all"] > facts["bytes"]["versions"] > 0
    assert "exemplars (at most 60)" in cli("inspect", taught).out
    card = cli("card", taught).out
    assert "A classifier of 6 classes" in card
    assert f"**{steps[1]['accuracy']:.1f} %** of 24 held-out images" in card
    assert card.strip() in (taught / "README.md").read_text()


def test_evaluate_counts_by_class_and_leaves_strangers_out(
    cli: Any, taught: Path, folders: Path, tmp_path: Path
) -> None:
    shutil.copytree(folders / "test", tmp_path / "test")
    shutil.copytree(folders / "test" / "A", tmp_path / "test" / "stranger")
    ran = cli("evaluate", taught, tmp_path / "test")
    assert "stranger: the model does not know this class" in ran.out
    assert "of 48 images right" in ran.out
    only = glyph_folder(tmp_path / "only", [9])
    assert "has no class that the model knows" in cli("evaluate", taught, only).err


def test_undo_and_forget_say_what_they_did(cli: Any, model: Path) -> None:
    forgotten = cli("forget", model, "B", "E")
    assert "forgotten: B, E" in forgotten.out
    assert "nothing of them is left" in forgotten.out
    assert cli("undo", model).code == 2
    assert "forgot 2 classes" in cli("history", model).out
    assert "there is no class 'B'" in cli("forget", model, "B").err


def test_undo_names_the_step(cli: Any, model: Path) -> None:
    assert "undone: step 2 (D, E, F); 3 classes are known" in cli("undo", model).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict", "nowhere", "x.png"), "nowhere does not exist: make a model with `equipoise learn MODEL FOLDER`"),
        (("predict", "nowhere", "x.png", "--json", "--csv"), "choose one"),
        (("history", "x" * 300), "does not exist"),
        (("history", "."), "holds no model"),
        (("learn", "m", "nowhere"), "nowhere is not a directory"),
        (("learn", "m", ".", "--epochs", "many"), "--epochs is 'many', but it takes a whole number, or auto"),
        (("learn", "m", ".", "--method", "wq"), "has no folders with images"),
        (("export", "nowhere", "x.onnx"), "does not exist"),
        (("undo", "nowhere"), "does not exist"),
        (("forget", "nowhere", "A"), "does not exist"),
        (("predict", "nowhere"), "predict"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: tuple[str, ...], message: str, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli(*arguments)
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "nowhere").exists()


# ---- ONNX


@pytest.fixture(scope="module")
def exported(taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    out = tmp_path_factory.mktemp("onnx") / "m.onnx"
    export_onnx(ModelDir(taught).load(), out)
    return out


def test_onnx_says_what_torch_says_of_a_hundred_images(exported: Path, taught: Path) -> None:
    import onnxruntime

    images = torch.cat([unseen(range(6)), unseen(range(6, 13))])[:100]
    session = onnxruntime.InferenceSession(exported)
    assert session.get_inputs()[0].type == "tensor(uint8)"
    assert session.get_inputs()[0].shape[1:] == [24, 24, 3]
    expected = ModelDir(taught).load().probabilities(images).numpy()
    for count in (1, 7, 100):  # any number at a time
        (said,) = session.run(None, {"images": images[:count].permute(0, 2, 3, 1).contiguous().numpy()})
        np.testing.assert_allclose(said, expected[:count], atol=1e-4)
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == list("ABCDEF")


def test_the_example_needs_no_torch(exported: Path, taught: Path, tmp_path: Path) -> None:
    """Photographs of odd sizes, through the README's example, with torch and equipoise out of reach."""
    files = []
    for number, picture in enumerate(crops("china.jpg", 8, seed=4)):
        files.append(str(tmp_path / f"{number}.png"))
        if number == 0:
            picture.putalpha(90)  # what is transparent is white
        picture.save(files[-1])
    example = Path(__file__).parent.parent / "examples" / "onnx_predict.py"
    block = "import sys, runpy\nsys.modules['torch'] = sys.modules['equipoise'] = None\nsys.argv = sys.argv[1:]\n"
    run = [sys.executable, "-c", block + "runpy.run_path(sys.argv[0])", str(example), str(exported), *files]
    done = subprocess.run(run, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    ours = [f"{one.path}  {one.guesses[0][0]} {one.guesses[0][1]:.1%}" for one in predict(ModelDir(taught).load(), sources(files))]  # fmt: skip  # noqa: E501
    assert done.stdout.splitlines() == ours


def test_export_without_onnx_says_what_is_missing(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"pip install 'equipoise\[onnx\]'"):
        export_onnx(ModelDir(taught).load(), tmp_path / "x.onnx")


def test_export_copies_with_and_without_images(cli: Any, taught: Path, tmp_path: Path) -> None:
    assert "without exemplars" in cli("export", taught, tmp_path / "light", "--no-memory").out
    assert not list((tmp_path / "light").rglob("*.png"))
    assert cli("export", taught, tmp_path / "whole").code == 0
    assert len(list((tmp_path / "whole").rglob("*.png"))) == 60 + 24
    assert "holds a model already" in cli("export", taught, tmp_path / "whole").err


def test_the_first_answer_comes_without_what_only_training_needs(taught: Path, folders: Path) -> None:
    """Cold start is mostly imports: scikit-learn and the compiler would double it."""
    code = (
        "import sys\nfrom equipoise.cli import main\n"
        "try: main(['predict', sys.argv[1], sys.argv[2]])\nexcept SystemExit: pass\n"
        "print([name for name in ('sklearn', 'torch._dynamo', 'altair', 'jinja2') if name in sys.modules])"
    )
    picture = str(folders / "test" / "A" / "000.png")
    done = subprocess.run([sys.executable, "-c", code, str(taught), picture], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_a_grey_model_from_python_refuses_files(tmp_path: Path) -> None:
    import equipoise as eq

    pixels = np.random.default_rng(0).integers(0, 255, (20, 8, 8), dtype=np.uint8)
    settings = {"net": {"backbone": "tiny"}}
    eq.IncrementalClassifier(epochs=1, settings=settings).fit(pixels, [0, 1] * 10).save(tmp_path / "m")
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    with pytest.raises(UsageError, match="use it from Python"):
        list(predict(ModelDir(tmp_path / "m").load(), sources([str(tmp_path / "x.png")])))


def test_inspect_never_mixes_versions(model: Path, folders: Path) -> None:
    """While another thread learns and undoes."""
    place = ModelDir(model)
    current = place.load(images=True)
    with place.writing():
        place.undo()
    stop, wrong = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            facts = inspection(place)
            if (len(facts["classes"]), facts["exemplars"]) not in ((3, 36), (6, 60)):
                wrong.append((len(facts["classes"]), facts["exemplars"]))

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(10):
        with place.writing():
            place.commit(current)
            place.undo()
    stop.set()
    thread.join()
    assert not wrong


def test_history_fits_a_narrow_terminal(cli: Any, taught: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli("history", taught).out
    assert "A, B, C" in shown
    assert max(map(len, shown.splitlines()[:6])) <= 80


def test_a_full_disk_is_one_sentence(taught: Path) -> None:
    command = f"{sys.executable} -m equipoise card {taught} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert done.returncode == 2
