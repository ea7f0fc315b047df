"""What a GPU needs, on the CPU: tensors on one device, and no batch that waits for it.

PyTorch's device `meta` computes shapes, but no values. It refuses what needs a value, such as ``item`` or a boolean
mask, and operations on tensors of two devices. On a GPU, the former would make the CPU wait.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from equipoise.data.augment import Augment
from equipoise.data.images import FileStore, Images, TensorStore
from equipoise.learn.fit import Fit
from equipoise.learn.host_values import HostValues
from equipoise.learn.loop import MAIN, Stage
from equipoise.learn.method import Method
from equipoise.learn.runtime import Runtime
from equipoise.methods.registry import registry
from tests.folders import glyph_folder
from tests.test_methods import Learned

CLOSED = ("acil", "simple-nem")
"""Methods that train in their first step only."""
TRAINED = sorted(name for name, (kind, _) in registry().items() if kind.rehearsal != "kept" and name not in CLOSED)
WAIT = {
    "eeil": "the noise depends on the number of updates, which is a tensor",
    "lucir": "the margin ranking selects the old images of a batch",
}
EVERYTHING = Augment(pad=1, flip=True, brightness=0.2, contrast=0.2, brightness_factor=0.1, rotation=10, cutout=3)


def elsewhere(device: str = "meta") -> Runtime:
    runtime = Runtime()
    object.__setattr__(runtime, "device", device)  # a real Runtime tries the device, and `meta` holds no values
    return runtime


def batch_of(fit: Fit) -> tuple[Tensor, Tensor]:
    assert fit.images is not None
    return fit.augment.plain(fit.images, torch.arange(8)), fit.images.labels[:8]


def move(method: Method) -> None:
    """Move a method in the middle of a step, with plain tensors that it has made there."""
    method.to("meta")
    for module in method.modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                setattr(module, name, value.to("meta"))


@pytest.mark.parametrize("name", TRAINED)
def test_an_epoch_of_every_method_stays_on_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in WAIT:
        pytest.xfail(f"waits once per batch: {WAIT[name]}")
    fit = Learned(name).second
    fit.method.train()
    fit.method.loss(*batch_of(fit))
    fit.runtime = fit.loop.runtime = elsewhere()
    monkeypatch.setattr(HostValues, "of", lambda self, *tensors: self._values)  # read before, in the loss above
    move(fit.method)
    assert fit.images is not None
    parameters = [parameter for parameter in fit.method.parameters() if parameter.requires_grad]
    stage = Stage(fit.images, fit.method.loss, fit.schedule, parameters, MAIN, True, False)
    optimizer = fit.schedule.make_optimizer(parameters)
    for group in optimizer.param_groups:
        group["fused"] = False  # there is no such kernel for `meta`
    total, batches = fit.loop._epoch(stage, stage.loss, optimizer, fit.key, 0)
    assert total.device.type == "meta"
    assert batches > 1


def test_images_are_augmented_where_they_are() -> None:
    images = Images.of(torch.zeros((20, 3, 12, 12), dtype=torch.uint8))
    held = elsewhere().hold(images)
    assert isinstance(held.store, TensorStore)
    assert held.store.pixels.device.type == "meta"
    assert held.store is elsewhere().hold(images).store  # copied once
    draws = EVERYTHING.draw(5, torch.Generator())
    batch = EVERYTHING.batch(held, torch.arange(5), draws, 8)
    assert (batch.device.type, batch.shape, batch.dtype) == ("meta", (5, 3, 8, 8), torch.float32)
    assert EVERYTHING.plain(held, torch.arange(5)).device.type == "meta"
    assert len(held.select(torch.arange(4))) == 4


def test_files_are_copied_batch_by_batch_as_bytes(tmp_path: Path) -> None:
    moved: list[Tensor] = []

    class Watched(Runtime):
        def move(self, tensor: Tensor) -> Tensor:
            moved.append(tensor)
            return super().move(tensor)

    runtime = Watched()
    object.__setattr__(runtime, "device", "meta")
    files = sorted(glyph_folder(tmp_path / "photos", range(2), 3).rglob("*.png"))
    held = runtime.hold(Images(FileStore(files, 16), torch.arange(6), torch.zeros(6)))
    assert held.store.fingerprint() == FileStore(files, 16).fingerprint()
    assert (len(held.store), held.store.shape, held.store.dtype) == (6, (3, 16, 16), torch.uint8)
    assert Augment().plain(held, torch.arange(3)).device.type == "meta"
    assert [(tensor.shape, tensor.dtype) for tensor in moved] == [((3, 3, 16, 16), torch.uint8)]


def test_nothing_is_copied_on_the_cpu() -> None:
    images = Images.of(torch.zeros((2, 1, 4, 4), dtype=torch.uint8))
    assert Runtime().hold(images) is images


def test_images_that_do_not_fit_stay_in_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.learn.runtime._free_memory", lambda device: 63)
    images = Images.of(torch.zeros((2, 1, 4, 4), dtype=torch.uint8))
    assert not isinstance(elsewhere().hold(images).store, TensorStore)
    monkeypatch.setattr("equipoise.learn.runtime._free_memory", lambda device: 64)
    assert isinstance(elsewhere().hold(images).store, TensorStore)


def test_values_are_read_again_only_after_a_change() -> None:
    read: list[list[int]] = []

    def values(*tensors: Tensor) -> list[int]:
        read.append([int(tensor.sum()) for tensor in tensors])
        return read[-1]

    kept, first, second = HostValues(values), torch.ones(2), torch.ones(3)
    assert [kept.of(first, second) for _ in range(3)] == [[2, 3]] * 3
    assert len(read) == 1
    first[0] = 5
    assert kept.of(first, second) == [6, 3]
    assert kept.of(first, torch.zeros(3)) == [6, 0]
    assert kept.of(first.clone(), second) == [6, 3]
    assert len(read) == 4


def test_the_sizes_of_steps_follow_what_is_loaded_and_copied() -> None:
    method = Learned("ce").method
    assert method.steps == [3, 2]
    method.steps.append(7)
    assert method.steps == [3, 2]
    before = method.snapshot()
    method.sizes.copy_(torch.tensor([4, 1]))
    assert (method.steps, before.steps) == ([4, 1], [3, 2])
