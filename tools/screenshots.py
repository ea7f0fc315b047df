"""Save what the page of `equipoise serve` looks like, to be looked at: on a desk and on a phone, light and dark.

    python tools/screenshots.py OUT                    # the demo, with its drawn pictures
    python tools/screenshots.py OUT --photos FOLDER    # also a model of photos: a folder per class, at least four

Three states: nothing learned yet; learned, with answers and an unknown picture in the tray; the history.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from equipoise.serve.demo import KINDS, PICTURES, draw

SCREENS = {"desk": 1280, "phone": 390}
SCHEMES = ("light", "dark")
TAUGHT = 8
"""Pictures of each class that are taught."""
HEIGHT = 900
LOADED = """[...document.images].every((one) => {
    const { left, right } = one.getBoundingClientRect();
    return one.complete || left >= innerWidth || right <= 0 || one.closest("[hidden]");
})"""
"""Whether all pictures have come; those beside the screen come when they are scrolled to."""
Classes = dict[str, list[Path]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory for the pictures")
    parser.add_argument("--photos", type=Path, help="a folder with a folder of photos per class")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        place = Path(temporary)
        with serving("--demo") as url:
            shoot(chromium, url, draw_classes(place / "drawn"), options.out, "demo")
        if options.photos:
            with serving(str(place / "my flowers")) as url:
                shoot(chromium, url, read_classes(options.photos), options.out, "photos")
        chromium.close()


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """Run `equipoise serve` on a free port; yield its address."""
    command = [sys.executable, "-m", "equipoise", "serve", *arguments, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline() if server.stdout else ""
            yield json.loads(line)["url"]
        finally:
            server.terminate()


def draw_classes(folder: Path) -> Classes:
    """Write the pictures of the demo to files."""
    folder.mkdir()
    classes: Classes = {}
    for kind in KINDS[:4]:
        classes[kind] = [folder / f"{kind} {number + 1}.jpg" for number in range(PICTURES)]
        for number, file in enumerate(classes[kind]):
            file.write_bytes(draw(kind, number))
    return classes


def read_classes(photos: Path) -> Classes:
    """List the photos of the first four classes."""
    folders = sorted(folder for folder in photos.iterdir() if folder.is_dir())[:4]
    return {folder.name: sorted(folder.iterdir()) for folder in folders}


def shoot(browser: Browser, url: str, classes: Classes, out: Path, name: str) -> None:
    """Save all states on all screens."""
    kinds = list(classes)
    screens = [(f"{name}-{{}}-{screen}-{scheme}.png", screen, scheme) for screen in SCREENS for scheme in SCHEMES]
    for file, screen, scheme in screens:
        with visiting(browser, url, screen, scheme) as page:
            page.wait_for_selector("#cards .card >> nth=1")
            save(page, out / file.format("empty"))
    with visiting(browser, url, "desk", "light") as page:
        teach(page, {kind: classes[kind][:TAUGHT] for kind in kinds[:2]})
        teach(page, {kinds[2]: classes[kinds[2]][: TAUGHT // 2]})
    for file, screen, scheme in screens:
        with visiting(browser, url, screen, scheme) as page:
            page.wait_for_selector("#try-input button")
            fill(page, 0, kinds[3], classes[kinds[3]][:TAUGHT])
            tried = [classes[kinds[2]][-1], classes[kinds[0]][-1], *classes[kinds[3]][-2:]]
            page.locator("#try-input input[type=file]").first.set_input_files(tried)
            page.wait_for_selector(f".answer:not([data-waiting]) >> nth={len(tried) - 1}")
            page.wait_for_selector(".tray-group .thumb")
            page.wait_for_selector("#learn[aria-disabled=false]")
            save(page, out / file.format("learned"))
            page.click("#history-open")
            save(page, out / file.format("history"), full_page=False)


@contextmanager
def visiting(browser: Browser, url: str, screen: str, scheme: Any) -> Iterator[Page]:
    """Open the page on a screen."""
    size: Any = {"width": SCREENS[screen], "height": HEIGHT}
    touch = screen == "phone"
    context = browser.new_context(
        viewport=size, color_scheme=scheme, reduced_motion="reduce", is_mobile=touch, has_touch=touch
    )
    page = context.new_page()
    page.goto(url)
    yield page
    context.close()


def teach(page: Page, classes: Classes) -> None:
    """Teach classes in one step."""
    for card, (kind, files) in enumerate(classes.items()):
        fill(page, card, kind, files)
    page.wait_for_selector("#learn[aria-disabled=false]")
    page.click("#learn")
    page.wait_for_selector("#result[data-kind=done]:not(:empty)")


def fill(page: Page, card: int, kind: str, files: list[Path]) -> None:
    """Name a class and give it pictures."""
    page.get_by_label("Name of the class").nth(card).fill(kind)
    page.locator("#cards .card").nth(card).locator("input[type=file]").first.set_input_files(files)


def save(page: Page, file: Path, full_page: bool = True) -> None:
    """Save what can be seen, or the whole page."""
    if full_page:  # on a screen that is as high, so that what stays at the bottom of the screen is there
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": page.viewport_size["width"], "height": height})  # type: ignore[index]
    while not page.evaluate(LOADED):
        page.wait_for_timeout(50)
    page.screenshot(path=file)
    page.set_viewport_size({"width": page.viewport_size["width"], "height": HEIGHT})  # type: ignore[index]
    print(file)


if __name__ == "__main__":
    main()
