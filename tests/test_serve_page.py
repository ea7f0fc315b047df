"""The page of `equipoise serve` in a real browser: taught, tried, corrected and undone as a person would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.serve.demo import KINDS
from tests.serving import Server, demo_files, serving, wait_until
from tests.visiting import (
    Visit,
    add_pictures,
    check_accessible,
    check_width,
    class_names,
    confirm,
    correct,
    empty_tray,
    file,
    files,
    learn,
    name_card,
    send_tries,
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


@pytest.fixture(scope="module")
def demo() -> Iterator[Server]:
    with serving(None, "--demo") as server:
        server.learn([0, 1, 2], range(6))
        yield server


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Server]:
    """A server without a model; name it before ``visit``, so that pages are closed first."""
    with serving(tmp_path / "model") as server:
        yield server


def test_three_classes_are_taught_and_a_fourth_is_named(fresh: Server, visit: Visit) -> None:
    page = visit(fresh)
    page.wait_for_selector("#cards .card >> nth=1")
    assert "first two classes" in page.inner_text("#teach-lead")
    check_accessible(page)
    page.click("#add-card")
    for kind in range(3):
        name_card(page, kind, KINDS[kind])
        add_pictures(page, kind, files(kind, range(6)))
    learn(page)
    assert f"accuracy {page.inner_text('#accuracy .value')} on" in page.inner_text("#result")
    until(page, lambda: sorted(class_names(page)) == sorted(KINDS[:3]))
    for kind in range(3):
        assert try_pictures(page, files(kind, [9])).get_attribute("data-answer") == KINDS[kind]

    for number in (9, 10, 11):
        assert try_pictures(page, files(3, [number])).get_attribute("data-unknown") is not None
    page.wait_for_selector(".tray-group")
    check_accessible(page)
    for _ in range(page.locator(".tray-group").count()):
        page.locator(".tray-group").first.locator("input").fill(KINDS[3])
        page.locator(".tray-group").first.get_by_role("button", name="Learn").click()
        page.wait_for_selector(f'.answer[data-answer="{KINDS[3]}"]')
        if page.locator(".tray-group").count() == 0:
            break
    page.wait_for_selector(f'#class-list [data-class="{KINDS[3]}"]')
    assert "learned" in page.inner_text("#tray-result").lower()
    assert try_pictures(page, files(3, [12])).get_attribute("data-answer") == KINDS[3]
    assert page.is_hidden("#tray")  # there is nothing below its heading

    answer = try_pictures(page, files(4, [3]))
    correct(answer, "something else")
    page.wait_for_selector('.answer[data-answer="something else"]')
    until(page, lambda: "Learned as something else" in answer.inner_text())  # said once the job has ended
    until(page, lambda: "something else" in class_names(page))

    page.click("#history-open")
    page.wait_for_selector("#history .entry")
    steps = page.locator("#history .entry").count()
    page.click("#undo")
    assert "This reverts “learned something else" in page.inner_text("#confirm")
    confirm(page)
    until_count(page, "#history .entry", steps - 1)
    until(page, lambda: page.evaluate("document.activeElement.closest('#history') !== null"))
    page.keyboard.press("Escape")
    until(page, lambda: "something else" not in class_names(page))
    assert [one["name"] for one in fresh.get("/api/classes")].count("something else") == 0


def test_a_wrong_answer_is_corrected(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    page.wait_for_selector("#cards .card")
    name_card(page, 0, KINDS[3])
    add_pictures(page, 0, [*files(3, range(6)), *files(4, range(4))])  # some of another kind are among them
    learn(page)
    answer = try_pictures(page, files(4, [9]))
    assert answer.get_attribute("data-answer") == KINDS[3]
    assert answer.get_by_label("Wrong? It is …").is_visible()
    correct(answer, KINDS[4])
    page.wait_for_selector(f'.answer[data-answer="{KINDS[4]}"]')
    until(page, lambda: f"Learned as {KINDS[4]}." in answer.inner_text())
    assert f"before: {KINDS[3]}" in answer.inner_text()
    taught.do(kind="undo")
    # the picture was learned, so the file is sent once more to ask about it
    page.wait_for_selector(f'.answer[data-answer="{KINDS[3]}"]')
    taught.do(kind="undo")
    page.wait_for_selector(".answer[data-unknown]")


def test_the_tray_takes_and_leaves_pictures(taught: Server, visit: Visit) -> None:
    empty_tray(taught)
    page = visit(taught)
    page.wait_for_selector("#try-input button")
    send_tries(page, files(3, [9, 10, 11]))
    until_count(page, ".answer[data-unknown]", 3)
    until_count(page, ".tray .thumb", 3)
    group = page.locator(".tray-group").first
    out = group.locator(".thumb").first
    left = page.locator(".tray .thumb").count() - 1
    out.click()
    assert out.get_attribute("aria-pressed") == "false"
    picture = out.get_attribute("data-picture")
    while page.locator('.tray .thumb[aria-pressed="true"]').count():
        chosen = page.locator('.tray-group:has(.thumb[aria-pressed="true"])').first
        chosen.locator("input").fill(KINDS[3])
        chosen.get_by_role("button", name="Learn").click()
        page.wait_for_selector("#tray-result:not(:empty)")
    assert {one["name"]: one["images"] for one in taught.get("/api/classes")}[KINDS[3]] == left
    # the one that was left out is known now, so it waits no more
    until_count(page, f'[data-picture="{picture}"]', 0)
    for _ in range(len(taught.get("/api/steps")) - 1):
        taught.do(kind="undo")
    until_count(page, ".tray .thumb", 3)  # nothing knows them now
    while page.locator(".tray-group").count():
        dismiss = page.locator(".tray-group").first.get_by_role("button", name="Dismiss")
        before = page.locator(".tray .thumb").count()
        dismiss.click()
        until(page, lambda: page.locator(".tray .thumb").count() < before)  # noqa: B023 - used at once
    until(page, lambda: page.is_hidden("#tray"))
    assert page.evaluate("document.activeElement.id") == "try"  # what had the focus is gone
    assert taught.get("/api/tray")["groups"] == []


def test_the_webcam_teaches_and_is_answered(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    page.wait_for_selector("#cards .card")
    card = page.locator("#cards .card").first
    name_card(page, 0, "test pattern")
    card.locator("[data-camera]").click()
    hold = card.locator("[data-hold]")
    until(page, lambda: page.evaluate("document.querySelector('#cards video').videoWidth > 0"))
    box = hold.bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    until(page, lambda: card.locator(".preview").count() >= 4)
    page.mouse.up()
    learn(page)
    page.locator("#try [data-camera]").click()
    until(page, lambda: page.locator("#live .bar-name").first.text_content() == "test pattern")
    correct(page.locator("#live"), "something live")
    page.wait_for_selector('#class-list [data-class="something live"]')
    taught.do(kind="undo")
    taught.do(kind="undo")


def test_a_camera_that_is_opened_again_asks_once_at_a_time(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    held: list[Any] = []
    asked, finished = 0, 0
    most = 0

    def count(route: Any) -> None:
        nonlocal asked, most
        asked += 1
        most = max(most, asked - finished)
        if len(held) < 1:
            held.append(route)
        else:
            route.continue_()

    def done(request: Any) -> None:
        nonlocal finished
        finished += "/api/predict" in request.url

    page.route("**/api/predict*", count)
    page.on("requestfinished", done)
    page.click("#try [data-camera]")
    until(page, lambda: bool(held))  # the first frame is on its way
    page.get_by_role("button", name="Close camera").click()
    page.click("#try [data-camera]")
    until(page, lambda: asked > 1)
    held[0].continue_()
    until(page, lambda: finished > 1)
    most = 0
    until(page, lambda: finished > 12)
    assert most == 1
    page.get_by_role("button", name="Close camera").click()


def test_without_a_camera_the_phone_takes_pictures(taught: Server, visit: Visit) -> None:
    """Browsers offer the webcam only on HTTPS and on this machine."""
    hide = "Object.defineProperty(navigator, 'mediaDevices', {value: undefined})"
    page = visit(taught, 390, before=lambda page: page.add_init_script(hide))
    page.wait_for_selector("#cards .card")
    assert page.locator("[data-camera]").count() == 0
    for column in ("#cards", "#try-input"):
        taken = page.locator(f"{column} .chooser", has_text="Take a picture").locator("input")
        assert taken.get_attribute("capture") == "environment"
    taken.set_input_files([file(1, 9)])
    page.wait_for_selector(f'.answer[data-answer="{KINDS[1]}"]')


def test_hostile_names_are_text_and_other_windows_follow(taught: Server, visit: Visit) -> None:
    name = '<img src=x onerror="alert(1)">"\'&amp; \u202egnp'
    pages = [visit(taught), visit(taught, 390, "dark")]
    for page in pages:
        page.wait_for_selector("#class-list [data-class]")
    name_card(pages[1], 0, "half written")
    plain = name.replace("\u202e", "")  # such characters reorder text, so names with them are refused
    taught.do(kind="rename", name=KINDS[0], to=plain)
    for page in pages:
        page.get_by_text(plain, exact=True).first.wait_for()
    assert pages[1].locator(".card-name").first.input_value() == "half written"
    command = [sys.executable, "-m", "equipoise", "rename", str(taught.model), KINDS[1], "ship"]
    subprocess.run(command, check=True, capture_output=True)
    for page in pages:
        page.wait_for_selector('#class-list [data-class="ship"]')
    assert try_pictures(pages[0], files(1, [9])).get_attribute("data-answer") == "ship"
    for page in pages:
        page.close()
    taught.do(kind="undo")
    taught.do(kind="undo")


def test_names_of_classes_break_only_where_they_must(taught: Server, visit: Visit) -> None:
    count_lines = """node => {
        const range = document.createRange();
        range.selectNodeContents(node);
        return range.getClientRects().length;
    }"""
    page = visit(taught, 390)
    page.wait_for_selector("#class-list [data-class]")
    answer = try_pictures(page, files(1, [9]))
    for name, width, lines in (("chrysanthemum", 390, {1}), ("x" * 100, 320, set(range(2, 20)))):
        page.set_viewport_size({"width": width, "height": 900})
        taught.do(kind="rename", name=taught.get("/api/classes")[1]["name"], to=name)
        until(page, lambda: answer.get_attribute("data-answer") == name)  # noqa: B023 - used at once
        assert answer.locator(".bar-name").first.evaluate(count_lines) in lines
        check_width(page, width)
    for _ in range(2):
        taught.do(kind="undo")


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (390, "dark"), (1280, "dark"), (1920, "light")])
def test_the_demo_fits_every_screen(demo: Server, visit: Visit, width: int, scheme: str) -> None:
    page = visit(demo, width, scheme)
    page.wait_for_selector("#demo .kind")
    page.wait_for_selector("#class-list [data-class]")
    check_width(page, width)
    check_accessible(page)
    page.locator(f'[data-kind="{KINDS[3]}"] [data-try]').first.click()
    page.wait_for_selector(".answer[data-unknown]")
    check_width(page, width)
    page.click("#download-open")
    check_accessible(page)
    check_width(page, width)


def test_the_demo_has_pictures_to_teach_and_to_try(demo: Server, visit: Visit) -> None:
    assert demo.get("/api/model")["demo"] is True
    assert [kind["name"] for kind in demo.get("/api/demo")["kinds"]] == list(KINDS)
    assert demo.client.get(f"/api/demo/{KINDS[0]}/1").content == demo_files(0, [1])[0]
    assert demo.client.get("/api/demo/nothing/1").status_code == 404
    page = visit(demo)
    teach = page.locator(f'[data-kind="{KINDS[4]}"]').get_by_role("button", name="Teach these")
    teach.wait_for()
    page.context.set_offline(True)
    teach.click()
    until_text(page, "#demo-hint", "cannot be reached")
    page.context.set_offline(False)
    teach.click()
    until_count(page, f'[data-teach="{KINDS[4]}"] .preview[data-state=ready]', 8)
    visit.forgive("net::ERR_INTERNET_DISCONNECTED")


def test_pictures_of_the_demo_that_do_not_come_are_fetched_later(demo: Server, visit: Visit) -> None:
    fail_once = "**/api/demo", lambda route: route.abort()
    page = visit(demo, before=lambda page: page.route(*fail_once, times=1))
    page.wait_for_selector("#class-list [data-class]")
    assert page.is_hidden("#demo")
    demo.do(kind="rename", name=KINDS[0], to="renamed")
    page.wait_for_selector("#demo .kind")
    demo.do(kind="undo")
    visit.forgive("net::ERR_FAILED")


def test_a_damaged_model_is_not_taught(tmp_path: Path, visit: Visit) -> None:
    place = tmp_path / "model"
    with serving(place) as server:
        server.learn([0, 1], range(3))
    config = (place / "config.json").read_bytes()
    (place / "config.json").write_bytes(config[:40])
    with serving(place) as server:
        page = visit(server)
        page.wait_for_selector(".message[data-kind=problem]")
        assert "The model cannot be opened: " in page.inner_text("#messages")
        assert page.inner_text("#state") == "Cannot be opened"
        assert page.is_hidden("#teach")
        (place / "config.json").write_bytes(config)
        page.wait_for_selector("#teach")
        assert sorted(class_names(page)) == sorted(KINDS[:2])
        (place / "config.json").write_bytes(config[:40])
        until_text(page, "#messages", "answers come from the previous one")
        assert page.is_visible("#teach")
        visit.close()


def test_classes_without_thumbnails_show_a_letter(tmp_path: Path, visit: Visit) -> None:
    for kind in range(2):
        (tmp_path / "photos" / KINDS[kind]).mkdir(parents=True)
        for number, data in enumerate(demo_files(kind, range(3))):
            (tmp_path / "photos" / KINDS[kind] / f"{number}.jpg").write_bytes(data)
    command = [sys.executable, "-m", "equipoise", "learn", "model", "photos", "--keep", "features"]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    with serving(tmp_path / "model") as server:
        page = visit(server)
        row = page.locator(f'#class-list [data-class="{KINDS[0]}"]')
        row.wait_for()
        assert row.locator(".mosaic[aria-hidden=true]").inner_text() == KINDS[0][0].upper()
        assert "Add more pictures: " in row.locator(".advice").inner_text()
        row.click()
        until_text(page, "#class-dialog", "This model keeps no pictures")
        visit.close()


def test_a_long_list_of_classes_is_filtered(taught: Server, visit: Visit) -> None:
    picture = taught.upload(demo_files(3, range(10)))
    taught.do(kind="learn", classes={f"kind {letter}": [picture[i]] for i, letter in enumerate("ABCDEFGHIJ")})
    page = visit(taught)
    page.get_by_label("Find a class").fill("KIND b")
    until(page, lambda: [name for name in class_names(page) if page.is_visible(f'[data-class="{name}"]')] == ["kind B"])
    assert page.inner_text("#filter-count") == "1 of 13 classes"
    page.get_by_label("Find a class").fill("nothing")
    until_text(page, "#filter-count", "No class with this name.")
    page.get_by_label("Find a class").fill("")
    assert page.inner_text("#filter-count") == ""
    taught.do(kind="undo")
    until(page, lambda: page.is_hidden("#filter-row"))
    wait_until(lambda: len(taught.get("/api/classes")) == 3)
