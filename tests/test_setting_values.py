"""Every setting rejects every bad value in one sentence, quickly; what it accepts can be used."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args

import pytest
import torch

from equipoise.core.config import convert, parse_value
from equipoise.core.ranges import Length, Range, check_value, field_hints, shown
from equipoise.data import sources
from equipoise.data.augment import Augment
from equipoise.data.memory import Memory
from equipoise.engine.recipes import parse_overrides, resolve
from equipoise.engine.settings import NetSettings, StreamSettings
from equipoise.errors import EquipoiseError, UsageError
from equipoise.learn.runtime import Runtime
from equipoise.learn.schedule import Schedule
from equipoise.methods.registry import lookup, registry
from tests.conftest import Ran

SECTIONS: dict[str, Any] = {
    "stream": StreamSettings,
    "memory": Memory,
    "net": NetSettings,
    "train": Schedule,
    "augment": Augment,
    "runtime": Runtime,
}
METHODS = sorted({next(iter(lookup(name)[0].variants)) for name in registry()})
NESTED: list[Any] = []
for _ in range(2000):
    NESTED = [NESTED]
BAD: dict[str, Any] = {
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "1e308": 1e308,
    "-1e308": -1e308,
    "1e-320": 1e-320,
    "-1": -1,
    "-0.5": -0.5,
    "0": 0,
    "0.5": 0.5,
    "10**23": 10**23,
    "-10**23": -(10**23),
    "10**5000": 10**5000,
    "2**63": 2**63,
    "none": None,
    "true": True,
    "string": "text",
    "digits": "9" * 5000,
    "empty string": "",
    "null": "a\0b",
    "surrogate": "\ud800",
    "empty list": [],
    "list": [10**23],
    "nan list": [math.nan],
    "mixed list": [1, "a", None],
    "nested": NESTED,
    "dict": {"a": 1},
    "long list": [1] * 200_000,
    "bytes": b"\xff",
}


def hints_of(section: str, method: str) -> Mapping[str, Any]:
    """Return the type hints of a section's settings."""
    kind: Any = lookup(method)[0] if section == "fields" else SECTIONS[section]
    return field_hints(kind)


def fields() -> list[tuple[str, str, str]]:
    """Return section, name and method of every setting."""
    plain = [(section, name, "wa") for section, cls in SECTIONS.items() for name in field_hints(cls)]
    return plain + [("fields", name, method) for method in METHODS for name in hints_of("fields", method)]


@pytest.mark.parametrize(("section", "name", "method"), fields(), ids=lambda value: str(value))
def test_every_setting_rejects_every_bad_value_in_one_sentence(section: str, name: str, method: str) -> None:
    for value in BAD.values():
        started = time.perf_counter()
        found = problem(lambda: resolve("digits", method, overrides={section: {name: value}}).identity())  # noqa: B023
        assert len(found) < 1000
        assert "\n" not in found
        assert time.perf_counter() - started < 2


@pytest.mark.parametrize("dataset", sources.SOURCES)
def test_every_option_of_a_dataset_rejects_every_bad_value(dataset: str) -> None:
    for name in sources.options(dataset):
        for value in BAD.values():
            found = problem(lambda: sources.resolve_options(dataset, {name: value}))  # noqa: B023
            assert len(found) < 1000


def problem(function: Callable[[], object]) -> str:
    """Return the message of our own error, or nothing; any other error fails the test."""
    try:
        function()
    except EquipoiseError as error:
        return str(error)
    return ""


def ranges() -> list[tuple[str, str, str]]:
    """Return the settings that are numbers, or lists of them."""
    return [
        (section, name, method)
        for section, name, method in fields()
        if {int, float} & set(numbers(hints_of(section, method)[name]))
    ]


def numbers(hint: Any) -> list[type]:
    """Return the types of numbers in a hint that have no range."""
    if hasattr(hint, "__metadata__"):
        inner = get_args(hint)[0]
        return [] if any(isinstance(limit, Range) for limit in hint.__metadata__) else numbers(inner)
    if hint in (int, float):
        return [hint]
    found = [kind for kind in get_args(hint) if not isinstance(kind, str | int | float)]
    return [number for kind in found for number in numbers(kind)]


