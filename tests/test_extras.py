"""Optional packages: each way to be missing or broken gives its one sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.core.extras import available, require
from equipoise.errors import UsageError

MakePackage = Callable[..., None]


@pytest.fixture
def make_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePackage:
    """Write a package that can be imported; ``version`` and ``requires`` add the metadata that pip would.

    Without a source there is only metadata.
    """
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str, source: str | None = None, version: str = "", requires: str = "") -> None:
        if source is not None:
            for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
                monkeypatch.delitem(sys.modules, loaded)
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(source)
        if version:
            info = tmp_path / f"{name}-{version}.dist-info"
            info.mkdir()
            lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
            lines += [f"Requires-Dist: {requires}"] if requires else []
            (info / "METADATA").write_text("\n".join(lines) + "\n")

    return make


def sentence(package: str, extra: str = "some", feature: str = "the feature") -> str:
    with pytest.raises(UsageError) as caught:
        require(package, extra, feature)
    return str(caught.value)


def test_an_installed_package_is_imported(make_package: MakePackage) -> None:
    make_package("eq_fine", "answer = 42")
    assert available("eq_fine")
    assert "eq_fine" not in sys.modules, "looking for a package does not import it"
    assert require("eq_fine", "some", "the feature").answer == 42
    assert available("eq_fine")


def test_a_submodule_is_imported(make_package: MakePackage, tmp_path: Path) -> None:
    make_package("eq_nested", "")
    (tmp_path / "eq_nested" / "inner.py").write_text("answer = 42")
    assert require("eq_nested.inner", "some", "the feature").answer == 42
    assert sentence("eq_nested.other") == (
        "the feature cannot import eq_nested (No module named 'eq_nested.other'): reinstall it"
    )


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not available("eq_missing")
    assert sentence("eq_missing") == "the feature needs the package eq_missing: pip install 'equipoise[some]'"
    for name in ("vl_convert", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)  # how Python marks a module that must not be imported
        assert not available(name)
    assert sentence("vl_convert", "report", "--figures") == (
        "--figures needs the package vl-convert-python: pip install 'equipoise[report]'"
    )
    assert "the package mlflow-skinny" in sentence("mlflow.entities")


def test_a_directory_of_the_same_name_is_not_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "eq_leftover").mkdir()  # as W&B leaves wandb/ in the current directory
    assert not available("eq_leftover")
    assert "needs the package eq_leftover" in sentence("eq_leftover")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import eq_absent", "No module named 'eq_absent'"),
        ("from os import eq_absent", "cannot import name 'eq_absent' from 'os'"),
        ("raise RuntimeError('wrong build.\\nLong story')", "wrong build"),
        ("raise OSError('libcudart.so.12: cannot open shared object file')", "libcudart.so.12: cannot open"),
        ("import os; os.eq_absent", "module 'os' has no attribute 'eq_absent'"),
        ("raise ValueError", "ValueError"),
    ],
)
def test_a_broken_package_says_why_and_not_that_it_is_missing(
    make_package: MakePackage, source: str, reason: str
) -> None:
    make_package("eq_broken", source)
    assert available("eq_broken")
    text = sentence("eq_broken")
    assert text.startswith(f"the feature cannot import eq_broken ({reason}")
    assert text.endswith("): reinstall it")
    assert "pip install" not in text
    assert "\n" not in text


def test_torchvision_for_another_torch_is_named(make_package: MakePackage) -> None:
    make_package("torch", version="2.13.0+cpu")
    make_package("torchvision", "raise RuntimeError('operator torchvision::nms does not exist')", version="0.28.0")
    make_package("eq_optional", "import torchvision", version="1.0")
    make_package("eq_needy", "import torchvision", version="1.0", requires="torchvision")
    make_package(
        "eq_hiding",
        "try:\n    import torchvision\nexcept RuntimeError as e:\n    raise ImportError('no vision') from e",
    )
    clash = "torchvision 0.28.0 does not work with torch 2.13.0+cpu: install the matching build"
    assert sentence("eq_optional") == f"{clash} or remove torchvision"
    assert sentence("eq_hiding") == f"{clash} or remove torchvision"
    assert sentence("eq_needy") == clash, "without torchvision it would not work either"


def test_interrupting_an_import_stays_an_interrupt(make_package: MakePackage) -> None:
    make_package("eq_slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        require("eq_slow", "some", "the feature")
