"""Any network of timm as a backbone; weights come from a local file, never from a hub."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equipoise.errors import UsageError
from equipoise.learn.nets import Backbone

NEEDED = "timm networks need the extra 'timm': pip install 'equipoise[timm]'"


class TimmNet(Backbone):
    """A timm network without its head; its features are whatever its pooling gives, also negative ones."""

    def __init__(self, name: str, shape: tuple[int, int, int]) -> None:
        super().__init__()
        try:
            import timm
        except (ImportError, RuntimeError) as error:  # torchvision beside another torch fails with a RuntimeError
            raise UsageError(f"{NEEDED} ({error})") from error
        options: dict[str, Any] = {"pretrained": False, "num_classes": 0, "in_chans": shape[0]}
        try:
            try:
                self.net = timm.create_model(name, img_size=shape[1], **options)
            except TypeError:  # convolutional ones take any size and do not want to be told
                self.net = timm.create_model(name, **options)
        except (RuntimeError, ValueError, AssertionError) as error:
            raise UsageError(f"timm cannot make '{name}' for {shape[1]}-pixel images ({error})") from error
        with torch.no_grad():  # what timm calls num_features is not always what comes out
            self.width = int(self.net.eval()(torch.zeros(1, *shape)).shape[1])
        self.map_widths = []

    def compute(self, x: Tensor) -> list[Tensor]:
        raise UsageError("timm networks tell no feature maps, which this method needs: choose another --method")

    def look(self, x: Tensor) -> Tensor:
        with self.precision(x):
            features: Tensor = self.net(x)
        return features.float()
