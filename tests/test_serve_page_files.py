"""Files on the page of `equipoise serve`: dropped, pasted, in folders, too many, or not pictures at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.serve.demo import KINDS
from tests.serving import Server, demo_files
from tests.visiting import (
    Visit,
    add_pictures,
    drop,
    drop_from_disk,
    file,
    files,
    learn,
    name_card,
    send_tries,
    until,
    until_count,
    until_text,
    visiting,
    wrong_file,
)

pytest.importorskip("fastapi", reason="the extra serve is not installed")
LETTER = wrong_file("letter.jpg", b"Dear reader")
HEIC = wrong_file("phone.jpg", b"\0\0\0\x18ftypheic" + bytes(100))
EMPTY = wrong_file("empty.jpg", b"")


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    with visiting(browser) as visitor:
        yield visitor


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of photos: one class with folders in it, one with something else in it, and hidden folders."""
    for place, kind in (("2/old", 2), ("2/new", 2), ("3", 3), (".trash", 4)):
        folder = tmp_path / "photos" / place.replace(str(kind), KINDS[kind])
        folder.mkdir(parents=True)
        for number in range(3):
            name = f"{number}.jpg"
            (folder / name).write_bytes(demo_files(kind, [number + 3 * place.endswith("old")])[0])
    (tmp_path / "photos" / KINDS[3] / "notes.txt").write_text("no picture")
    return tmp_path / "photos"


def test_pictures_can_be_dropped_and_pasted(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    page.wait_for_selector("#try-input button")
    picture = demo_files(1, [9])[0]
    for how in ("dropped", "pasted"):
        drop(page, "#try-input", how, picture)
        page.wait_for_selector(f'.answer[data-file="{how}.jpg"][data-answer="{KINDS[1]}"]')
    for count, how in enumerate(("dropped", "pasted"), 1):
        page.locator(".card-name").first.click()  # pasted pictures go where one was last
        drop(page, "#cards .card", how, picture)
        until_count(page, "#cards .preview[data-state=ready]", count)
    assert page.locator(".answer").count() == 2


def test_folders_become_classes(taught: Server, visit: Visit, photos: Path) -> None:
    page = visit(taught)
    page.wait_for_selector("#cards .card")
    page.locator("#cards .card input[webkitdirectory]").first.set_input_files(photos)
    until_count(page, "#cards .card", 2)
    until_count(page, f'#cards [data-teach="{KINDS[2]}"] .preview', 6)  # with the folders in it
    until_count(page, f'#cards [data-teach="{KINDS[3]}"] .preview', 3)


def test_folders_can_be_dropped(taught: Server, visit: Visit, photos: Path) -> None:
    page = visit(taught)
    page.wait_for_selector("#cards .card")
    drop_from_disk(page, "#cards .card", [photos / KINDS[2], photos / KINDS[3]])
    until_count(page, f'#cards [data-teach="{KINDS[2]}"] .preview', 6)
    until_count(page, f'#cards [data-teach="{KINDS[3]}"] .preview', 3)
    page.get_by_role("button", name="Remove this class").first.click()
    until_count(page, "#cards .card", 1)
    (photos / "empty").mkdir()
    drop_from_disk(page, "#teach", [photos / "empty"])
    until_text(page, "#result", "No pictures were found in this folder.")
    assert page.locator("#cards .card").count() == 1
    drop_from_disk(page, "#try", [photos / KINDS[2] / "new"])
    until_count(page, ".answer:not([data-waiting])", 3)


def test_problems_are_shown_on_the_file(taught: Server, visit: Visit) -> None:
    """Each file has its own problem, and nothing is offered that cannot help."""
    page = visit(taught)
    page.wait_for_selector("#cards .card")
    card = page.locator("#cards .card").first
    for problems, pictures in ((1, [LETTER]), (3, [HEIC, EMPTY]), (4, [*files(0, range(2)), LETTER])):
        add_pictures(page, 0, pictures)
        until_count(page, "#cards .preview[data-state=failed]", problems)
    texts = [failed.inner_text() for failed in card.locator(".preview[data-state=failed]").all()]
    for text, part in zip(texts, ("not a picture", "HEIC and AVIF", "is empty", "not a picture"), strict=True):
        assert part in text
    until(page, lambda: "2 pictures, 4 cannot be used" in card.inner_text())
    assert card.get_by_role("button", name="Try again").count() == 0


def test_problems_are_shown_on_the_answer(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    page.wait_for_selector("#try-input button")
    for pictures in ([LETTER], [HEIC, EMPTY]):
        send_tries(page, pictures)
        page.wait_for_selector(f'.answer[data-file="{pictures[0]["name"]}"]:not([data-waiting])')
    for picture, part in ((LETTER, "not a picture"), (HEIC, "HEIC and AVIF"), (EMPTY, "is empty")):
        answer = page.locator(f'.answer[data-file="{picture["name"]}"]')
        assert part in answer.inner_text()
        assert answer.get_by_role("button", name="Try again").count() == 0
        assert answer.locator("form").is_hidden()


def test_a_failed_upload_is_tried_again(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    page.wait_for_selector("#cards .card")
    page.context.set_offline(True)
    add_pictures(page, 0, files(0, range(2)))
    until_count(page, "#cards .preview[data-state=failed]", 2)
    page.context.set_offline(False)
    page.locator("#cards").get_by_role("button", name="Try again").click()
    until_count(page, "#cards .preview[data-state=ready]", 2)
    visit.forgive("net::ERR_INTERNET_DISCONNECTED")


def test_pictures_that_were_left_out_say_why(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    page.wait_for_selector("#cards .card")
    name_card(page, 0, KINDS[3])
    add_pictures(page, 0, [*files(3, range(3)), file(3, 0)])
    learn(page)
    until_text(page, "#left-out", "Skipped: another picture is the same")
    assert page.evaluate("document.querySelector('#left-out img').naturalWidth > 0")
    taught.do(kind="undo")


def test_at_most_24_pictures_are_tried_at_once(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    page.wait_for_selector("#try-input button")
    send_tries(page, [file(kind, number) for kind in (0, 1) for number in range(13)])
    until_count(page, ".answer", 24)
    assert page.inner_text("#try-note") == "Only the first 24 of 26 pictures are tried at once."
    assert page.locator(".answer:visible").count() == 5
    page.get_by_role("button", name="Show 19 more answers").click()
    assert page.locator(".answer:visible").count() == 24
    until_count(page, ".answer[data-waiting]", 0)
    send_tries(page, [file(1, 15)])
    page.wait_for_selector(f'.answer[data-file="{KINDS[1]} 15.jpg"][data-answer="{KINDS[1]}"]')
    assert page.locator(".answer").count() == 24
    assert page.inner_text("#try-note") == ""


def test_a_drop_on_a_card_ends_the_highlight(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    page.wait_for_selector("#cards .card")
    hover = """() => {
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File(["x"], "a.jpg", {type: "image/jpeg"}));
        document.querySelector("#cards .card").dispatchEvent(new DragEvent("dragenter", {dataTransfer, bubbles: true}));
        return document.querySelectorAll("[data-over]").length;
    }"""
    assert page.evaluate(hover) >= 2  # the card, and the column around it
    drop(page, "#cards .card", "dropped", demo_files(0, [0])[0])
    assert page.locator("[data-over]").count() == 0
    page.wait_for_selector("#cards img")
