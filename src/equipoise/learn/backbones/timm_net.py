"""Any timm network as a backbone. Weights are downloaded only if the user asks for it."""

from __future__ import annotations

from pathlib import Path
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
        self.name, self.channels, self.size = name, channels, size
        try:
            self.net = self._create()
            with torch.no_grad():  # timm's num_features is not always the width of the output
                self.width = int(self.net.eval()(torch.zeros(1, channels, size, size)).shape[1])
        except (RuntimeError, ValueError, AssertionError) as error:  # also if an image is too small for all the layers
            raise UsageError(f"timm cannot create '{name}' for {size}-pixel images ({error})") from error
        self.map_widths = []

    def _create(self, **options: Any) -> Any:
        timm = require_timm(self.name)
        options = {"pretrained": False, "num_classes": 0, "in_chans": self.channels} | options
        try:
            return timm.create_model(self.name, img_size=self.size, **options)
        except TypeError:  # convolutional networks take any size and have no such option
            return timm.create_model(self.name, **options)

    def convert(self, file: Path) -> bool:
        """Load a safetensors file as timm does, converting names and image size; return whether it fits."""
        overlay = {"file": str(file), "custom_load": False}
        try:
            self.net = self._create(pretrained=True, pretrained_cfg_overlay=overlay)
        except Exception:  # timm's converters fail in any way at files that are not for them
            return False
        return True

    def forward_stages(self, x: Tensor) -> list[Tensor]:
        raise UsageError("this method needs feature maps, which timm networks do not return: choose another --method")

    def embed(self, x: Tensor) -> Tensor:
        with self.autocast(x):
            features: Tensor = self.net(self.resize(x))
        return features.float()


def require_timm(name: str) -> Any:
    return require("timm", "timm", f"the backbone timm:{name}")


def timm_statistics(name: str) -> dict[str, Any]:
    """Return the mean and standard deviation of pixels that the published weights of a network were trained with."""
    config = require_timm(name).get_pretrained_cfg(name)
    return {} if config is None else {"mean": tuple(config.mean), "std": tuple(config.std)}


def download(name: str) -> Path:
    """Return the published weights of a network as a safetensors file, from the Hugging Face hub or its cache."""
    feature = f"downloading timm:{name}"
    config = require_timm(name).get_pretrained_cfg(name)
    hub: Any = require("huggingface_hub", "hub", feature)
    if config is None or not config.hf_hub_id:
        raise UsageError(f"timm has no weights for '{name}' on the Hugging Face hub: pass a safetensors file")
    # weights are published in both formats, and a pickle is never loaded
    clip = config.hf_hub_filename == "open_clip_pytorch_model.bin"
    file = "open_clip_model.safetensors" if clip else "model.safetensors"
    try:
        return Path(hub.hf_hub_download(config.hf_hub_id, file))
    except Exception as error:  # no network, no such file, no permission, a proxy, …
        page = f"https://huggingface.co/{config.hf_hub_id}"
        raise UsageError(
            f"{feature} from {page} failed ({type(error).__name__}): fetch {file} from there with a "
            "browser, and pass it as --weights FILE"
        ) from error
