"""The correction and the loss, compared with NumPy code written from the paper's equations."""

from __future__ import annotations

import re
import tarfile
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import nn

import equipoise as eq
from equipoise.errors import DataError, RunError, UsageError
from equipoise.learn.align import unit_head
from equipoise.learn.backbones import Architecture
from equipoise.learn.head import Head
from equipoise.learn.losses import distill, distill_groups, distillation_weight, weighted_distill
from equipoise.methods import Method
from equipoise.methods.registry import make
from equipoise.methods.wa import WA
from equipoise.study.align_file import align_file

Array = NDArray[np.float64]


def layer(rows: int = 7, features: int = 5, bias: bool = True, grow: float = 3.0) -> nn.Linear:
    torch.manual_seed(rows)
    made = nn.Linear(features, rows, bias=bias).double()
    made.weight.data[4:] *= grow
    return made


def gamma_of(weight: Array, old: int, norm: int, clamp: bool) -> float:
    """Eq. 7, from sums over elements."""
    size = np.abs(weight).sum(1) if norm == 1 else np.sqrt((weight * weight).sum(1))
    ratio = float(np.mean(size[:old]) / np.mean(size[old:]))
    return min(ratio, 1.0) if clamp else ratio


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("grow", [3.0, 0.2])
def test_align_head_is_equations_6_and_7(norm: int, bias: bool, clamp: bool, grow: float) -> None:
    head = layer(bias=bias, grow=grow)
    before = head.weight.detach().numpy().copy()
    bias_before = head.bias.detach().numpy().copy() if bias else None
    gamma = eq.align_head(head, n_old=4, norm=norm, clamp=clamp)
    expected = gamma_of(before, 4, norm, clamp)
    assert gamma == pytest.approx(expected, rel=1e-12)
    assert (gamma < 1) == (grow > 1) or clamp
    np.testing.assert_array_equal(head.weight.detach().numpy()[:4], before[:4])
    np.testing.assert_allclose(head.weight.detach().numpy()[4:], expected * before[4:], rtol=1e-12)
    if bias_before is not None:
        np.testing.assert_array_equal(head.bias.detach().numpy()[:4], bias_before[:4])
        np.testing.assert_allclose(head.bias.detach().numpy()[4:], expected * bias_before[4:], rtol=1e-12)


@pytest.mark.parametrize("grow", [3.0, 0.2])
def test_align_head_takes_l1_norms_and_limits_gamma_by_default(grow: float) -> None:
    head = layer(grow=grow)
    expected = gamma_of(head.weight.detach().numpy().copy(), 4, norm=1, clamp=True)
    assert eq.align_head(head, n_old=4) == pytest.approx(expected, rel=1e-12)


def test_alignment_scales_the_new_logits_by_gamma() -> None:
    """Eq. 9: the whole effect on the output, bias included."""
    head = layer()
    features = torch.rand(9, 5, dtype=torch.double)
    before = head(features).detach()
    gamma = eq.align_head(head, n_old=4)
    torch.testing.assert_close(head(features).detach()[:, :4], before[:, :4])
    torch.testing.assert_close(head(features).detach()[:, 4:], gamma * before[:, 4:])


@pytest.mark.parametrize("old", [0, 7, 8, -1])
def test_align_head_needs_old_and_new_classes(old: int) -> None:
    with pytest.raises(UsageError, match="n_old must be between 1 and 6"):
        eq.align_head(layer(), n_old=old)


def test_align_head_rejects_weights_without_a_ratio() -> None:
    head = layer()
    head.weight.data[4:] = 0
    with pytest.raises(UsageError, match="all new classes are zero"):
        eq.align_head(head, n_old=4)
    head.weight.data[:4], head.weight.data[4:] = 0, 1
    with pytest.raises(UsageError, match="all old classes are zero"):
        eq.align_head(head, n_old=4)
    head.bias.data = torch.zeros(3)
    head.weight.data[:4] = 1
    with pytest.raises(UsageError, match="7 rows but its bias has 3 values"):
        eq.align_head(head, n_old=4)
    head.weight.data[0, 0] = torch.nan
    with pytest.raises(UsageError, match="not finite"):
        eq.align_head(head, n_old=4)
    with pytest.raises(UsageError, match="1 or 2"):
        eq.head_norms(head, norm=3)


