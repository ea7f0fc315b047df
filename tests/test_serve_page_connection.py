"""The page of `equipoise serve` when the server, its token, the connection or the model changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from equipoise.serve.demo import KINDS
from equipoise.serve.limits import STREAMS
from tests.pages import Page
from tests.serving import Server, serving
from tests.visiting import (
    Visit,
    add_pictures,
    check_accessible,
    class_names,
    file,
    files,
    learn,
    name_card,
    pictures_kept,
    send_tries,
    try_pictures,
    until,
    until_count,
    until_text,
    visiting,
)

pytest.importorskip("fastapi", reason="the extra serve is not installed")
TOKENS = ("a+long&secret=token", "another-token%41#1")
"""Characters that mean something else in an address."""
SHOW = """value => {
    Object.defineProperty(document, 'hidden', {value, configurable: true});
    document.dispatchEvent(new Event('visibilitychange'));
}"""
REFUSED = ("net::ERR_CONNECTION_REFUSED", "net::ERR_CONNECTION_RESET", "net::ERR_INCOMPLETE_CHUNKED_ENCODING")


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    with visiting(browser) as visitor:
        yield visitor


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Server]:
    """A server without a model; name it before ``visit``, so that pages are closed first."""
    with serving(tmp_path / "model") as server:
        yield server


@pytest.fixture
def renamed(taught: Server) -> Iterator[Callable[[str], None]]:
    """Return a function that gives the second class another name; all such changes are undone in the end."""
    names = [KINDS[1]]

    def rename(name: str) -> None:
        taught.do(kind="rename", name=names[-1], to=name)
        names.append(name)

    yield rename
    for _ in names[1:]:
        taught.do(kind="undo")


def requests_of(page: Page) -> list[str]:
    """Return a list of what the page asks for from now on."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(f"{request.method} {request.url.partition('/api/')[2]}"))
    return asked


def hold(page: Page, address: str) -> list[Any]:
    """Hold requests back; return a list of them."""
    held: list[Any] = []
    page.route(address, lambda route: held.append(route))
    return held


def give_token(page: Page, token: str) -> None:
    page.fill("#token", token)
    page.click("#token-dialog button[type=submit]")


def test_the_page_asks_for_the_token_and_survives_a_restart(visit: Visit, tmp_path: Path) -> None:
    with serving(tmp_path / "model", token=TOKENS[0]) as server:
        page = visit(server, url=server.link)
        page.wait_for_selector("#cards .card")
        assert "token" not in page.url
        page = visit(server, before=lambda page: page.clock.install())
        page.wait_for_selector("#token")
        check_accessible(page)
        asked = requests_of(page)
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # the tab was left and shown again
        page.wait_for_timeout(200)
        assert asked == []
        give_token(page, "a wrong guess")
        until_text(page, "#token-dialog [role=alert]", "The token is wrong: ")
        give_token(page, TOKENS[0])
        page.wait_for_selector("#cards .card")
        visit.forgive("status of 401")
    page.wait_for_selector("#offline:not([hidden])")
    with serving(tmp_path / "model", "--port", server.port, token=TOKENS[0]) as server:
        page.wait_for_selector("#offline", state="hidden")
        server.learn([0, 1], range(2))
        page.wait_for_selector("#class-list [data-class]")
    with serving(tmp_path / "model", "--port", server.port, token=TOKENS[1]) as server:  # as --token auto does
        page.wait_for_selector("#token")
        assert page.is_hidden("#offline")
        assert visit(server, url=server.link).locator("#class-list [data-class]").first.text_content()
        asked = requests_of(page)
        page.clock.run_for(20_000)
        assert asked == []  # nothing will change before the token is given
        give_token(page, TOKENS[1])
        until_count(page, "#token-dialog", 0)
        until(page, lambda: "GET events" in asked)
        server.do(kind="rename", name=KINDS[0], to="renamed")
        until(page, lambda: "renamed" in class_names(page))
        visit.close()
    visit.forgive("status of 401", *REFUSED)


def test_a_page_that_cannot_follow_asks_now_and_then(fresh: Server, visit: Visit) -> None:
    with httpx.Client(base_url=fresh.url, limits=httpx.Limits(max_connections=None)) as client:
        streams = [client.stream("GET", "/api/events") for _ in range(STREAMS)]
        for stream in streams:
            stream.__enter__()
        page = visit(fresh)
        page.wait_for_selector("#cards .card")
        for kind in range(2):
            name_card(page, kind, KINDS[kind])
            add_pictures(page, kind, files(kind, range(3)))
        learn(page)
        assert page.is_hidden("#offline")
        for stream in streams:
            stream.__exit__(None, None, None)
    visit.forgive("status of 503")
    assert visit.messages == []
    asked = requests_of(page)
    until(page, lambda: "GET events" in asked)
    visit.forgive("status of 503")


def test_a_hidden_page_uses_no_connection_and_catches_up(fresh: Server, visit: Visit) -> None:
    """All tabs of a browser share six connections to a server."""
    page = visit(fresh)
    fresh.learn([0, 1], range(3))
    page.wait_for_selector(f'#class-list [data-class="{KINDS[0]}"]')
    page.evaluate(SHOW, True)
    fresh.finish(kind="rename", name=KINDS[0], to="renamed")
    page.wait_for_timeout(300)
    assert "renamed" not in class_names(page)
    page.evaluate(SHOW, False)
    until(page, lambda: "renamed" in class_names(page))
    assert page.is_hidden("#offline")


