"""The page of a model: its figures, hostile and missing content, the command, and a real browser."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import equipoise as eq
from equipoise import IncrementalClassifier
from equipoise.app.corrections import merge, move, rename
from equipoise.app.forget import forget
from equipoise.app.model_dir import ModelDir
from equipoise.app.report import default_page, holds_model, report_model
from equipoise.app.report.charts import MATRIX, model_figures
from equipoise.app.report.facts import read_facts
from equipoise.app.report.page import suspect_rows
from equipoise.app.report.pictures import MOST, Pictures, data_url
from equipoise.app.stored_features import ids_of
from equipoise.app.suspects import Suspect, find_suspects
from equipoise.errors import UsageError
from tests.conftest import Ran
from tests.pages import Open, Reader, check_charts, check_width

Cli = Callable[..., Ran]
WIDTH = 32
NASTY = [
    "<script>document.title='pwned'</script>" + "x" * 180,
    '"><img src=x onerror="document.title=1">',
    "two\nlines {{ 7*7 }}",
    "\u202eevil",
    "ורד",
    "`a` & b",
]


def rows(seed: int, count: int, noise: float = 3.0) -> np.ndarray:
    """Return rows around a centre of their own, which overlap with others if there is much noise."""
    centre = np.random.default_rng(1000 + seed).standard_normal(WIDTH)
    return (centre + noise * np.random.default_rng(seed).standard_normal((count, WIDTH))).astype(np.float32)


def learn(path: Path, classes: dict[str, np.ndarray]) -> None:
    """Teach rows to the model in a directory."""
    x = np.concatenate(list(classes.values()))
    y = np.repeat(np.array(list(classes), dtype=object), [len(mine) for mine in classes.values()])
    model = eq.load(path) if ModelDir(path).exists else IncrementalClassifier(method="ridge")
    model.partial_fit(x, y).save(path)


def page_of(path: Path) -> Reader:
    return Reader(report_model(ModelDir(path)).page.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def ridge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of five classes in two steps, and some corrections; it must not be changed."""
    path = tmp_path_factory.mktemp("models") / "ridge"
    learn(path, {name: rows(seed, 12, noise=1.5) for seed, name in enumerate("abc")})
    learn(path, {"d": rows(3, 9, noise=1.5), "e": rows(4, 15)})
    place = ModelDir(path)
    rename(place, "a", "apple")
    move(place, [ids_of(place.load(images=True).memory.exemplars[0])[0]], "e")  # an apple
    merge(place, "b", ["c"])
    return path


# ---- the figures


def test_figures_are_those_of_the_last_step(ridge: Path) -> None:
    page, last = page_of(ridge), ModelDir(ridge).steps()[-1]
    assert last.evaluated == "leave-one-out"
    assert last.ece is not None
    assert page.cards["accuracy, leave-one-out"] == f"{last.accuracy:.1f} %"
    assert page.cards["mean accuracy per class"] == f"{last.accuracy_macro:.1f} %"
    assert page.cards["calibration error (ECE), points"] == f"{last.ece:.1f}"
    learned = ModelDir(ridge).steps()[1]
    balance = f"{learned.accuracy_old:.1f} / {learned.accuracy_new:.1f}"
    assert page.cards["accuracy of old / new classes after step 2, %"] == balance
    results = {str(entry.name): entry for entry in last.per_class}
    table = page.tables["classes"]
    assert table[0] == ["class", "images", "correct", "accuracy, %", "most often predicted as", "learned in step"]
    for cells in table[1:]:
        assert cells[2] == f"{results[cells[0]].correct} of {results[cells[0]].total}"
    assert {cells[0]: cells[5] for cells in table[1:]} == {
        "apple": "1",
        "b": "1(again in 5)",
        "d": "2",
        "e": "2(again in 4)",
    }


def test_every_step_is_listed_with_what_it_did(ridge: Path) -> None:
    page, steps = page_of(ridge), ModelDir(ridge).steps()
    table = page.tables["steps"][1:]
    assert [cells[2] for cells in table] == [
        "merged c into b",
        "moved 1 image to e",
        "renamed a to apple",
        "d, e",
        "apple, b, c",
    ]
    assert [int(cells[0]) for cells in table] == [5, 4, 3, 2, 1]
    assert [cells[5] for cells in table] == [f"{step.accuracy:.1f}" for step in reversed(steps)]
    assert [row[1] for row in page.tables["growth-classes"][1:]] == ["3", "5", "5", "5", "4"]
    assert [float(row[1]) for row in page.tables["growth-accuracy"][1:]] == [
        round(step.accuracy or 0, 1) for step in steps
    ]


