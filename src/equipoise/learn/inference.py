"""Passes over images in evaluation mode, without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from equipoise.core import distributed
from equipoise.data.augment import Augment
from equipoise.data.images import Images, read_ahead
from equipoise.learn.head import Head
from equipoise.learn.method import Method
from equipoise.learn.runtime import Runtime

BATCH = 256
BATCH_VALUES = BATCH * 3 * 224**2
"""Values of a batch: images larger than those of ImageNet come in smaller batches."""


def batch_size(shape: Sequence[int], most: int = BATCH) -> int:
    """Return how many images of a shape are computed together."""
    return max(1, min(most, BATCH_VALUES // math.prod(shape)))


class InferencePass:
    """Runs over a set of images. With ``keep``, features are reused until the backbone changes.

    Parameters
    ----------
    method
        The method whose features are computed.
    images
        The images, read without augmentation.
    augment
        Normalises the images.
    runtime
        The device.
    keep
        Keep the features for further calls of ``map_features``.
    """

    def __init__(self, method: Method, images: Images, augment: Augment, runtime: Runtime, keep: bool = False) -> None:
        self.method, self.augment, self.runtime, self.keep = method, augment, runtime, keep
        self.images = runtime.hold(images)
        self._rows = torch.arange(len(images)).split(batch_size(images.store.shape))
        self._features: dict[int, Tensor] = {}
        self._state: dict[str, Tensor] = {}

    def map(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``function(x)`` of all images, in order: one row per image.

        Processes share whole batches, so that rows are bit-identical for any number of processes.
        """
        return self._gather(function, ((number, x) for number, x, _ in self.batches()))

    def map_features(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``function(features)`` of all images, in order: one row per image."""
        if self.keep:
            state = feature_state(self.method)
            if not (self._state and same_tensors(self._state, state)):
                self._features.clear()
            self._state = state
        return self._gather(function, self._feature_batches())

    def _feature_batches(self) -> Iterator[tuple[int, Tensor]]:
        if self._features:
            yield from self._features.items()
            return
        for number, x, _ in self.batches():
            features = self.method.features(x)
            if self.keep:
                self._features[number] = features
            yield number, features

    def batches(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the number, images and labels of this process's batches."""
        numbers = range(distributed.rank(), len(self._rows), distributed.world_size())
        read = read_ahead(self.images, lambda number: self.augment.plain(self.images, self._rows[number]), numbers)
        for number, pixels in zip(numbers, read, strict=True):
            yield number, self.runtime.move(pixels), self.images.labels[self._rows[number]]

    def _gather(self, function: Callable[[Tensor], Tensor], batches: Iterator[tuple[int, Tensor]]) -> Tensor:
        self.method.eval()
        with torch.no_grad():
            mine = {number: function(batch).float().cpu() for number, batch in batches}
        return distributed.gather_rows(mine, [len(rows) for rows in self._rows])


def feature_state(method: Method) -> dict[str, Tensor]:
    """Return copies of all tensors that the features of ``method`` may depend on; they do not depend on heads."""
    module: nn.Module = method if type(method).features is not Method.features else method.backbone
    heads = tuple(f"{name}." for name, part in module.named_modules() if isinstance(part, Head))
    return {name: value.clone() for name, value in module.state_dict().items() if not name.startswith(heads)}


def same_tensors(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Return whether two states are equal to the last bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