def test_half_precision_norms_do_not_overflow() -> None:
    head = nn.Linear(512, 2, bias=False).half()
    head.weight.data.fill_(200.0)
    assert eq.head_norms(head).tolist() == [102_400, 102_400]


def test_unit_head_gives_every_row_unit_norm() -> None:
    head = layer()
    direction = head.weight[2].detach().numpy() / np.linalg.norm(head.weight[2].detach().numpy())
    logits = head(torch.ones(1, 5, dtype=torch.double)).detach().numpy()
    length = np.linalg.norm(head.weight.detach().numpy(), axis=1)
    unit_head(head)
    np.testing.assert_allclose(head(torch.ones(1, 5, dtype=torch.double)).detach().numpy(), logits / length)
    np.testing.assert_allclose(np.linalg.norm(head.weight.detach().numpy(), axis=1), 1)
    np.testing.assert_allclose(head.weight[2].detach().numpy(), direction)


def test_unit_head_leaves_a_class_of_zeros_at_zero() -> None:
    head = layer()
    head.weight.data[2], head.bias.data[2] = 0, 0
    unit_head(head)
    assert head.weight[2].tolist() == [0] * 5
    assert head.bias[2] == 0


def softmax(values: Array) -> Array:
    raised = np.exp(values - values.max(1, keepdims=True))
    return np.asarray(raised / raised.sum(1, keepdims=True))


def paper_loss(logits: Array, teacher: Array, labels: NDArray[np.int64], lam: float, T: float) -> float:
    """Eq. 1–3 as printed."""
    old = teacher.shape[1]
    cross = -np.mean([np.log(softmax(logits)[i, y]) for i, y in enumerate(labels)])
    target, output = softmax(teacher / T), softmax(logits[:, :old] / T)
    kd = np.mean([-sum(target[i, c] * np.log(output[i, c]) for c in range(old)) for i in range(len(labels))])
    return float((1 - lam) * cross + lam * kd)


def test_distillation_is_equation_3_without_t_squared() -> None:
    torch.manual_seed(0)
    logits, teacher = torch.randn(6, 5).double(), torch.randn(6, 3).double()
    expected = paper_loss(logits.numpy(), teacher.numpy(), np.zeros(6, int), lam=1.0, T=2.0)
    assert distill(logits, teacher, 2.0).item() == pytest.approx(expected, rel=1e-12)


def test_all_distillation_has_temperature_2_by_default() -> None:
    torch.manual_seed(0)
    logits, teacher, y = torch.randn(6, 5).double(), torch.randn(6, 3).double(), torch.tensor([0, 1, 2, 3, 4, 3])
    a, b = logits.numpy(), teacher.numpy()
    assert distill(logits, teacher).item() == pytest.approx(paper_loss(a, b, y.numpy(), lam=1.0, T=2.0))
    assert weighted_distill(logits, y, teacher).item() == pytest.approx(paper_loss(a, b, y.numpy(), lam=3 / 5, T=2.0))
    groups = [(a[:, [0]], b[:, [0]]), (a[:, [1, 2]], b[:, [1, 2]])]  # the classes of three steps; one was forgotten
    expected = sum(paper_loss(mine, its, y.numpy() * 0, lam=1.0, T=2.0) for mine, its in groups)
    assert distill_groups(logits, teacher, [1, 0, 2]).item() == pytest.approx(expected)


def test_distillation_weight_is_the_share_of_old_classes() -> None:
    assert distillation_weight(80, 20) == 0.8
    assert distillation_weight(50, 10) == pytest.approx(5 / 6)


def wa_at_step_two(**fields: object) -> WA:
    """Return a WA method at the start of its second step: 3 old classes, 2 new ones."""
    method = make("wa", fields)
    assert isinstance(method, WA)
    torch.manual_seed(1)
    method.build(Architecture("tiny", (1, 8, 8)))
    begin(method, old=0, new=3)
    begin(method, old=3, new=2)
    return method


def begin(method: Method, old: int, new: int) -> None:
    """Start a step as the engine does, without images."""
    step: Any = SimpleNamespace(old=old, new=new)
    fit: Any = None
    method.start_step(step)
    method.begin(step, fit)