def test_confusions_and_groups_of_confidence_add_up(ridge: Path) -> None:
    facts = read_facts(ModelDir(ridge))
    made = facts.predictions
    assert made is not None
    wrong = Counter((a, b) for a, b in zip(made.labels.tolist(), made.predicted.tolist(), strict=True) if a != b)
    assert {(true, predicted): images for true, predicted, images in facts.confusions} == dict(wrong)
    matrix = facts.confusion_matrix()
    assert matrix.sum() == len(made.labels)
    assert np.trace(matrix) == int(made.correct.sum())
    groups = page_of(ridge).tables["reliability"][1:]
    assert len(groups) == 15
    assert sum(int(images) for _, _, images in groups) == len(made.labels)
    gaps = [int(images) * abs(float(sure) - float(hits)) for sure, hits, images in groups]
    assert sum(gaps) / len(made.labels) == pytest.approx(facts.ece, abs=0.02)
    for figure in model_figures(facts):
        figure.chart.to_dict()  # raises an error if it does not follow the schema


def test_held_out_images_are_used_where_there_are_any(two_steps: Path, tmp_path: Path) -> None:
    model = ModelDir(two_steps).load(images=True)
    predicted = model.probabilities(model.holdout).argmax(1)
    file = report_model(ModelDir(two_steps), tmp_path / "page.html").page
    page = Reader(file.read_text(encoding="utf-8"))
    expected = 100 * (predicted == model.holdout.labels).double().mean().item()
    assert page.cards["accuracy, held-out images"] == f"{expected:.1f} %"
    for c, cells in enumerate(page.tables["classes"][1:]):
        mine = model.holdout.labels == c
        assert cells[3] == f"{int((predicted[mine] == c).sum())} of {int(mine.sum())}"
        assert int(cells[2]) == int(mine.sum())
    text = "".join(page.text)
    assert "finding them needs the features of all images" in text
    assert file.read_text(encoding="utf-8").count("data:image/jpeg") == 4 * 6  # exemplars are images
    assert not default_page(two_steps).exists()


def test_suspects_are_listed_with_the_command_to_move_them(ridge: Path) -> None:
    found = find_suspects(ModelDir(ridge))
    table = page_of(ridge).tables["suspects"][1:]
    assert len(table) == min(len(found), 50) > 0
    for one, cells in zip(found, table, strict=False):
        assert cells[:3] == [one.image[:12], str(one.label), str(one.looks_like)]
        assert cells[4] == f"equipoise move ridge {one.image[:12]} {one.looks_like}"


def test_commands_are_quoted(ridge: Path) -> None:
    facts = read_facts(ModelDir(ridge))
    names = {"two words": "'two words'", "$(rm)": "'$(rm)'", "two\nlines": "CLASS", "\u202eevil": "CLASS"}
    suspects = [Suspect("ab" * 16, "a", name, 0.9) for name in names]
    shown = suspect_rows(replace(facts, suspects=suspects), Pictures(facts.model))
    assert [row["command"] for row in shown] == [f"equipoise move ridge abababababab {name}" for name in names.values()]


def test_how_unknown_is_decided_is_said(ridge: Path) -> None:
    assert "looks less familiar than 95 % of known images" in "".join(page_of(ridge).text)


# ---- models that lack something


def test_one_class(tmp_path: Path) -> None:
    learn(tmp_path / "model", {"only": rows(0, 5)})
    page = page_of(tmp_path / "model")
    text = "".join(page.text)
    assert page.cards["mean accuracy per class"] == "–"
    assert "There is only one class so far" in text
    assert "This model reports no image as unknown" in text
    assert "reliability" not in page.tables


def test_classes_of_one_image(tmp_path: Path) -> None:
    learn(tmp_path / "model", {"a": rows(0, 1), "b": rows(1, 1)})
    assert "Every class has too few images to evaluate on" in "".join(page_of(tmp_path / "model").text)
    learn(tmp_path / "model", {"c": rows(2, 6), "d": rows(3, 6)})
    page = page_of(tmp_path / "model")
    assert [cells[2] == "–" for cells in page.tables["classes"][1:]] == [True, True, False, False]


