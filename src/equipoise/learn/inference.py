"""Passes over images in evaluation mode, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from equipoise.core import distributed
from equipoise.data.augment import Augment
from equipoise.data.images import Images, TensorStore
from equipoise.data.prefetch import map_ahead
from equipoise.learn.method import Method
from equipoise.learn.runtime import Runtime

BATCH = 256


class InferencePass:
    """Runs over a set of images. Features are computed once for as long as the backbone does not change.

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
        Keep the features for another call of ``map_features``.
    """

    def __init__(self, method: Method, images: Images, augment: Augment, runtime: Runtime, keep: bool = False) -> None:
        self.method, self.images, self.augment, self.runtime, self.keep = method, images, augment, runtime, keep
        self._features: dict[int, Tensor] = {}
        self._state: list[Tensor] = []

    def map(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``function(x)`` of all images, in order: one row per image.

        Processes share whole batches, so that a row is the same to the bit for any number of processes.
        """
        with torch.no_grad():
            mine = {number: function(x).float().cpu() for number, x, _ in self.batches()}
        return self._gather(mine)

    def map_features(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``function(features)`` of all images, in order: one row per image."""
        if self.keep:
            state = feature_state(self.method)
            if not (self._state and all(map(torch.equal, self._state, state))):
                self._features.clear()
            self._state = state
        self.method.eval()
        with torch.no_grad():
            mine = {number: function(features).float().cpu() for number, features in self._feature_batches()}
        return self._gather(mine)

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
        self.method.eval()
        batches = torch.arange(len(self.images)).split(BATCH)
        numbers = range(distributed.rank(), len(batches), distributed.world_size())
        read = self._read_ahead(batches, numbers)
        for number, pixels in zip(numbers, read, strict=True):
            yield number, self.runtime.move(pixels), self.images.labels[batches[number]]

    def _read_ahead(self, batches: tuple[Tensor, ...], numbers: range) -> Iterator[Tensor]:
        def read(number: int) -> Tensor:
            return self.augment.plain(self.images, batches[number])

        return map(read, numbers) if isinstance(self.images.store, TensorStore) else map_ahead(read, numbers, 1)

    def _gather(self, mine: dict[int, Tensor]) -> Tensor:
        return distributed.gather_rows(mine, [len(batch) for batch in torch.arange(len(self.images)).split(BATCH)])


def feature_state(method: Method) -> list[Tensor]:
    """Return copies of all tensors that the features of ``method`` may depend on."""
    overridden = type(method).features is not Method.features
    module: nn.Module = method if overridden else method.backbone
    return [value.clone() for value in module.state_dict().values()]