@pytest.mark.parametrize("kd_weight", [None, 0.3])
@pytest.mark.parametrize("temperature", [2.0, 1.0])
def test_wa_loss_is_equation_1(kd_weight: float | None, temperature: float) -> None:
    method = wa_at_step_two(kd_weight=kd_weight, temperature=temperature).eval()
    assert method.teacher is not None
    x, y = torch.rand(8, 1, 8, 8), torch.tensor([0, 1, 2, 3, 4, 3, 2, 0])
    with torch.no_grad():
        logits, teacher = method.predict(x).double().numpy(), method.teacher.predict(x).double().numpy()
    assert logits.shape == (8, 5)
    assert teacher.shape == (8, 3)
    lam = 3 / 5 if kd_weight is None else kd_weight
    expected = paper_loss(logits, teacher, y.numpy(), lam, temperature)
    assert method.loss(x, y).item() == pytest.approx(expected, rel=1e-5)


def test_first_step_is_plain_cross_entropy() -> None:
    method = make("wa")
    method.build(Architecture("tiny", (1, 8, 8)))
    begin(method, old=0, new=4)
    method.eval()
    x, y = torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 2, 3, 0])
    logits = method.predict(x).detach().double().numpy()
    expected = -np.mean(np.log(softmax(logits)[np.arange(5), y.numpy()]))
    assert method.loss(x, y).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("clip", [True, False])
def test_clipping_makes_negative_weights_zero(clip: bool) -> None:
    method = wa_at_step_two(clip=clip)
    before = method.head.weight.detach().numpy().copy()
    method.after_update()
    expected = np.maximum(before, 0) if clip else before
    np.testing.assert_array_equal(method.head.weight.detach().numpy(), expected)
    assert (before < 0).any()


@pytest.mark.parametrize("reinit", [True, False])
def test_reinit_head_changes_old_rows_only_if_asked(reinit: bool) -> None:
    method = wa_at_step_two(reinit_head=reinit)
    assert method.teacher is not None
    same = torch.equal(method.head.weight[:3], method.teacher.head.weight)
    assert same is not reinit


def test_teacher_does_not_change_while_the_student_trains() -> None:
    method = wa_at_step_two().train()
    assert method.teacher is not None
    assert method.training
    assert not any(module.training for module in method.teacher.modules())
    before = {name: value.clone() for name, value in method.teacher.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], 0.5)
    for _ in range(3):
        method.loss(torch.rand(8, 1, 8, 8), torch.randint(5, (8,))).backward()
        optimizer.step()
    for name, value in method.teacher.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_weight_normalisation_layer_ignores_the_norm_of_rows() -> None:
    head = Head(4, kind="unit", scale=2.0)
    head.grow(3)
    features = torch.rand(5, 4)
    weight = head.weight.detach().double().numpy()
    expected = 2 * features.double().numpy() @ (weight / np.linalg.norm(weight, axis=1, keepdims=True)).T
    np.testing.assert_allclose(head(features).detach().numpy(), expected, rtol=1e-5)
    head.weight.data[1] *= 10
    np.testing.assert_allclose(head(features).detach().numpy(), expected, rtol=1e-5)


def test_cosine_head_also_ignores_the_norm_of_features() -> None:
    head = Head(4, kind="cosine")
    head.grow(3)
    features = torch.rand(5, 4)
    torch.testing.assert_close(head(features * 7), head(features))
    assert head(features).abs().max() <= 1


def test_head_loads_any_number_of_classes_after_resizing() -> None:
    big, small = Head(4, bias=True), Head(4, bias=True)
    big.grow(6)
    small.grow(2)
    small.resize(6, 4)
    small.load_state_dict(big.state_dict())
    torch.testing.assert_close(small(torch.ones(1, 4)), big(torch.ones(1, 4)))


