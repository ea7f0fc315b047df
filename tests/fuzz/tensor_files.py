"""Safetensors files: weights, checkpoints, stored features and predictions."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.app.model_dir import ModelDir
from equipoise.app.stored_features import Block, read_block
from equipoise.core import tensors
from equipoise.core.directory import Directory
from equipoise.core.files import digest
from equipoise.errors import EquipoiseError
from equipoise.learn.backbones import Architecture
from equipoise.learn.backbones.weights import load_weights
from equipoise.learn.runtime import Runtime
from equipoise.study.align_file import align_file
from equipoise.study.features import _read
from equipoise.study.report.runs import read_run
from tests.fuzz.directories import SAVED, model_originals
from tests.fuzz.loop import Case, Make, RefusedError
from tests.fuzz.mutate import LARGE, change_value, mutate

BAD_NUMBERS = (float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 3e18, 1e-45, 0.0, -1.0, 1e300, 65504.0)
DTYPES = (*tensors.DTYPES, "U32", "U64", "F8_E4M3", "C64", "x")


def split(data: bytes) -> tuple[Any, bytes]:
    """Return the header and the rest of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: Any, rest: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + rest


def change_tensors(data: bytes, random: Random) -> bytes:
    """Return a changed safetensors file: its tensors, its header or its bytes."""
    kind = random.random()
    if kind < 0.45:
        return change_content(data, random)
    if kind < 0.7:
        header, rest = split(data)
        header = change_value(header, random)
        if random.random() < 0.3 and isinstance(header, dict) and header:
            name = random.choice(list(header))
            if isinstance(header[name], dict):
                header[name] = header[name] | {"dtype": random.choice(DTYPES)}
        return joined(header, rest)
    if kind < 0.75:
        return random.choice((*LARGE, len(data), len(data) - 8)).to_bytes(8, "little") + data[8:]
    return mutate(data, random)


def change_content(data: bytes, random: Random) -> bytes:
    """Return a valid file with other values, shapes, types or names."""
    found = dict(safetensors_of(data))
    for _ in range(random.choice((1, 1, 2))):
        name = random.choice(list(found)) if found else "a"
        value = found.get(name, torch.zeros(3))
        change = random.randrange(7)
        if change < 3 and value.numel():
            changed = value.clone().flatten()
            place = random.randrange(len(changed)) if random.random() < 0.6 else slice(None)
            number = random.choice(BAD_NUMBERS if value.is_floating_point() else (-1, 0, 1, 2, 3, 100, 127))
            changed[place] = torch.tensor(number).to(value.dtype)
            found[name] = changed.reshape(value.shape)
        elif change == 3:
            kinds = (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8)
            found[name] = value.to(random.choice(kinds))
        elif change == 4:
            shape = list(value.shape) or [1]
            shape[random.randrange(len(shape))] = random.choice((0, 1, 2, 5, 300))
            found[name] = torch.zeros(shape, dtype=value.dtype)
        elif change == 5:
            found.pop(name, None)
        else:
            found[random.choice(("x", "", "a.b", "head.weight", "\ud800", name + "x"))] = value
    return save(found)


def safetensors_of(data: bytes) -> dict[str, Tensor]:
    return tensors.parse(data, "a seed")


def save(content: dict[str, Tensor]) -> bytes:
    """Return the bytes of a file with any values; ``serialize`` refuses those that are not finite."""
    header, parts, place = {}, [], 0
    names = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}
    names |= {torch.int64: "I64", torch.uint8: "U8", torch.bool: "BOOL", torch.int32: "I32", torch.int16: "I16"}
    for name, value in content.items():
        raw = value.contiguous().flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""
        entry = {"dtype": names[value.dtype], "shape": list(value.shape), "data_offsets": [place, place + len(raw)]}
        header[name], place = entry, place + len(raw)
        parts.append(raw)
    return joined(header, b"".join(parts))


def small_seeds() -> list[bytes]:
    """Return files of a few tensors of every type."""
    several = {str(kind): torch.arange(6).reshape(2, 3).to(kind) for kind in tensors.DTYPES.values()}
    return [
        *(save({}), save({"a": torch.zeros(3)}), save({"a": torch.zeros((0, 4)), "b": torch.zeros(())})),
        save({name: value for name, value in several.items() if value.dtype not in (torch.int8,)}),
        save({"head.weight": torch.ones(4, 6), "head.bias": torch.ones(4), "sizes": torch.tensor([2, 2])}),
        tensors.serialize({"a": torch.ones(2, 2)}, {"format": "pt"}),
    ]


