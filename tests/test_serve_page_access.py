"""The page of `equipoise serve` for people who use no mouse, or no screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.app.model_dir import ModelDir
from equipoise.serve.demo import KINDS
from tests.pages import Page
from tests.serving import Server, serving
from tests.visiting import (
    Visit,
    add_pictures,
    check_accessible,
    class_names,
    confirm,
    file,
    files,
    has_focus,
    learn,
    name_card,
    open_class,
    send_tries,
    try_pictures,
    until,
    until_count,
    until_text,
    visiting,
    wrong_file,
)

pytest.importorskip("fastapi", reason="the extra serve is not installed")


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    with visiting(browser) as visitor:
        yield visitor


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "model") as server:
        yield server


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(200):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {selector}")


def press(page: Page, selector: str) -> None:
    """Press a button with the keyboard."""
    tab_to(page, selector)
    page.keyboard.press("Enter")


def type_into(page: Page, selector: str, text: str) -> None:
    tab_to(page, selector)
    page.keyboard.type(text)


def choose(page: Page, selector: str, pictures: list[dict[str, Any]]) -> None:
    """Open a file chooser with the keyboard."""
    choosers: list[Any] = []
    page.once("filechooser", lambda chooser: choosers.append(chooser))  # before Tab: catching takes a moment to begin
    press(page, selector)
    until(page, lambda: bool(choosers))
    choosers[0].set_files(pictures)


def test_everything_works_by_keyboard(fresh: Server, visit: Visit) -> None:
    page = visit(fresh)
    page.wait_for_selector("#cards .card >> nth=1")
    press(page, "#add-card")
    taught = [files(0, range(6)), files(1, range(6)), [*files(3, range(6)), *files(4, range(4))]]
    for place, kind in enumerate((0, 1, 3)):
        card = f"#cards .card:nth-child({place + 1})"
        type_into(page, f"{card} .card-name", KINDS[kind])
        choose(page, f"{card} .chooser:first-child button", taught[place])
    page.wait_for_selector("#learn[aria-disabled=false]")
    press(page, "#learn")
    page.wait_for_selector("#result[data-kind=done]:not(:empty)")
    until(page, lambda: len(class_names(page)) == 3)

    choose(page, "#try-input button", files(5, [9]))  # a fourth kind, named from the tray
    page.wait_for_selector(".answer[data-unknown]")
    page.wait_for_selector(".tray-group")
    type_into(page, ".tray-group input", KINDS[5])
    page.keyboard.press("Enter")
    page.wait_for_selector(f'.answer[data-answer="{KINDS[5]}"]')
    until(page, lambda: page.evaluate("document.activeElement.id") == "tray-title")  # its group is gone

    choose(page, "#try-input button", files(4, [9]))  # a wrong answer, corrected
    wrong = f'.answer[data-file="{KINDS[4]} 9.jpg"]'
    page.wait_for_selector(f'{wrong}[data-answer="{KINDS[3]}"]')
    type_into(page, f"{wrong} form input", KINDS[4])
    press(page, f"{wrong} form button")
    page.wait_for_selector(f'{wrong}[data-answer="{KINDS[4]}"]')
    until_text(page, f"{wrong} .form-status", "Learned as")
    assert has_focus(page, wrong)

    press(page, "#history-open")
    until_count(page, "#history .entry", 3)
    press(page, "#undo")
    page.wait_for_selector("#confirm")
    press(page, "#confirm [data-yes]")
    until_count(page, "#history .entry", 2)
    assert has_focus(page, "#undo")
    page.keyboard.press("Escape")
    until(page, lambda: has_focus(page, "#history-open"))
    until(page, lambda: sorted(class_names(page)) == sorted(KINDS[i] for i in (0, 1, 3, 5)))


def test_the_camera_records_while_a_key_is_held(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    page.wait_for_selector("#cards .card")
    press(page, "#cards [data-camera]")
    until(page, lambda: page.evaluate("document.querySelector('#cards video').videoWidth > 0"))
    tab_to(page, "[data-hold]")
    page.keyboard.down(" ")
    until_count(page, ".preview", 3)
    page.keyboard.up(" ")
    page.wait_for_selector("[data-hold]:not([data-recording])")
    check_accessible(page)
    press(page, "#cards .viewfinder .quiet:last-child")
    assert has_focus(page, "#cards [data-camera]")
    press(page, "#try [data-camera]")
    page.wait_for_selector("#live .bar-name:not(:empty)")
    check_accessible(page)


def test_dialogs_are_accessible(taught: Server, visit: Visit) -> None:
    page = visit(taught, scheme="dark")
    page.click("#history-open")
    check_accessible(page)
    page.click("#history [data-help=step]")
    page.wait_for_selector("#help:popover-open")
    check_accessible(page)
    page.keyboard.press("Escape")
    assert page.is_visible("#history")
    page.click("#start-again")
    check_accessible(page)
    assert page.evaluate("document.activeElement.matches('[data-no]')")  # nothing is deleted by one key too many
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    until_count(page, "dialog", 0)
    open_class(page, KINDS[0])
    page.wait_for_selector("#class-dialog .thumb img")
    page.locator("#class-dialog .thumb").first.click()
    check_accessible(page)


def test_a_job_that_waits_is_cancelled_by_key(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    page.wait_for_selector("#cards .card")
    name_card(page, 0, KINDS[3])
    add_pictures(page, 0, files(3, range(3)))
    with ModelDir(taught.model).writing():  # as another process does that changes the model
        page.wait_for_selector("#learn[aria-disabled=false]")
        press(page, "#learn")
        until_text(page, ".progress-text", "waiting for another process")
        check_accessible(page)
        press(page, "#cancel")
        until_text(page, "#result", "Cancelled. Nothing was changed.")
    assert has_focus(page, "#learn")
    assert page.locator("#cards .preview").count() == 3  # can be learned later
    learn(page)
    taught.do(kind="undo")


def test_progress_is_counted(taught: Server, visit: Visit) -> None:
    watch = """addEventListener("DOMContentLoaded", () => {
        window.said = [];
        new MutationObserver(() => window.said.push(document.querySelector("#learn-progress").textContent))
            .observe(document.querySelector("#learn-progress"), {subtree: true, childList: true, characterData: true});
    })"""
    page = visit(taught, before=lambda page: page.add_init_script(watch))
    page.wait_for_selector("#cards .card")
    name_card(page, 0, KINDS[3])
    add_pictures(page, 0, files(3, range(12)))
    learn(page)
    assert any("of 12" in text for text in page.evaluate("window.said"))
    taught.do(kind="undo")


def test_failures_are_read_out(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    page.wait_for_selector("#cards .card")
    letter = wrong_file("letter.jpg", b"Dear reader")
    add_pictures(page, 0, [file(0, 0), letter])
    said = page.get_by_role("status").filter(has_text="1 picture, 1 cannot be used")
    said.wait_for()
    assert said.get_attribute("aria-busy") == "false"
    send_tries(page, [letter, file(1, 9)])
    until_text(page, "#try-status", "letter.jpg: This is not a picture")
    assert f"{KINDS[1]} 9.jpg: {KINDS[1]}, " in page.inner_text("#try-status")
    send_tries(page, [letter, *files(1, range(9, 13))])
    until_text(page, "#try-status", "4 answers, 1 picture without an answer")


def test_learn_says_what_is_missing(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    page.wait_for_selector("#cards .card")
    name_card(page, 0, KINDS[3])
    press(page, "#learn")
    assert page.get_by_role("status").filter(has_text=f"Add pictures of {KINDS[3]}.").is_visible()
    assert has_focus(page, "#cards .drop button")
    assert page.inner_text("#missing") == ""  # not the same sentence twice
    held: list[Any] = []
    page.route("**/api/pictures*", lambda route: held.append(route))
    add_pictures(page, 0, files(3, range(3)))
    until(page, lambda: bool(held))
    press(page, "#learn")
    assert page.inner_text("#result") == "Sending pictures: 3 pictures to go."
    assert has_focus(page, "#learn")  # nothing can be done but wait
    held[0].continue_()
    page.wait_for_selector("#learn[aria-disabled=false]")
    assert page.inner_text("#result") == ""


def test_the_focus_is_never_lost(taught: Server, visit: Visit) -> None:
    taught.learn([4, 5], range(4))
    page = visit(taught)
    press(page, "#download-open")
    with page.expect_download() as download:
        press(page, "[data-export=directory]")
    assert download.value.suggested_filename == "my-model.zip"
    assert has_focus(page, "[data-export=directory]")
    page.keyboard.press("Escape")

    press(page, f'#class-list [data-class="{KINDS[4]}"] button')
    page.wait_for_selector("#class-dialog .thumb img")
    press(page, "#class-dialog .thumb")
    type_into(page, "#class-dialog .moving input", KINDS[5])
    page.keyboard.press("Enter")
    until_count(page, "#class-dialog .thumb", 3)
    until_text(page, "#class-dialog", "Moved 1 ")
    assert has_focus(page, "#class-dialog")
    press(page, "#class-dialog [data-forget]")
    press(page, "#confirm [data-yes]")
    until_count(page, "#class-dialog", 0)
    until_count(page, f'[data-class="{KINDS[4]}"]', 0)
    assert has_focus(page, "#classes")

    answer = try_pictures(page, files(5, [9]))
    with ModelDir(taught.model).writing():
        type_into(page, ".answer form input", "something")
        press(page, ".answer form button")
        until_text(page, ".answer .progress-text", "waiting for another process")
        press(page, ".answer [data-cancel]")
        until(page, lambda: "Cancelled" in answer.inner_text())
    assert has_focus(page, ".answer form")
    open_class(page, KINDS[5])
    page.click("#class-dialog [data-forget]")
    confirm(page)
    until(page, lambda: sorted(class_names(page)) == sorted(KINDS[:3]))


def test_jobs_of_other_windows_keep_the_focus(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    page.wait_for_selector("#class-list [data-class]")
    with ModelDir(taught.model).writing():
        job = taught.start(kind="rename", name=KINDS[0], to="renamed")
        press(page, "#notice [data-cancel]")
        until_text(page, "#notice", "Cancelled")
    assert taught.get(f"/api/jobs/{job}")["state"] == "cancelled"
    assert has_focus(page, "#notice button")
    page.keyboard.press("Enter")
    assert has_focus(page, "#main")
