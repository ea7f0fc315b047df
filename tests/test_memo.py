"""MEMO compared with arithmetic written from the paper and its authors' code."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.data.stream import Step
from equipoise.errors import UsageError
from equipoise.learn.backbones import Architecture
from equipoise.learn.head import Head
from equipoise.learn.inference import same_tensors as same
from equipoise.methods.memo import Memo, SharedBackbone
from equipoise.methods.registry import make
from tests.test_methods import MIXED, NEW, OLD, Array, Learned, array, begin, cross_entropy, make_images


def started(**fields: Any) -> tuple[Learned, Memo]:
    """Return MEMO at the start of its second step."""
    learned = Learned("memo", **fields)
    assert isinstance(learned.method, Memo)
    return learned, learned.method


def train(learned: Learned) -> None:
    fit = learned.second
    fit.train(fit.images or fit.step.images)


def block_features(method: Memo, x: Tensor) -> list[Array]:
    """Return the features of each block, one after another."""
    method.eval()
    with torch.no_grad():
        shared = method.backbone.early(x)
        return [array(block(shared)).mean((2, 3)) for block in method.backbone.blocks]


def linear(features: Array, head: Any) -> Array:
    return np.asarray(features @ array(head.weight).T + array(head.bias))


def weights_of(head: Head) -> tuple[Array, Array]:
    assert head.bias is not None
    return array(head.weight).copy(), array(head.bias).copy()


def test_the_loss_has_an_auxiliary_term_for_the_newest_block() -> None:
    learned, method = started(aux_weight=0.6)
    train(learned)  # so that the blocks differ
    x, y = learned.batch(MIXED)
    features = block_features(method, x)
    assert len(features) == 2
    logits = linear(np.concatenate(features, 1), method.head)
    target = torch.tensor([0 if label < OLD else label - OLD + 1 for label in MIXED])
    expected = cross_entropy(logits, y) + 0.6 * cross_entropy(linear(features[1], method.aux_head), target)
    assert method.loss(x, y).item() == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(array(method.predict(x)), logits, rtol=1e-4, atol=1e-4)
    assert method.aux_head.classes == NEW + 1


def test_the_first_step_is_plain_cross_entropy() -> None:
    learned = Learned("memo")
    method = learned.before
    method.old = 0
    x, y = learned.batch([0, 1, 2])
    assert method.loss(x, y).item() == pytest.approx(cross_entropy(array(method.logits(x)), y), rel=1e-5)


def test_a_step_starts_from_the_previous_one() -> None:
    learned, method = started()
    first, second = method.backbone.blocks
    before = learned.before
    assert isinstance(before, Memo)
    assert same(first.state_dict(), before.backbone.blocks[0].state_dict())
    assert same(first.state_dict(), second.state_dict())
    width = before.head.features
    assert tuple(method.head.weight.shape) == (OLD + NEW, 2 * width)
    assert torch.equal(method.head.weight[:OLD, :width], before.head.weight)
    assert method.head.bias is not None
    assert before.head.bias is not None
    assert torch.equal(method.head.bias[:OLD], before.head.bias)


@pytest.mark.parametrize("train_shared", [True, False])
def test_earlier_blocks_never_change(train_shared: bool) -> None:
    """Neither weights nor batch norms; the shared layers only if they are not trained."""
    learned, method = started(train_shared=train_shared)
    early, first, second = copy.deepcopy((method.backbone.early, *method.backbone.blocks))
    train(learned)
    assert same(method.backbone.blocks[0].state_dict(), first.state_dict())
    assert same(method.backbone.early.state_dict(), early.state_dict()) != train_shared
    changed = method.backbone.blocks[1].state_dict()
    assert not any(torch.equal(value, changed[name]) for name, value in second.state_dict().items())
    begin(method, Step(3, 5, 2, make_images([5, 6])), learned.second)
    method.train()
    assert [block.training for block in method.backbone.blocks] == [False, False, True]
    grads = [all(weight.requires_grad for weight in block.parameters()) for block in method.backbone.blocks]
    assert grads == [False, False, True]
    assert method.backbone.early.training == train_shared


@pytest.mark.parametrize("scale_bias", [False, True])
@pytest.mark.parametrize("larger", [False, True])
def test_new_rows_are_aligned_by_their_euclidean_norm(scale_bias: bool, larger: bool) -> None:
    """γ may exceed 1, and the authors' code does not scale the bias."""
    learned, method = started(scale_bias=scale_bias)
    train(learned)
    method.head.weight.data[OLD:] *= 0.1 if larger else 10
    weight, bias = weights_of(method.head)
    norms = [np.sqrt((row**2).sum()) for row in weight]
    gamma = np.mean(norms[:OLD]) / np.mean(norms[OLD:])
    assert (gamma > 1) == larger
    fit = learned.second
    assert method.end(fit.step, fit) == {"gamma": pytest.approx(gamma, rel=1e-5)}
    weight[OLD:] *= gamma
    bias[OLD:] *= gamma if scale_bias else 1
    for found, expected in zip(weights_of(method.head), (weight, bias), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_nothing_is_aligned_in_the_first_step() -> None:
    method = make("memo")
    method.build(Architecture("tiny", (1, 8, 8)))
    fit = Learned("memo").first
    begin(method, fit.step, fit)
    head = copy.deepcopy(method.head.state_dict())
    assert method.end(fit.step, fit) == {}
    assert same(method.head.state_dict(), head)


def test_the_network_keeps_the_options_of_the_run() -> None:
    net = SharedBackbone(Architecture("tiny", (1, 8, 8), flip_tta=True, input_size=16)())
    assert (net.flip_tta, net.bf16, net.input_size, net.frozen) == (True, False, 16, False)
    net.add_block()
    x = torch.rand(3, 1, 8, 8)
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(net(x), (net.embed(x) + net.embed(x.flip(3))) / 2)
        assert net(x).shape == (3, net.width) == (3, 64)


@pytest.mark.parametrize("final_relu", [True, False])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("resnet32", (3, 32, 32)), ("resnet18", (3, 64, 64)), ("small", (1, 28, 28)), ("fast", (3, 32, 32))],
)
def test_a_backbone_can_be_split_before_its_last_stage(
    name: str, shape: tuple[int, int, int], final_relu: bool
) -> None:
    net = Architecture(name, shape)(final_relu).eval()
    early, last = net.split()
    x = torch.rand(2, *shape)
    with torch.no_grad():
        *_, before, after = net.forward_stages(x)
        shared = early(x)
        torch.testing.assert_close(shared, before)
        torch.testing.assert_close(last(shared), after)
        torch.testing.assert_close(shared, before)  # it was not changed
    parts = [weight.data_ptr() for part in (early, last) for weight in part.parameters()]
    assert sorted(parts) == sorted(weight.data_ptr() for weight in net.parameters())
    assert bool((after < 0).any()) != final_relu


@pytest.mark.parametrize("name", ["lite0", "mlp"])
def test_a_backbone_that_cannot_be_split_is_one_error(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be split into early stages and a last stage: choose another backbone"):
        make("memo").build(Architecture(name, (3, 32, 32) if name == "lite0" else (8, 1, 1)))
