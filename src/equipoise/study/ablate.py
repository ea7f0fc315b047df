"""The paper's ablations: one choice at a time is turned round, and everything else is as the recipe has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.errors import UsageError
from equipoise.study.compare import Cell, Overrides, with_setting
from equipoise.study.recipe import Settings, resolve


@dataclass(frozen=True)
class Choice:
    """A setting with two values."""

    title: str
    section: str
    name: str
    values: tuple[Any, Any]

    def other(self, settings: Settings) -> Any:
        """The value that ``settings`` do not have."""
        section: dict[str, Any] = getattr(settings, self.section)
        if self.name not in section:
            raise UsageError(
                f"the method '{settings.method}' has no setting '{self.name}' to ablate: give --method wa, "
                "or another of its family"
            )
        return self.values[section[self.name] == self.values[0]]


CHOICES = (  # Sec. 5.4
    Choice("Clipping the head's weights", "fields", "clip", (True, False)),
    Choice("Norm of the weights", "fields", "norm", (1, 2)),
    Choice("Bias in the head", "fields", "bias", (True, False)),
    Choice("Choice of exemplars", "memory", "selection", ("herding", "random")),
)


def plan_ablation(
    dataset: str, method: str, seeds: Sequence[int], *, recipe: str | None = None, overrides: Overrides | None = None
) -> tuple[list[Cell], list[dict[str, Any]]]:
    """The recipe's own settings and each choice turned round, with every seed; and a panel of two labels a choice."""
    sections = overrides or {}
    variants, panels = {method: sections}, []
    baseline = resolve(dataset, method, recipe, overrides=sections)
    for choice in CHOICES:
        value = choice.other(baseline)
        label = f"{method}, {choice.name} = {str(value).lower()}"
        variants[label] = with_setting(sections, choice.section, choice.name, value)
        panels.append({"title": choice.title, "labels": [method, label]})
    cells = [
        Cell(label, label, resolve(dataset, method, recipe, seed, changed))
        for seed in dict.fromkeys(seeds)
        for label, changed in variants.items()
    ]
    return cells, panels