def test_every_number_has_a_range() -> None:
    assert ranges() == []
    assert numbers(tuple[int, ...]) == [int]  # the test would find one


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        (0, Annotated[int, Range(1, 9)], "x must be between 1 and 9, got 0: raise it to 1"),
        (10, Annotated[int, Range(1, 9)], "x must be between 1 and 9, got 10: lower it to 9"),
        (
            0.0,
            Annotated[float, Range(0, 1, above=True)],
            "x must be above 0 and at most 1, got 0.0: use a number above 0",
        ),
        (1.0, Annotated[float, Range(0, 1, below=True)], "at least 0 and below 1, got 1.0: use a number below 1"),
        (math.nan, Annotated[float, Range(0, 1)], "x must be between 0 and 1, got nan: use a finite number"),
        (math.inf, float, "x must be a finite number, got inf"),
        (9, Annotated[int, Range(1, 5, why="the reason")], r"between 1 and 5 \(the reason\), got 9"),
        ((1, 9), Annotated[tuple[Annotated[int, Range(1, 5)], ...], Length(1, 2)], "x must be between 1 and 5, got 9"),
        ((1, 1, 1), Annotated[tuple[int, ...], Length(1, 2)], "x must have 1 to 2 values, got 3"),
        (7, Annotated[int, Range(1, 5)] | str | None, "x must be between 1 and 5, got 7"),
        ("a" * 5000, str, "x must have at most 4,096 characters"),
    ],
)
def test_an_error_names_the_range_and_the_remedy(value: Any, hint: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_value(value, hint, "x")


@pytest.mark.parametrize("value", [1, 9, 5])
def test_the_ends_of_a_range_are_in_it(value: int) -> None:
    check_value(value, Annotated[int, Range(1, 9)], "x")


def test_values_are_shown_on_one_short_line() -> None:
    for value in (10**5000, NESTED, "a\nb", "\ud800", [1] * 10**5):
        assert len(shown(value)) <= 80
        assert shown(value).isprintable()
    with pytest.raises(UsageError, match="x must be a whole number, got"):
        convert(NESTED, int, "x")


# ---- what was accepted, and failed later


@pytest.mark.parametrize("values", [{"mean": 1}, {"std": 1}, {"mean": [0, 0, 0], "std": [1, 2, 3]}])
def test_statistics_may_be_whole_numbers_and_single_values(values: dict[str, Any]) -> None:
    settings = resolve("digits", "wa", overrides={"augment": values})
    augment = dataclasses.replace(Augment(), **settings.augment)
    assert all(isinstance(value, float) for value in (*augment.mean, *augment.std))
    assert augment.normalise(torch.zeros((2, 3, 4, 4), dtype=torch.uint8)).isfinite().all()


@pytest.mark.parametrize("std", [1e-36, 1e36])
def test_the_ends_of_the_range_of_std_give_finite_images(std: float) -> None:
    augment = Augment(mean=(0.0,), std=(std,))
    assert augment.normalise(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)).isfinite().all()


def test_padding_is_limited_by_the_image() -> None:
    Augment(pad=8).check((1, 8, 8))
    with pytest.raises(UsageError, match=r"augment\.pad must be at most 8, the side of the images, got 9: lower it"):
        Augment(pad=9).check((1, 8, 8))


def test_epochs_are_not_counted_one_by_one() -> None:
    sizes = {"sizes": (0.5, 0.75, 1.0), "size_milestones": (0.3, 0.7)}
    started = time.perf_counter()
    assert Schedule(epochs=10**9, **sizes).pixels == pytest.approx(0.3 / 4 + 0.4 * 9 / 16 + 0.3)  # type: ignore[arg-type]
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("epochs", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("milestones", [(0.4, 0.7), (0.7, 0.4), (0.0, 1.0), (0.5, 0.5)])
def test_the_average_of_pixels_is_that_of_all_epochs(epochs: int, milestones: tuple[float, ...]) -> None:
    schedule = Schedule(epochs=epochs, sizes=(0.5, 0.75, 1.0), size_milestones=milestones)
    each = [schedule.size_at(epoch, 1000) / 1000 for epoch in range(epochs)]
    assert schedule.pixels == pytest.approx(sum(size**2 for size in each) / epochs)


# ---- command line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threads", "100000"], "runtime.threads must be between 1 and"),
        (["--threads", "9" * 23], "runtime.threads must be between 1 and"),
        (["--devices", "100000"], "runtime.devices must be between 1 and"),
        (["--nodes", "9" * 23], "runtime.nodes must be between 1 and"),
        (["--memory", "9" * 23], "memory.size must be between 0 and"),
        (["--epochs", "9" * 23], "train.epochs must be between 1 and"),
        (["--seed", "9" * 23], "seed must be between"),
        (["--steps", "9" * 23], "stream.steps must be between"),
        (["--steps", "9" * 5000], "must have at most 4,096 characters"),
        (["--steps", "9" * 4000], "cannot parse the steps"),
        (["--steps", ",".join(["1x100000"] * 400)], "cannot parse the steps"),
        (["--steps", "1x100000"], "add up to 100000"),
        (["--order", "9" * 5000], "must have at most 4,096 characters"),
        (["--order", "9" * 4000], "unknown class order"),
        (["--set", "net.input_size=" + "9" * 23], "net.input_size must be between 8 and"),
        (["--set", "train.lr=" + "9" * 5000], "train.lr must be above 0"),
        (["--set", "augment.std=1e308"], "augment.std must be between"),
        (["--backbone", "timm:hf-hub:a/b"], "is not the name of a timm network"),
        (["--backbone", "timm:a\nb"], "is not the name of a timm network"),
    ],
)
def test_values_on_the_command_line_fail_in_one_sentence(
    cli: Callable[..., Ran], options: list[str], message: str
) -> None:
    found = cli("run", "digits", *options)
    assert found.code == 2
    assert message in found.err
    assert len(found.err) < 2000


