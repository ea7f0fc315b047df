"""Images that a model keeps on disk: the images themselves, or rows of a frozen backbone's features."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from equipoise.app.model import Model
from equipoise.app.model_files import KINDS, ModelImages
from equipoise.app.stored_features import read_block, write_blocks
from equipoise.app.stored_images import ending, fetch, folder_name, store
from equipoise.core.directory import Directory
from equipoise.data.images import FeatureStore, Images, TensorStore
from equipoise.engine.results import Label
from equipoise.errors import RunError

MAX_IMAGES = 10_000_000
"""Images that a model may list: a few files, listed often, could take any amount of memory."""


def load_images(directory: Directory, model: Model, names: ModelImages) -> None:
    """Read all that is kept into one tensor; memory and hold-out are views of it."""
    found = [
        (kind, c, f"{kind}/{folder_name(model.classes[c])}/{name}")
        for kind in KINDS
        for c, mine in enumerate(names.of(kind))
        for name in mine
    ]
    if not found:
        return
    files = list(dict.fromkeys(file for _, _, file in found))  # equal images are listed several times and read once
    if not model.in_blocks:
        suffix = ending(model.shape, model.holdout.store.dtype)
        kept: TensorStore = TensorStore(torch.stack(fetch(directory, [file + suffix for file in files], model.shape)))
        lengths = [1] * len(files)
    else:
        blocks = [read_block(directory, f"{file}.safetensors", model.stored_shape[0]) for file in files]
        ids = [name for block in blocks for name in block.ids]
        kept = FeatureStore(torch.cat([block.features for block in blocks]), ids=ids)
        lengths = [len(block.ids) for block in blocks]
        model.blocks = {block.name: block.ids for block in blocks}
        model.thumbnails = {name: picture for block in blocks for name, picture in block.thumbnails.items()}
    parts = dict(zip(files, torch.arange(len(kept)).split(lengths), strict=True))
    sizes = torch.tensor([len(parts[file]) for _, _, file in found])
    if int(sizes.sum()) > MAX_IMAGES:
        raise RunError(f"the model in {directory.path} lists more than {MAX_IMAGES:,} images: {directory.remedy}")
    rows = torch.cat([parts[file] for _, _, file in found])
    labels = torch.tensor([c for _, c, _ in found]).repeat_interleave(sizes)
    exemplar = torch.tensor([kind == "memory" for kind, _, _ in found]).repeat_interleave(sizes)
    everything = Images(kept, rows, labels)
    model.holdout = everything.select(~exemplar)
    for label in labels[exemplar].unique().tolist():
        model.memory.exemplars[label] = everything.select(exemplar & (labels == label))


def store_images(directory: Directory, model: Model) -> ModelImages:
    """Write all images that the directory does not contain yet; return the names of all."""
    kept: Mapping[Label, tuple[Images, Images]] = model.images_by_class()
    names: dict[str, list[list[str]]] = {kind: [] for kind in KINDS}
    sizes: dict[str, int] = {}
    for label, parts in kept.items():
        for kind, images in zip(KINDS, parts, strict=True):
            folder = f"{kind}/{folder_name(label)}"
            if not model.in_blocks:
                names[kind].append(store(directory, folder, images.read() if len(images) else ()))
            else:
                half = model.extractor is not None  # its features are rounded already
                blocks = write_blocks(directory, folder, images, model.blocks, model.thumbnails, half)
                names[kind].append([name for name, _ in blocks])
                sizes |= {name: len(ids) for name, ids in blocks}
                model.blocks |= dict(blocks)
    return ModelImages(**names, sizes=sizes)
