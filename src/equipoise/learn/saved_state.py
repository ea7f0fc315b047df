"""Check that a saved state fits its method: types and shapes before it is read, values after it is loaded."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from equipoise.core.seeding import preserve_rng
from equipoise.errors import UsageError
from equipoise.learn.head import Head

if TYPE_CHECKING:  # method.py needs this module
    from equipoise.learn.method import Method

MAX_STEPS = 100_000
"""Steps of a method."""
WIDEST = 8192
"""Maximum number of features, for methods that have no backbone before their first step."""
EITHER = (torch.float32, torch.float64)
_RENAMED = re.compile(r"\baid\b")


def check_layout(method: Method, layout: Mapping[str, Tensor], classes: int) -> None:
    """Raise ValueError unless a state has the names, types and shapes that the method needs; no values are needed.

    Parameters
    ----------
    method
        A new method; it takes the shapes of the state.
    layout
        The state.
    classes
        How many classes it is for.
    """
    state = upgrade_state(method, layout)
    _check_sides(method, state, classes)
    with preserve_rng():
        match_state(method, state)
    _check_heads(method, classes)


def upgrade_state(method: Method, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state with current names."""
    own = hasattr(method, "aid")  # 0.1.0 called the auxiliary head so
    return {name if own else _RENAMED.sub("aux_head", name): value for name, value in state.items()}


def match_state(method: Method, state: Mapping[str, Tensor]) -> None:
    """Bring a method into the shape of a state; raise ValueError unless all names, types and shapes fit then."""
    sizes = state.get("sizes")
    if sizes is None or sizes.dtype != torch.long or sizes.dim() != 1 or len(sizes) > MAX_STEPS:
        raise ValueError("sizes does not hold the number of classes of each step")
    for name, own in method._buffers.items():
        # match_state takes the type of the state; statistics may have either precision
        wanted = EITHER if own is None or own.dtype in EITHER else (own.dtype,)
        if name in state and state[name].dtype not in wanted:
            raise ValueError(f"{name} is stored as {state[name].dtype}, expected {wanted[0]}")
    widths = {head: head.features for head in method.modules() if isinstance(head, Head)}
    method.match_state(state)
    if "match_state" not in _overridden(method):
        for head, width in widths.items():
            check_width(head, width)
    compare_states(method.state_dict(), state)


def compare_states(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless a saved state has the names, types and shapes of a module's own."""
    for name in (*own, *saved):
        if name not in own or name not in saved:
            raise ValueError(f"{name} is {'unknown' if name in saved else 'missing'}")
        if own[name].shape != saved[name].shape:
            raise ValueError(f"{name} has shape {tuple(saved[name].shape)}, expected {tuple(own[name].shape)}")
        if own[name].dtype != saved[name].dtype:
            raise ValueError(f"{name} is stored as {saved[name].dtype}, expected {own[name].dtype}")


def check_part(state: Mapping[str, Tensor], name: str, part: nn.Module) -> None:
    """Raise ValueError unless a state has a part that ``match_state`` adds; a number alone could add thousands."""
    for inner in part.state_dict():
        if f"{name}.{inner}" not in state:
            raise ValueError(f"{name}.{inner} is missing")


def check_width(head: Head, width: int) -> None:
    """Raise ValueError unless a head that took the shape of a state has this many features."""
    if head.features != width:
        raise ValueError(f"a head has {head.features} features, expected {width}")


def _overridden(method: Method) -> set[str]:
    """Return what the classes of a method define, other than ``Method`` itself."""
    classes = type(method).__mro__
    return {name for cls in classes[: [cls.__name__ for cls in classes].index("Method")] for name in vars(cls)}


def check_loaded(method: Method, classes: int) -> None:
    """Raise an error unless the values of a state that was loaded fit the number of classes."""
    if sum(method.steps) != classes:
        raise ValueError(f"its weights are for {sum(method.steps)} classes, but it lists {classes}")
    if min(method.steps, default=0) < 0:
        raise ValueError("a step has a negative number of classes")
    _check_heads(method, classes)
    for name in method.per_class:
        rows = getattr(method, name, None)
        if rows is not None and len(rows) not in (0, classes):
            raise ValueError(f"{name} has {len(rows)} rows for {classes} classes")
    norms = method.weight_norms(method.reported_norm)
    if norms is not None and len(norms) != classes:
        raise ValueError(f"there are {len(norms)} rows of weights for {classes} classes")
    shared = {id(tensor): tensor for tensor in (*method.parameters(), *method.buffers())}
    with suppress(UsageError):  # some methods cannot forget
        copy.deepcopy(method, shared).keep_classes(torch.arange(classes))


def _check_sides(method: Method, state: Mapping[str, Tensor], classes: int) -> None:
    """Raise ValueError for heads and statistics that are larger than they can be, before they take memory."""
    sides = [side for value in method.state_dict().values() for side in value.shape]
    width = max(sides) or WIDEST
    steps = len(state.get("sizes", ()))
    heads = {f"{name}.weight" for name, module in method.named_modules() if isinstance(module, Head)}
    for name, value in state.items():
        if name in heads:
            limits = [1000 + 100 * classes, width * max(steps, 1)]
        elif name in method._buffers and name != "sizes":
            own = method._buffers[name]
            limits = [max(1000, width, classes, steps)] * (2 if own is None else own.dim())
        else:
            continue  # of a fixed shape
        if value.dim() != len(limits) or any(side > limit for side, limit in zip(value.shape, limits, strict=True)):
            raise ValueError(f"{name} has the invalid shape {tuple(value.shape)}")


def _check_heads(method: Method, classes: int) -> None:
    head = getattr(method, "head", None)
    if isinstance(head, Head) and head.classes != classes:
        raise ValueError(f"its head is for {head.classes} classes, but it lists {classes}")
