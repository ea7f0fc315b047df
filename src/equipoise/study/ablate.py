"""The paper's ablations: change one setting at a time, and keep everything else as in the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.core.config import with_settings
from equipoise.engine.recipes import resolve
from equipoise.engine.settings import Settings
from equipoise.errors import UsageError
from equipoise.study.compare import Cell, Overrides


@dataclass(frozen=True)
class Choice:
    """A setting with two values."""

    title: str
    section: str
    name: str
    values: tuple[Any, Any]

    def other(self, settings: Settings) -> Any:
        """Return the value that ``settings`` does not have."""
        section: dict[str, Any] = getattr(settings, self.section)
        if self.name not in section:
            remedy = "use --method wa or one of its variants"
            raise UsageError(f"the method '{settings.method}' has no setting '{self.name}' to ablate: {remedy}")
        return self.values[section[self.name] == self.values[0]]


CHOICES = (  # Sec. 5.4
    Choice("Clipping the head's weights", "fields", "clip", (True, False)),
    Choice("Norm of the weights", "fields", "norm", (1, 2)),
    Choice("Bias in the head", "fields", "bias", (True, False)),
    Choice("Selection of exemplars", "memory", "selection", ("herding", "random")),
)


def plan_ablation(
    dataset: str, method: str, seeds: Sequence[int], *, recipe: str | None = None, overrides: Overrides | None = None
) -> tuple[list[Cell], list[dict[str, Any]]]:
    """Return cells for the recipe's settings and for each changed one, and a panel of two labels per change."""
    sections = overrides or {}
    variants, panels = {method: sections}, []
    baseline = resolve(dataset, method, recipe, overrides=sections)
    for choice in CHOICES:
        value = choice.other(baseline)
        label = f"{method}, {choice.name} = {str(value).lower()}"
        variants[label] = with_settings(sections, {f"{choice.section}.{choice.name}": value})
        panels.append({"title": choice.title, "labels": [method, label]})
    cells = [
        Cell(label, label, resolve(dataset, method, recipe, seed, changed))
        for seed in dict.fromkeys(seeds)
        for label, changed in variants.items()
    ]
    return cells, panels