def test_a_copy_without_images_shows_the_figures_of_its_last_step(ridge: Path, tmp_path: Path) -> None:
    ModelDir(ridge).copy_to(tmp_path / "copy", memory=False)
    page, last = page_of(tmp_path / "copy"), ModelDir(ridge).steps()[-1]
    text = "".join(page.text)
    assert "This model keeps no images: the numbers below are those of the last step." in text
    assert page.cards["accuracy, leave-one-out"] == f"{last.accuracy:.1f} %"
    assert page.cards["calibration error (ECE), points"] == f"{last.ece:.1f}"
    assert "confusion" not in page.tables
    assert "there are no images that the model did not learn from" in text


def test_steps_without_figures(tmp_path: Path) -> None:
    learn(tmp_path / "model", {"a": rows(0, 6), "b": rows(1, 6)})
    learn(tmp_path / "model", {"c": rows(2, 6)})
    for file in (tmp_path / "model").rglob("steps.json"):
        steps = json.loads(file.read_text())
        steps[0] |= {"accuracy": None, "ece": None, "accuracy_macro": None, "finished": ""}
        file.unlink()  # those at the top are links
        file.write_text(json.dumps(steps))
    page = page_of(tmp_path / "model")
    assert page.tables["steps"][-1][5] == "–"
    assert "growth-accuracy" not in page.tables


def test_forgotten_classes_are_not_named(tmp_path: Path) -> None:
    learn(tmp_path / "model", {"a": rows(0, 8), "secret": rows(1, 8), "c": rows(2, 8)})
    forget(ModelDir(tmp_path / "model"), ["secret"])
    report = report_model(ModelDir(tmp_path / "model")).page.read_text(encoding="utf-8")
    assert "secret" not in report.partition("<script>")[0]
    assert "forgot 1 class" in report


