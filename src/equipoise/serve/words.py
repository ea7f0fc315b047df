"""Messages for the page, in place of those written for the command line.

Users of the page never open a terminal, so no message names a command or an option. The page says picture instead of
image, and does not show where the model is stored.
"""

from __future__ import annotations

import re
from pathlib import Path

from equipoise.core.open_dir import printable

ASK = "ask whoever runs this page to install it"
SENTENCES = {
    r"the model (?:holds no model|does not exist).*": "there is no model: teach it some classes first",
    r"the model has no earlier version to go back to": "there is no earlier version to go back to",
    r"the model has no earlier version to go back to, because .*": (
        "there is no earlier version to go back to, because forgetting a class removes them all"
    ),
    r"cannot load the model in the model \((.*?)(?:: pip install .*)?\): .*": (
        rf"cannot load the model (\1): restore it from a copy, or {ASK.replace('it', 'what it needs')}"
    ),
    r"these are all classes of the model: .*": "these are all classes: start again instead, in the history",
    r"(class '.*' is already known.*): pass --extend .*": r"\1: add the pictures to it, or choose another name",
    r"cannot add images to (class '.*'), because .*": (
        r"cannot add pictures to \1, because this model keeps no pictures: only a new model can learn more of it"
    ),
    r"(?:several images begin|no image begins) with .*": (
        "these pictures are no longer in the model: open the class again"
    ),
    r"all of these images are held out for evaluation: .*": (
        "all of these pictures are used only for testing: also move other pictures of their class"
    ),
    r"this model has labels such as (.*), but the folder is called ('.*'): .*": (
        r"\2 cannot be the name of a class in this model: choose a name like \1"
    ),
    r"('.*') is what `equipoise sort` calls .*": r"\1 cannot be the name of a class: choose another name",
    r"there are no exemplars of ('.*'), so it would be forgotten: .*": (
        r"this model is a copy without its pictures and would forget \1: use the original model"
    ),
    r"the features of this model were computed with (.*), which is not installed here: .*": (
        rf"this model needs \1, which is not installed here: {ASK}"
    ),
    r"(.*)the pretrained weights of (.*) are not installed: .*": (
        rf"\1the pretrained weights of \2 are not installed: {ASK}"
    ),
    r"an ONNX export needs the package (.*): .*": (
        rf"an ONNX file needs the package \1, which is not installed here: download the whole model, or {ASK}"
    ),
    r"(.*) needs the package (.*): .*": rf"\1 needs the package \2, which is not installed here: {ASK}",
    r"this model was trained on (.*), not on image files: .*": (
        r"this model was trained on \1, not on pictures: choose another one"
    ),
    r"another process is writing to the model: .*": "another program is changing the model: try again in a moment",
    r"cannot read the upload.* as an image .*": "the picture can no longer be read: upload it again",
    r"(.*): restore it from a copy, or go back with `equipoise undo`": (
        r"\1: undo the last step, or restore it from a copy"
    ),
    r"(the features of .* do not separate these classes well); with this many images, .*": (
        r"\1: pictures that show the difference better may help"
    ),
}
"""Messages of ``app`` as regular expressions, tried in this order, and their replacements."""
COMMAND = re.compile(r"`(?:equipoise |learn`)|(?<!\S)--[a-z]|\bpip install\b")
ADVICE = re.compile(
    r"(?P<name>.*): (?P<count>[\d,]+) image(?P<middle>s?, sometimes predicted as .*; more )images(?P<end> of .*)"
)


def for_the_page(text: str) -> str:
    """Return the page's version of a message that was written for the command line."""
    for pattern, words in SENTENCES.items():
        if found := re.fullmatch(pattern, text, re.DOTALL):
            return found.expand(words)
    if found := ADVICE.fullmatch(text):  # names of classes are not quoted in it
        return "{name}: {count} picture{middle}pictures{end}".format(**found.groupdict())
    while COMMAND.search(text) and ": " in text:
        text = text.rpartition(": ")[0]
    return pictures(text).replace("`", "'")


def pictures(text: str) -> str:
    """Replace the word image with picture, except within the quoted name of a class."""
    return re.sub(r"'[^']*'|\bimage(?=s?\b)", lambda found: "picture" if found[0] == "image" else found[0], text)


def percent(value: float) -> str:
    """Format a percentage as the page does.

    >>> percent(97.46), percent(100.0)
    ('97.5 %', '100 %')
    """
    return f"{value:.1f}".removesuffix(".0") + " %"


def without_paths(text: str, model: Path, folder: Path | None = None) -> str:
    """Replace the directories of the model and of uploaded pictures: clients need not know where they are."""
    for path, name in ((model, "the model"), (folder, "the upload")):
        if path is not None and path != path.parent:
            shown = "|".join(re.escape(form) for form in {str(path), printable(path)})
            text = re.sub(rf"(?:{shown})(?![\w-])", name, text)
    return text
