"""Any timm network as a backbone, with local weights only: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equipoise.core.extras import require
from equipoise.errors import UsageError
from equipoise.learn.backbones.base import Backbone


class TimmNet(Backbone):
    """A timm network without its head. Its features may be negative."""

    def __init__(self, name: str, channels: int, size: int) -> None:
        super().__init__()
        timm = require("timm", "timm", f"the backbone timm:{name}")
        options: dict[str, Any] = {"pretrained": False, "num_classes": 0, "in_chans": channels}
        try:
            try:
                self.net = timm.create_model(name, img_size=size, **options)
            except TypeError:  # convolutional networks take any size and have no such option
                self.net = timm.create_model(name, **options)
        except (RuntimeError, ValueError, AssertionError) as error:
            raise UsageError(f"timm cannot make '{name}' for {size}-pixel images ({error})") from error
        with torch.no_grad():  # timm's num_features is not always the width of the output
            self.width = int(self.net.eval()(torch.zeros(1, channels, size, size)).shape[1])
        self.map_widths = []

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        raise UsageError("this method needs feature maps, which timm networks do not return: choose another --method")

    def embed(self, x: Tensor) -> Tensor:
        with self.autocast(x):
            features: Tensor = self.net(self.resize(x))
        return features.float()
