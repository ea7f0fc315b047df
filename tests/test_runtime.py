"""Where the arithmetic happens: precision and memory."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping

import pytest
import torch
from torch.nn import functional as F

from equipoise.learn.backbones.base import Architecture
from equipoise.learn.runtime import Runtime
from equipoise.methods import make
from equipoise.engine.recipes import Settings, parse_overrides, resolve


@pytest.mark.parametrize(
    ("able", "precision"),
    [({"avx512_bf16": True}, "bf16"), ({"amx_bf16": True, "avx2": True}, "bf16"), ({"avx2": True}, "32"), ({}, "32")],
)
def test_auto_is_bfloat16_where_the_processor_computes_in_it(
    able: Mapping[str, bool], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    assert Runtime(precision="auto").precision == precision


def test_the_command_line_can_ask_for_32_bits() -> None:
    """There, 32 is a number, and the setting a text."""
    assert resolve("digits", overrides=parse_overrides(["runtime.precision=32"])).runtime.precision == "32"


def test_a_run_that_goes_on_elsewhere_keeps_its_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    settings = resolve("digits", overrides={"runtime": {"precision": "auto"}})
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    assert settings.identity()["runtime"] == {"precision": "bf16"}
    assert Settings.of(settings.identity()).runtime.precision == "bf16"


def test_bfloat16_is_the_backbones_own_affair() -> None:
    """Features and scores have 32 bits: with 8 of mantissa, a hundred classes' scores would have many ties."""
    torch.manual_seed(0)
    method = make("wa")
    method.build(Architecture("tiny", (3, 8, 8), bf16=True))
    method.head.grow(100)
    x = torch.rand(16, 3, 8, 8)
    products: list[torch.dtype] = []
    method.backbone.compute, compute = lambda x: noted(compute(x)), method.backbone.compute  # type: ignore[method-assign]

    def noted(maps: list[torch.Tensor]) -> list[torch.Tensor]:
        products.extend(each.dtype for each in maps)
        return maps

    with torch.no_grad():
        features, scores = method.features(x), method.predict(x)
        assert {each.dtype for each in method.backbone.maps(x)} == {torch.float32}
    assert set(products) == {torch.bfloat16}
    assert features.dtype == scores.dtype == torch.float32
    assert torch.equal(scores, F.linear(features, method.head.weight.detach()))
    method.backbone.bf16 = False
    with torch.no_grad():
        exact = method.features(x)
    assert not torch.equal(features, exact)
    torch.testing.assert_close(features, exact, rtol=0.05, atol=0.02)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other allocators")
def test_memory_is_not_asked_for_anew_with_every_batch() -> None:
    """Four tensors of 16 MB at a time: soon, they find pages that are there.

    In processes of their own. Without the setting, most processes ask anew with every batch: by chance, not all.
    """
    for _ in range(3):
        asked = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, check=True).stdout
        assert int(asked) < 100


PAGES = """
import resource, torch
from equipoise.learn.runtime import Runtime
Runtime().start()
for times in (5, 10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        batch = [torch.ones(2**22) for _ in range(4)]
        del batch
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