@pytest.mark.parametrize("option", ["--image-size", "--memory", "--epochs"])
def test_a_number_of_5000_digits_is_no_number_for_learn(cli: Callable[..., Ran], option: str, tmp_path: Any) -> None:
    (tmp_path / "photos").mkdir()
    found = cli("learn", tmp_path / "model", tmp_path / "photos", option, "9" * 5000)
    assert found.code == 2
    assert "must be a whole number or auto" in found.err


def test_numbers_of_other_scripts_are_numbers() -> None:
    assert parse_overrides(["train.epochs=٣"]) == {"train": {"epochs": 3}}


def test_rps_has_a_limit_for_all_of_its_modules_together() -> None:
    with pytest.raises(UsageError, match=r"method\.widths and method\.parallel give .* weights, more than"):
        resolve("digits", "rps", overrides={"fields": {"widths": [2048] * 64, "parallel": 64}})
    authors = [64, 64, 128, 128, 256, 256, 512, 512, 512]
    assert resolve("digits", "rps", overrides={"fields": {"widths": authors}}).fields["widths"] == tuple(authors)


# ---- values on the command line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[2,3]", [2, 3]),
        (" [2, 3] ", [2, 3]),
        ("[2, 3,]", [2, 3]),
        ("[]", []),
        ("[0.1, 1e-3]", [0.1, 0.001]),
        ("2,3", [2, 3]),
        ("2,", [2]),
        ("[[1, 2], [3]]", [[1, 2], [3]]),
        ('"herding"', "herding"),
        ("'herding'", "herding"),
        ("herding", "herding"),
        ('"50,10x5"', "50,10x5"),
        ('"3"', "3"),
        ('"true"', "true"),
        ("'none'", "none"),
        (r'"a\tb"', "a\tb"),
        (r"'C:\new'", r"C:\new"),
        ('["a, b", "c"]', ["a, b", "c"]),
        ("[herding, random]", ["herding", "random"]),
        ("[none, true]", [None, True]),
        ("true", True),
        ("False", False),
        ("none", None),
        ("0x10", 16),
        ("0b101", 5),
        ("1_000", 1000),
        ("-1", -1),
        ("1e3", 1000.0),
        ("2026-01-01", "2026-01-01"),
        ("", ""),
        ("[2,3", ["[2", 3]),
        ('"open', '"open'),
        ("[1]\nother = 2", "[1]\nother = 2"),
        ("[" * 5000 + "]" * 5000, "[" * 5000 + "]" * 5000),
        ("0x", "0x"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_values_are_parsed_as_toml_writes_them(text: str, value: Any) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_the_same_setting_in_every_spelling() -> None:
    for text in ("[2,3]", "2,3", "[2, 3]", "[0x2, 3]"):
        overrides = parse_overrides([f"train.milestones={text}", "train.lr_schedule='milestones'", "train.epochs=9"])
        assert resolve("digits", overrides=overrides).train.milestones == (2, 3)
    assert resolve("digits", overrides=parse_overrides(['memory.selection="random"'])).memory["selection"] == "random"


def test_a_mistyped_choice_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"must be one of .*, got 'herdign': did you mean 'herding'"):
        resolve("digits", overrides={"memory": {"selection": "herdign"}})