def weights(place: Path) -> Make:
    """Read weights that a user names, for backbones and for ``align``."""
    backbone = Architecture("tiny", (3, 8, 8))()
    own = save(dict(backbone.state_dict()))
    seeds, file = [*small_seeds(), own], place / "weights.safetensors"
    file.write_bytes(own)
    load_weights(backbone, file)
    torch.save({"head.weight": torch.ones(4, 6), "head.bias": torch.ones(4)}, place / "seed.pt")
    packed = (place / "seed.pt").read_bytes()

    def make(random: Random) -> Case:
        kind = random.choice(("parse", "parse", "read", "backbone", "align", "torch"))
        data = mutate(packed, random, seeds) if kind == "torch" else change_tensors(random.choice(seeds), random)
        if kind == "backbone" and random.random() < 0.6:
            data = change_tensors(own, random)

        def read() -> None:
            if kind == "parse":
                tensors.check_header(io.BytesIO(data), len(data), "it")
                tensors.parse(data, "it")
                return
            named = file.with_suffix(".pt") if kind == "torch" else file
            named.write_bytes(data)
            if kind == "read":
                tensors.read_file(named)
            elif kind == "backbone":
                load_weights(backbone, named)
            else:
                align_file(named, "head.weight", 2, place / "aligned.safetensors")

        return Case(data, read, kind)

    return make


def checkpoints(place: Path) -> Make:
    """Load models with changed weights, whose digest is right."""
    originals = model_originals(place / "originals")
    files = {}
    for original in originals:
        shutil.copytree(original, place / original.name)
        folder = f"versions/{ModelDir(original).config().version}/"
        files[original] = f"{folder if (original / folder).is_dir() else ''}model.safetensors"
        ModelDir(place / original.name).load(Runtime("cpu"))

    def make(random: Random) -> Case:
        original = random.choice(originals)
        model, file = place / original.name, files[original]
        data = change_tensors((original / file).read_bytes(), random)

        def read() -> None:
            config = json.loads((original / "config.json").read_text()) | {"weights": digest(data).hex()}
            (model / "config.json").write_text(json.dumps(config))
            (model / file).write_bytes(data)
            loaded = ModelDir(model).load(Runtime("cpu"))
            norms = loaded.method.weight_norms(1)
            if norms is not None and not norms.isfinite().all():
                raise AssertionError("it has norms that are not finite")

        return Case(data, read, original.name)

    return make


def stored_features(place: Path) -> Make:
    """Read blocks of features, features in the cache, and predictions of runs."""
    width, rows = 5, 4
    draws = np.random.default_rng(0)
    ids = torch.from_numpy(draws.integers(0, 256, (rows, 16), dtype=np.uint8))
    features = torch.from_numpy(draws.normal(size=(rows, width)).astype(np.float32)).half()
    pictures = {"thumbnails": torch.arange(30).to(torch.uint8), "ends": torch.tensor([10, 10, 20, 30])}
    blocks = [save({"features": features, "ids": ids}), save({"features": features, "ids": ids, **pictures})]
    cached = save({"features": features})
    directory = Directory(place / "model")
    directory.make_dir("memory")
    run = shutil.copytree(SAVED / "run-finished", place / "run")
    record = read_run(run)
    predictions = (run / "predictions" / "step-2.safetensors").read_bytes()

    def read_blocks(data: bytes) -> None:
        name = "0" * 32
        try:  # the name is a hash of the content
            content = safetensors_of(data)
            name = Block(content["features"], tuple(bytes(row).hex() for row in content["ids"].numpy())).name
        except (EquipoiseError, KeyError, TypeError, ValueError):
            pass
        directory.write_bytes(f"memory/{name}.safetensors", data)
        try:
            block = read_block(directory, f"memory/{name}.safetensors", width)
        finally:
            directory.remove(f"memory/{name}.safetensors")
        if sum(map(len, block.thumbnails.values())) > len(data):
            raise AssertionError("its thumbnails are larger than the file")

    def read_cache(data: bytes) -> None:
        directory.write_bytes("cached.safetensors", data)
        if _read(directory, "cached.safetensors", rows, width) is None:
            raise RefusedError

    def read_predictions(data: bytes) -> None:
        (run / "predictions" / "step-2.safetensors").write_bytes(data)
        record.predictions(2)

    kinds: Sequence[tuple[Callable[[bytes], None], Sequence[bytes]]] = (
        *((read_blocks, blocks), (read_cache, [cached]), (read_predictions, [predictions])),
    )
    for function, seeds in kinds:
        for data in seeds:
            function(data)

    def make(random: Random) -> Case:
        function, seeds = random.choice(kinds)
        data = change_tensors(random.choice(seeds), random)
        return Case(data, partial(function, data), function.__name__)

    return make
