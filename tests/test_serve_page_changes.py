"""What the page of `equipoise serve` changes: classes, the history, and the whole model."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.app.model_dir import ModelDir
from equipoise.serve.demo import KINDS
from tests.serving import Server, serving
from tests.visiting import (
    Visit,
    add_pictures,
    check_accessible,
    class_names,
    confirm,
    files,
    has_focus,
    learn,
    name_card,
    open_class,
    try_pictures,
    until,
    until_count,
    until_text,
    visiting,
)

pytest.importorskip("fastapi", reason="the extra serve is not installed")


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    with visiting(browser) as visitor:
        yield visitor


def test_a_class_is_renamed_moved_merged_and_forgotten(taught: Server, visit: Visit) -> None:
    taught.learn([4, 5], range(4))
    page = visit(taught)
    dialog = open_class(page, KINDS[4])
    page.wait_for_selector("#class-dialog .thumb img")
    page.locator("#class-dialog .thumb").first.click()
    page.locator("#class-dialog .moving input").fill(KINDS[5])
    page.locator("#class-dialog .moving button[type=submit]").click()
    until_count(page, "#class-dialog .thumb", 3)
    check_accessible(page)
    dialog.get_by_label("New name").fill(KINDS[4])
    dialog.get_by_role("button", name="Rename").click()
    dialog.get_by_text("The class already has this name.").wait_for()
    dialog.get_by_label("New name").fill("home")
    dialog.get_by_role("button", name="Rename").click()
    page.wait_for_selector('#class-list [data-class="home"]')
    until(page, lambda: dialog.get_by_role("heading").inner_text() == "home")
    dialog.get_by_label("Merge into another class").fill("home")
    dialog.get_by_role("button", name="Merge").click()
    dialog.get_by_text("Choose a different class.").wait_for()
    dialog.get_by_label("Merge into another class").fill(KINDS[5])
    dialog.get_by_role("button", name="Merge").click()
    confirm(page)
    until_count(page, "[data-class=home]", 0)
    open_class(page, KINDS[5])
    page.click("#class-dialog [data-forget]")
    confirm(page)
    until(page, lambda: sorted(class_names(page)) == sorted(KINDS[:3]))


def test_a_class_moves_with_its_last_picture(taught: Server, visit: Visit) -> None:
    taught.learn([4, 5], range(3))
    page = visit(taught)
    dialog = open_class(page, KINDS[4])

    def move_all(to: str) -> None:
        until_count(page, "#class-dialog .thumb[aria-pressed=false]", 3)
        for thumb in page.locator("#class-dialog .thumb").all():
            thumb.click()
        dialog.get_by_label("Move 3 pictures to …").fill(to)
        dialog.get_by_role("button", name="Move").click()

    move_all("something new")
    page.wait_for_selector('#class-list [data-class="something new"]')
    until(page, lambda: dialog.get_by_role("heading").inner_text() == "something new")
    move_all(KINDS[5])
    confirm(page)
    until_count(page, "#class-dialog", 0)
    until(page, lambda: {one["name"]: one["images"] for one in taught.get("/api/classes")}[KINDS[5]] == 6)
    for _ in range(3):
        taught.do(kind="undo")


def test_a_class_can_be_looked_at_while_it_is_renamed(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    dialog = open_class(page, KINDS[0])
    dialog.locator(".thumb img").first.wait_for()
    with ModelDir(taught.model).writing():
        dialog.get_by_label("New name").fill("home")
        dialog.get_by_role("button", name="Rename").click()
        until_text(page, "#class-dialog .progress:not([hidden])", "waiting for another process")
        assert dialog.get_by_role("heading").inner_text() == KINDS[0]
        dialog.locator("[data-forget]").click()
        assert "“home” and its 6 pictures" in page.inner_text("#confirm")
        page.click("#confirm [data-no]")
    until(page, lambda: dialog.get_by_role("heading").inner_text() == "home")
    taught.do(kind="undo")
    until_count(page, "#class-dialog", 0)  # nothing is called that now


def test_the_model_can_be_downloaded(taught: Server, visit: Visit, tmp_path: Path) -> None:
    page = visit(taught)
    page.click("#download-open")
    with page.expect_download() as download:
        page.click("[data-export=directory]")
    download.value.save_as(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as packed:
        assert "my-model/config.json" in packed.namelist()
    until_text(page, "#download", "Packed the whole model.")


def test_one_can_start_again(visit: Visit, tmp_path: Path) -> None:
    with serving(tmp_path / "model") as server:
        page = visit(server)
        page.wait_for_selector("#cards .card")
        assert page.is_hidden("#history-open")
        server.learn([0, 1], range(3))
        page.wait_for_selector("#class-list [data-class]")
        try_pictures(page, files(0, [9]))
        name_card(page, 0, KINDS[2])
        page.click("#history-open")
        assert page.get_attribute("#undo", "aria-disabled") == "true"  # the first step has nothing before it
        page.click("#undo", force=True)
        assert page.locator("#confirm").count() == 0
        page.click("#start-again")
        assert "2 classes with 6 pictures" in page.inner_text("#confirm")
        page.click("#confirm [data-no]")
        assert server.version is not None
        page.click("#start-again")
        confirm(page)
        until_count(page, "#history", 0)
        until_text(page, "#teach-lead", "Name your first two classes")
        page.wait_for_selector("#notice [data-kind=done]")
        assert has_focus(page, "#teach")
        assert server.version is None
        for button in ("#history-open", "#download-open", "#try-body"):
            assert page.is_hidden(button)
        assert page.locator(".answer, #class-list [data-class]").count() == 0
        assert page.locator(".card-name").first.input_value() == KINDS[2]  # what was begun stays
        for card, kind in enumerate((2, 3)):
            name_card(page, card, KINDS[kind])
            add_pictures(page, card, files(kind, range(3)))
        learn(page)
        until(page, lambda: sorted(class_names(page)) == sorted(KINDS[2:4]))
        visit.close()
