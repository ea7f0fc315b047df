"""Features of a data set, computed once by a frozen backbone and cached for all runs that use them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from equipoise.core import distributed
from equipoise.core.directory import Directory
from equipoise.core.files import digest
from equipoise.core.progress_line import track
from equipoise.core.tensors import read_tensors, write_tensors
from equipoise.data.images import FeatureStore, FileStore, Images
from equipoise.data.index import cache_dir
from equipoise.errors import EquipoiseError
from equipoise.learn.extractor import Extractor

T = TypeVar("T")
MIN_CACHED = 1000
"""Below this number of images, computing features is faster than looking them up."""


def extract_cached(images: Images, extractor: Extractor) -> Images:
    """Return images as rows of features; called by all processes, which share the work."""
    cache = Directory(cache_dir() / "features")
    if isinstance(images.store, FileStore):
        images = replace(images, store=images.store.for_pretrained())
    name = _name(images, extractor) if distributed.is_main() else ""
    features = distributed.broadcast(lambda: _read(cache, name, len(images), extractor.width))
    if features is None:
        features = extractor.extract(images, _show_progress if distributed.is_main() else None).half()
        if distributed.is_main() and len(images) >= MIN_CACHED:
            with suppress(EquipoiseError, OSError):  # without a cache, the next run only takes longer
                cache.make_dir()
                write_tensors(cache, name, {"features": features})
    return replace(images, store=FeatureStore(features, images), rows=torch.arange(len(images)))


def _name(images: Images, extractor: Extractor) -> str:
    """Return a file name that depends on the images and on the network, but not on the labels."""
    of = images.store.fingerprint() + images.rows.numpy().tobytes() + extractor.identity()
    if isinstance(images.store, FileStore):
        with suppress(OSError):  # a file that is missing is an error when it is read
            of += images.store.stamp(images.rows)
    return digest(of).hex() + ".safetensors"


def _read(cache: Directory, name: str, images: int, width: int) -> Tensor | None:
    if not cache.is_file(name):
        return None
    with suppress(EquipoiseError, KeyError):
        features = read_tensors(cache, name)["features"]
        if features.shape == (images, width) and features.dtype == torch.float16 and bool(features.isfinite().all()):
            return features
    return None


def _show_progress(batches: Iterable[T], total: int) -> Iterable[T]:
    return track(batches, total, "extracting features", "batches")
