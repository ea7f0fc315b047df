"""Helpers for tests of the page of `equipoise serve`: what a person does in a browser."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from equipoise.serve.demo import KINDS
from tests.pages import Page
from tests.serving import Server, demo_files

SECONDS = 20_000
"""Milliseconds to wait for something to appear."""
DROP = """([target, kind, data]) => {
    const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], `${kind}.jpg`, {type: "image/jpeg"}));
    const event = kind === "pasted"
        ? new ClipboardEvent("paste", {clipboardData: transfer, bubbles: true})
        : new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true});
    document.querySelector(target).dispatchEvent(event);
}"""
LOGGED = re.compile(r"Failed to load resource: .*(?P<kind>status of \d+|net::\w+)")
"""What Chromium logs about a request that failed."""


class Visit:
    """Opens the page of a server, and remembers what the browser logs and asks for."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.messages: list[str] = []
        self.elsewhere: list[str] = []
        self.contexts: list[Any] = []

    def __call__(
        self,
        server: Server,
        width: int = 1280,
        scheme: str = "light",
        url: str | None = None,
        before: Callable[[Page], Any] | None = None,
    ) -> Page:
        """Open the page of a server; ``before`` is called before it is loaded."""
        screen = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "reduced_motion": "reduce"}
        context = self.browser.new_context(**screen, permissions=["camera"])
        context.set_default_timeout(SECONDS)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("request", lambda request: self._check(server, request.url))
        if before is not None:
            before(page)
        page.goto(url or server.url)
        return page

    def close(self) -> None:
        """Close all pages."""
        for context in self.contexts:
            context.close()
        self.contexts.clear()

    def forgive(self, *kinds: str) -> None:
        """Forget what Chromium itself logged about requests that were meant to fail, such as ``status of 401``."""
        found = [LOGGED.match(text) for text in self.messages]
        self.messages = [
            text
            for text, match in zip(self.messages, found, strict=True)
            if match is None or match["kind"] not in kinds
        ]

    def _check(self, server: Server, url: str) -> None:
        if not url.startswith((server.url, f"blob:{server.url}")):
            self.elsewhere.append(url)


@contextmanager
def visiting(browser: Any) -> Iterator[Visit]:
    """Return what opens pages; they may not log anything, or ask another server."""
    visitor = Visit(browser)
    yield visitor
    visitor.close()
    assert visitor.messages == [], visitor.messages
    assert visitor.elsewhere == [], visitor.elsewhere


def files(kind: int, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Return drawn pictures as playwright takes files."""
    return [
        {"name": f"{KINDS[kind]} {number}.jpg", "mimeType": "image/jpeg", "buffer": data}
        for number, data in zip(numbers, demo_files(kind, numbers), strict=True)
    ]


def file(kind: int, number: int) -> dict[str, Any]:
    """Return one drawn picture."""
    return files(kind, [number])[0]


def wrong_file(name: str, content: bytes) -> dict[str, Any]:
    """Return a file that claims to be a picture."""
    return {"name": name, "mimeType": "image/jpeg", "buffer": content}


def add_pictures(page: Page, card: int, pictures: list[dict[str, Any]]) -> None:
    page.locator("#cards .card").nth(card).locator("input[type=file]").first.set_input_files(pictures)


def name_card(page: Page, card: int, name: str) -> None:
    page.locator("#cards .card").nth(card).get_by_label("Name of the class").fill(name)


def press_learn(page: Page) -> None:
    """Press Learn when everything is sent."""
    page.wait_for_selector("#learn[aria-disabled=false]")
    page.click("#learn")


def learn(page: Page) -> None:
    """Learn, and wait for the result."""
    press_learn(page)
    page.wait_for_selector("#result[data-kind=done]:not(:empty)")


def send_tries(page: Page, pictures: list[dict[str, Any]]) -> None:
    page.locator("#try-input input[type=file]").first.set_input_files(pictures)


def try_pictures(page: Page, pictures: list[dict[str, Any]]) -> Any:
    """Try pictures; return the newest answer."""
    send_tries(page, pictures)
    page.wait_for_selector(f'.answer[data-file="{pictures[0]["name"]}"]:not([data-waiting])')
    return page.locator(".answer").first


def correct(answer: Any, name: str) -> None:
    """Say what a picture shows."""
    answer.locator("form input").fill(name)
    answer.locator("form button[type=submit]").click()


def drop(page: Page, target: str, how: str, data: bytes) -> None:
    """Drop a picture on an element, or paste it there."""
    page.evaluate(DROP, [target, how, base64.b64encode(data).decode()])


def drop_from_disk(page: Page, target: str, paths: Sequence[Path]) -> None:
    """Drop files and folders on an element, as a file manager does."""
    box = page.locator(target).first.bounding_box()
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    session = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, "x": box["x"] + 20, "y": box["y"] + 10, "data": data})


def open_class(page: Page, name: str) -> Any:
    """Open the dialog of a class."""
    page.click(f'#class-list [data-class="{name}"] button')
    page.wait_for_selector("#class-dialog")
    return page.locator("#class-dialog")


def confirm(page: Page) -> None:
    page.click("#confirm [data-yes]")


def until(page: Page, condition: Callable[[], bool]) -> None:
    """Wait for something in the page. (Playwright's own function needs eval, which the page forbids.)"""
    for _ in range(SECONDS // 50):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError("waited in vain")


def until_count(page: Page, selector: str, count: int) -> None:
    until(page, lambda: page.locator(selector).count() == count)


def until_text(page: Page, selector: str, text: str) -> None:
    """Wait until an element contains a text."""
    until(page, lambda: text in (page.locator(selector).first.text_content() or ""))


def has_focus(page: Page, selector: str) -> bool:
    """Return whether an element, or something in it, has the focus."""
    return bool(page.evaluate("selector => document.activeElement.closest(selector) !== null", selector))


def class_names(page: Page) -> list[str]:
    found: list[str] = page.eval_on_selector_all("#class-list [data-class]", "nodes => nodes.map(n => n.dataset.class)")
    return found


def pictures_kept(server: Server) -> int:
    """Return how many pictures the server keeps."""
    found = re.search(r"^equipoise_pictures_waiting (\S+)$", server.client.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return round(float(found[1]))


def empty_tray(server: Server) -> None:
    """Delete unknown pictures that other tests have left."""
    for group in server.get("/api/tray")["groups"]:
        for picture in group["pictures"]:
            server.client.delete(f"/api/pictures/{picture['id']}")


def check_width(page: Page, width: int) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def check_accessible(page: Page) -> None:
    """Run axe-core: nothing serious or critical."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed")
    found = axe.Axe().run(page).response["violations"]
    bad = [
        (one["id"], one["impact"], [node["target"] for node in one["nodes"]][:3])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert bad == [], bad
