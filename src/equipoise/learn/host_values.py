"""Python values that were read from tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from torch import Tensor

T = TypeVar("T")


class HostValues(Generic[T]):
    """What a function returns for some tensors, computed again only when they have changed.

    Losses need such values in every batch, and reading them from a GPU makes the CPU wait for it.

    Parameters
    ----------
    function
        Takes the tensors and returns Python values.
    """

    def __init__(self, function: Callable[..., T]) -> None:
        self.function = function
        self._tensors: tuple[Tensor, ...] | None = None
        self._versions: list[int] = []
        self._values: T

    def of(self, *tensors: Tensor) -> T:
        """Return ``function(*tensors)``."""
        versions = [tensor._version for tensor in tensors]
        same = self._tensors is not None and all(a is b for a, b in zip(self._tensors, tensors, strict=True))
        if not same or versions != self._versions:
            self._values = self.function(*tensors)
            self._tensors, self._versions = tensors, versions
        return self._values