@pytest.mark.parametrize("kind", ["safetensors", "torch", "nested"])
def test_align_file_corrects_checkpoints_of_other_libraries(kind: str, tmp_path: Path) -> None:
    head = layer().float()
    state = {"fc.weight": head.weight.data.clone(), "fc.bias": head.bias.data.clone(), "conv": torch.rand(2, 2)}
    source = tmp_path / ("in.safetensors" if kind == "safetensors" else "in.pt")
    out = tmp_path / ("out.safetensors" if kind == "safetensors" else "out.pt")
    if kind == "safetensors":
        save_file(state, source, {"author": "someone"})
    else:
        torch.save({"state_dict": state, "epoch": 3} if kind == "nested" else state, source)
    report = align_file(source, "fc.weight", 4, out)
    assert report.gamma == pytest.approx(gamma_of(state["fc.weight"].double().numpy(), 4, 1, True), rel=1e-5)
    content: Any = load_file(out) if kind == "safetensors" else torch.load(out, weights_only=True)
    written = content["state_dict"] if kind == "nested" else content
    torch.testing.assert_close(written["fc.weight"][4:], state["fc.weight"][4:] * report.gamma)
    torch.testing.assert_close(written["fc.bias"][4:], state["fc.bias"][4:] * report.gamma)
    assert torch.equal(written["conv"], state["conv"])


# ---- checkpoints of strangers


def rezip(file: Path, change: tuple[bytes, bytes] = (b"", b""), compression: int = zipfile.ZIP_STORED) -> None:
    """Replace bytes in the pickle of a checkpoint, and write it again."""
    with zipfile.ZipFile(file) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in content.items():
            archive.writestr(name, data.replace(*change) if name.endswith("data.pkl") else data)


@pytest.mark.parametrize(
    ("holder", "name"),
    [
        *product(("dict", "inner dict"), ("get", "items", "keys", "values", "copy", "__reduce_ex__", "__class__")),
        *product(("tensor",), ("dim", "stride", "is_floating_point", "__reduce_ex__")),
        ("metadata", "__reduce_ex__"),
    ],
)
def test_attributes_of_a_checkpoint_replace_no_methods(holder: str, name: str, tmp_path: Path) -> None:
    inner: Any = OrderedDict({"fc.weight": nn.Parameter(layer(bias=False).float().weight.data)})
    state = OrderedDict(model=inner)
    inner._metadata = OrderedDict(version=1)
    spoilt = {"dict": state, "inner dict": inner, "tensor": inner["fc.weight"], "metadata": inner._metadata}[holder]
    spoilt.__dict__["x" * len(name)] = 7
    torch.save(state, tmp_path / "a.pt")
    rezip(tmp_path / "a.pt", (b"x" * len(name), name.encode()))
    report = align_file(tmp_path / "a.pt", "fc.weight", 4, tmp_path / "b.pt")
    written = torch.load(tmp_path / "b.pt", weights_only=True)
    assert written["model"]._metadata == {"version": 1}
    assert name not in vars(written) | vars(written["model"]) | vars(written["model"]["fc.weight"])
    assert report.gamma < 1


def test_a_checkpoint_may_contain_itself_and_names_of_any_type(tmp_path: Path) -> None:
    state: dict[Any, Any] = {"fc.weight": torch.rand(4, 3), 3: torch.rand(2, 2), "x" * 10**5: torch.rand(2, 2)}
    state["again"] = [state, {1}, (state,)]
    torch.save(state, tmp_path / "a.pt")
    assert align_file(tmp_path / "a.pt", "fc.weight", 2, tmp_path / "b.pt").old == 2
    with pytest.raises(UsageError, match=r"did you mean 'fc\.weight'") as caught:
        align_file(tmp_path / "a.pt", "fc.weigh", 2, tmp_path / "b.pt")
    assert len(str(caught.value)) < 500