def test_answers_come_after_the_server_was_away(visit: Visit, tmp_path: Path) -> None:
    with serving(tmp_path / "model") as server:
        server.learn([0, 1], range(3))
        page = visit(server)
        page.wait_for_selector("#try-input button")
        try_pictures(page, files(0, [9]))
        name_card(page, 0, KINDS[2])
        add_pictures(page, 0, files(2, range(3)))
        until_count(page, ".preview[data-state=ready]", 3)
    page.wait_for_selector("#offline:not([hidden])")
    answer = try_pictures(page, files(1, [9]))
    assert "cannot be reached" in answer.inner_text()
    assert answer.get_by_role("button", name="Try again").is_visible()
    with serving(tmp_path / "model", "--port", server.port) as server:
        page.wait_for_selector(f'.answer[data-answer="{KINDS[1]}"]')
        assert page.locator(".answer .problem:not(:empty)").count() == 0
        asked = requests_of(page)
        server.do(kind="rename", name=KINDS[0], to="renamed")
        page.wait_for_selector('.answer[data-answer="renamed"]')
        # the server has lost the first picture, so it was sent again; the second one was not
        assert asked.count("POST pictures/predict") == 1
        assert asked.count("POST predict?top=5&keep=true&partial=true") == 1
        learn(page)  # the pictures to be learned are lost, too
        assert {one["name"]: one["images"] for one in server.get("/api/classes")}[KINDS[2]] == 3
        visit.close()
    visit.forgive("status of 404", *REFUSED)


def test_a_failed_answer_can_be_asked_for_again(taught: Server, visit: Visit) -> None:
    page = visit(taught)
    page.wait_for_selector("#try-input button")
    page.context.set_offline(True)
    answer = try_pictures(page, files(1, [9]))
    assert "cannot be reached" in answer.inner_text()
    assert answer.get_by_label("What is it?").count() == 0
    page.context.set_offline(False)
    answer.get_by_role("button", name="Try again").click()
    page.wait_for_selector(f'.answer[data-answer="{KINDS[1]}"]')
    assert answer.get_by_role("button", name="Try again").count() == 0
    assert "cannot be reached" not in answer.inner_text()
    assert page.evaluate("document.activeElement.matches('.answer')")
    until_text(page, "#try-status", f"{KINDS[1]} 9.jpg: {KINDS[1]}, ")
    visit.forgive("net::ERR_INTERNET_DISCONNECTED")


def test_another_version_is_asked_about_kept_pictures(
    taught: Server, visit: Visit, renamed: Callable[[str], None]
) -> None:
    page = visit(taught)
    page.wait_for_selector("#try-input button")
    answer = try_pictures(page, files(1, [9]))
    page.route("**/predict*", lambda route: route.abort(), times=1)
    renamed("first")
    until(page, lambda: "cannot be reached" in answer.inner_text())
    assert answer.get_attribute("data-answer") == KINDS[1]  # still shown, beside the problem
    asked = requests_of(page)
    renamed("second")
    page.wait_for_selector('.answer[data-answer="second"]')
    assert "cannot be reached" not in answer.inner_text()
    assert f"before: {KINDS[1]}" in answer.inner_text()
    assert [one for one in asked if "predict" in one] == ["POST pictures/predict"]
    visit.forgive("net::ERR_FAILED")


def test_a_late_answer_of_an_older_version_is_asked_again(
    taught: Server, visit: Visit, renamed: Callable[[str], None]
) -> None:
    page = visit(taught)
    page.wait_for_selector("#try-input button")
    held = hold(page, "**/api/predict*")
    send_tries(page, [file(1, 9)])
    until(page, lambda: bool(held))
    late = held[0].fetch()
    assert late.json()["predictions"][0]["predictions"][0]["class"] == KINDS[1]
    renamed("newer")
    until(page, lambda: "newer" in class_names(page))
    held[0].fulfill(response=late)
    page.wait_for_selector('.answer[data-answer="newer"]')


def test_no_picture_stays_on_the_server(visit: Visit, tmp_path: Path) -> None:
    with serving(tmp_path / "model") as server:
        server.learn([0, 1, 2], range(6))
        assert pictures_kept(server) == 0
        page = visit(server)
        page.wait_for_selector("#try-input button")
        held = hold(page, "**/api/predict*")
        send_tries(page, [file(1, 9)])
        until(page, lambda: bool(held))
        page.click(".answer .icon")  # removed while it is asked about
        late = held[0].fetch()
        assert pictures_kept(server) == 1
        held[0].fulfill(response=late)
        until(page, lambda: pictures_kept(server) == 0)
        page.unroute("**/api/predict*")
        for count in (1, 2):
            send_tries(page, [file(3, 9)])  # the same one twice
            until_count(page, ".answer[data-unknown]", count)
        until_count(page, ".tray .thumb", 1)
        for count in (1, 0):
            page.locator(".answer .icon").first.click()
            until_count(page, ".answer", count)
        until(page, lambda: pictures_kept(server) == 1)
        assert page.locator(".tray .thumb").count() == 1
        visit.close()