@pytest.mark.slow
def test_a_thousand_classes(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    rows = draws.standard_normal((1000, 1, WIDTH)) + 0.1 * draws.standard_normal((1000, 4, WIDTH))
    rows[:60, 0], rows[500:560, 0] = rows[500:560, 0].copy(), rows[:60, 0].copy()  # in each other's class
    classes = {f"class {c}": mine.astype(np.float32) for c, mine in enumerate(rows)}
    learn(tmp_path / "model", classes)
    made = report_model(ModelDir(tmp_path / "model"))
    page = Reader(made.page.read_text(encoding="utf-8"))
    assert len(page.tables["classes"]) == 1001
    assert len(page.tables["confusion-list"]) == 21
    assert len(page.tables["suspects"]) == 51
    assert "the first 50 of them here" in "".join(page.text)
    assert len(classes) > MATRIX
    assert "confusion" not in page.tables
    assert made.page.stat().st_size < 2_000_000


# ---- pictures


def jpeg(size: int, colour: str = "red", comment: bytes = b"") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(file, "JPEG", comment=comment)
    return file.getvalue()


def test_thumbnails_are_decoded_and_encoded_again(ridge: Path) -> None:
    model = ModelDir(ridge).load(images=True)
    kept = model.memory.images()
    assert kept is not None
    names = [name for block in model.blocks.values() for name in block]
    model.thumbnails = dict.fromkeys(names, jpeg(96, comment=b"</script><script>pwned"))
    pictures = Pictures(model)
    shown = pictures.of_classes()
    assert [len(mine) for mine in shown] == [4] * 4
    data = base64.b64decode(shown[0][0].partition(",")[2])
    assert b"pwned" not in data
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.size == (64, 64)
    assert list(pictures.by_name({names[0]}, 96)) == [names[0]]
    model.thumbnails = dict.fromkeys(names, b"<svg onload=alert(1)>")
    assert Pictures(model).of_classes() == [[]] * 4
    assert data_url(jpeg(2000), 64) is None
    png = io.BytesIO()
    Image.new("RGB", (8, 8)).save(png, "PNG")
    assert data_url(png.getvalue(), 64) is None


def test_many_classes_get_fewer_pictures(ridge: Path) -> None:
    model = ModelDir(ridge).load(images=True)
    images = model.memory.exemplars[0]
    model.thumbnails = {name: jpeg(8) for block in model.blocks.values() for name in block}
    for classes, each in ((150, 2), (MOST + 100, 1)):
        model.classes = [f"class {c}" for c in range(classes)]
        model.memory.exemplars = {c: images.select(torch.arange(3)) for c in range(classes)}
        shown = [len(mine) for mine in Pictures(model).of_classes()]
        assert max(shown) == each
        assert sum(shown) <= MOST


# ---- the command


def test_the_command_chooses_by_what_it_finds(ridge: Path, tmp_path: Path, cli: Cli) -> None:
    ModelDir(ridge).copy_to(tmp_path / "model")
    before = sorted(file.name for file in (tmp_path / "model").iterdir())
    ran = cli("report", "model")
    assert (ran.code, ran.out) == (0, "report: model-report.html\n")
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == before
    ran = cli("report", "model/", "--out", "page.html", "--figures", "figures", "--formats", "svg", "--json")
    made = json.loads(ran.out)
    assert made["page"] == "page.html"
    assert made["skipped"] == []
    names = {Path(file).name for file in made["figures"]}
    growth = {f"growth-{part}.svg" for part in ("classes", "images", "accuracy")}
    assert names == {"confusion.svg", "reliability.svg"} | growth
    assert (tmp_path / "figures" / "reliability.svg").read_text(encoding="utf-8").startswith("<svg")


def test_wrong_use_is_an_error(ridge: Path, tmp_path: Path, cli: Cli) -> None:
    ModelDir(ridge).copy_to(tmp_path / "model")
    for options, expected in (
        (["model", "--out", "model/page.html"], "is inside the model directory"),
        (["model", "--figures", "model"], "is inside the model directory"),
        (["model", "--out", "missing/page.html"], "cannot write"),
        (["model", "--formats", "svg"], "--formats needs --figures"),
        (["elsewhere"], "not a directory"),
        ([".", "--out", "page.html"], "--out applies to models"),
    ):
        ran = cli("report", *options)
        assert ran.code != 0, options
        assert expected in ran.err, options
        assert ran.err.count("\n") == 1
    (tmp_path / "begun" / ".step").mkdir(parents=True)
    assert "only an interrupted first step" in cli("report", "begun").err
    (tmp_path / "model" / "model.safetensors").unlink()
    for file in (tmp_path / "model" / "versions").rglob("model.safetensors"):
        file.write_bytes(b"half")
    ran = cli("report", "model")
    assert (ran.code != 0, "is damaged" in ran.err) == (True, True)
    assert not (tmp_path / "model-report.html").exists()


def test_a_run_is_no_model(tmp_path: Path, ridge: Path) -> None:
    assert holds_model(ridge)
    assert not holds_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "versions").mkdir()
    assert holds_model(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    assert not holds_model(tmp_path)


def test_the_page_is_beside_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    assert default_page(Path("some/model/")) == Path("some/model-report.html")
    monkeypatch.chdir(tmp_path / "model")
    assert default_page(Path()) == (tmp_path / "model-report.html").resolve()
    assert default_page(Path("..") / "model") == Path("../model-report.html")


@pytest.mark.parametrize("package", ["altair", "jinja2"])
def test_a_missing_package_is_named(package: str, ridge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"^a report needs the package {package}: pip install 'equipoise\[report\]'$"):
        report_model(ModelDir(ridge))


# ---- in a browser


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_chart_is_drawn_and_fits(ridge: Path, open_page: Open, width: int, scheme: str) -> None:
    page = open_page(report_model(ModelDir(ridge)).page, width, scheme)
    check_charts(page, width, charts=5)
    assert len(page.screenshot(full_page=True)) > 20_000


def test_names_are_escaped_and_a_click_lists_confusions(tmp_path: Path, open_page: Open) -> None:
    learn(tmp_path / "model", {name: rows(seed, 9, noise=9.0) for seed, name in enumerate(NASTY)})
    file = report_model(ModelDir(tmp_path / "model")).page
    page = open_page(file)
    assert page.title() == "model · equipoise"
    names = page.locator("#classes tbody tr td:nth-child(1)").all_inner_texts()
    shown = [name.replace("\n", "\\n").replace("\u202e", "\\u202e") for name in NASTY]
    assert sorted(names) == sorted(shown)
    assert page.locator("img").count() == 0
    for width in (1280, 320):
        page.set_viewport_size({"width": width, "height": 900})
        check_width(page, width)
    page.locator("[data-chart=confusion] svg .mark-rect.role-mark path").first.click()
    assert names[0] in page.locator("#predicted-as").inner_text()


def test_sorting_and_searching(ridge: Path, open_page: Open) -> None:
    page = open_page(report_model(ModelDir(ridge)).page)
    column = "#classes tbody tr:not([hidden]) td:nth-child({})"
    page.click("#classes th:nth-child(2) button")
    counts = [int(text) for text in page.locator(column.format(2)).all_inner_texts()]
    assert counts == sorted(counts, reverse=True)
    page.click("#classes th:nth-child(1) button")
    assert page.locator(column.format(1)).all_inner_texts() == ["apple", "b", "d", "e"]
    page.fill("#search", "APP")
    assert page.locator(column.format(1)).all_inner_texts() == ["apple"]