def test_a_compressed_checkpoint_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"fc.weight": torch.ones(100, 1000)}, tmp_path / "a.pt")
    good = (tmp_path / "a.pt").read_bytes()
    align_file(tmp_path / "a.pt", "fc.weight", 2, tmp_path / "b.pt")
    rezip(tmp_path / "a.pt")
    align_file(tmp_path / "a.pt", "fc.weight", 2, tmp_path / "b.pt")
    stored = (tmp_path / "a.pt").read_bytes()
    rezip(tmp_path / "a.pt", compression=zipfile.ZIP_DEFLATED)
    assert len((tmp_path / "a.pt").read_bytes()) < 10_000
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(DataError, match=r"a\.pt is compressed: save it again with torch\.save"):
        align_file(tmp_path / "a.pt", "fc.weight", 2, tmp_path / "b.pt")
    for odd in (
        stored[:-22] + bytes(10) + stored[-22:],  # zipfile and torch find different directories
        good[:-22] + bytes(10) + good[-22:],
        good[:-98] + bytes(10) + good[-98:],
        good[:-42] + good[-42:-34] + bytes(8) + good[-26:],
        stored + bytes(10),
        good[:100],
        b"PK\3\4",
    ):
        (tmp_path / "a.pt").write_bytes(odd)
        with pytest.raises(DataError, match="is truncated or not a checkpoint that torch can read"):
            align_file(tmp_path / "a.pt", "fc.weight", 2, tmp_path / "b.pt")
    (tmp_path / "a.pt").write_bytes(good)
    monkeypatch.setattr("equipoise.study.align_file.MAX_DIRECTORY_BYTES", 100)
    with pytest.raises(DataError, match="has a directory of more than"):
        align_file(tmp_path / "a.pt", "fc.weight", 2, tmp_path / "b.pt")


def test_an_old_checkpoint_is_not_read_as_a_tar_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header of a tar file may be of any size, and take any time."""
    torch.save({"fc.weight": torch.rand(4, 3)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    monkeypatch.setattr(tarfile, "open", lambda *_, **__: pytest.fail("it was read as a tar file"))
    assert align_file(tmp_path / "a.pt", "fc.weight", 2, tmp_path / "b.pt").new == 2


def test_the_header_of_a_safetensors_file_is_checked(tmp_path: Path) -> None:
    save_file({"fc.weight": torch.rand(4, 3)}, tmp_path / "a.safetensors")
    data = (tmp_path / "a.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].ljust(9 << 20)
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    with pytest.raises(RunError, match=r"cannot read .* as safetensors: .*its header has an invalid length"):
        align_file(tmp_path / "a.safetensors", "fc.weight", 2, tmp_path / "b.safetensors")


HEADS: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "sparse": (lambda: torch.ones(4, 3).to_sparse(), "fc.weight is a sparse tensor: save it as a dense one"),
    "compressed rows": (lambda: torch.ones(4, 3).to_sparse_csr(), "fc.weight is a sparse tensor"),
    "expanded": (lambda: torch.ones(1, 3).expand(4, 3), "fc.weight is an expanded tensor, whose values share memory"),
    "meta": (lambda: torch.ones(4, 3, device="meta"), "fc.weight is a meta tensor, which has no values"),
    "float8": (lambda: torch.ones(4, 3).to(torch.float8_e4m3fn), "fc.weight is stored as torch.float8_e4m3fn: convert"),
    "no rows": (lambda: torch.ones(0, 3), "cannot align a head of 0 classes: it needs old and new ones"),
    "one row": (lambda: torch.ones(1, 3), "cannot align a head of 1 classes"),
    "quantised": (lambda: torch.quantize_per_tensor(torch.ones(4, 3), 0.1, 0, torch.qint8), "one row of floats"),
}


@pytest.mark.parametrize("kind", HEADS)
def test_heads_that_cannot_be_aligned_are_described(kind: str, tmp_path: Path) -> None:
    """Without warnings of torch, which pytest would turn into errors."""
    make, message = HEADS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save({"fc.weight": make()}, tmp_path / "a.pt")
    with pytest.raises((DataError, UsageError), match=re.escape(message)):
        align_file(tmp_path / "a.pt", "fc.weight", 2, tmp_path / "b.pt")
    bias = {"fc.weight": torch.ones(4, 3), "fc.bias": torch.ones(4).to_sparse()}
    torch.save(bias, tmp_path / "a.pt")
    with pytest.raises(DataError, match=r"the bias of fc\.weight is a sparse tensor"):
        align_file(tmp_path / "a.pt", "fc.weight", 2, tmp_path / "b.pt")


@pytest.mark.parametrize("error", [IndexError, TypeError, AssertionError])
def test_a_damaged_checkpoint_is_one_sentence(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fuzzing made torch raise all of these."""

    def load(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(torch, "load", load)
    (tmp_path / "a.pt").touch()
    with pytest.raises(DataError, match="is truncated or not a checkpoint that torch can read"):
        align_file(tmp_path / "a.pt", "fc.weight", 2, tmp_path / "b.pt")
