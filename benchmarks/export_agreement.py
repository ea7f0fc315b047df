"""Compare an exported model with predict, on photos resaved in many sizes, modes and orientations.

python benchmarks/export_agreement.py MODEL FOLDER
"""

from __future__ import annotations

import runpy
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

from equipoise.app.export import export_onnx
from equipoise.app.model_dir import ModelDir
from equipoise.app.predict import expand_paths, predict

COUNT = 200
EXAMPLE = Path(__file__).parents[1] / "examples" / "onnx_predict.py"
KINDS = ("L png", "RGB jpg", "RGBA png", "P gif", "CMYK jpg", "I;16 png", "RGB webp", "RGB tif", "RGB jpg", "RGB png")


def resave(file: str, number: int, folder: Path, draws: np.random.Generator) -> str:
    """Save a photo with sides between 60 and 2000 pixels, and return its path."""
    mode, ending = KINDS[number % len(KINDS)].split()
    picture = Image.open(file).convert("RGB")
    sides = np.exp(draws.uniform(np.log(60), np.log(2000))) * draws.uniform(0.6, 1.0, 2)
    picture = picture.resize((int(sides[0]), int(sides[1])), Image.Resampling.LANCZOS)
    if mode == "RGBA":
        picture.putalpha(Image.linear_gradient("L").resize(picture.size))
    elif mode == "I;16":
        picture = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    else:
        picture = picture.convert(mode)
    exif = Image.Exif()
    exif[0x0112] = 1 + number // len(KINDS) % 8
    out = folder / f"{number}.{ending}"
    picture.save(out, exif=exif)
    return str(out)


def main(model_path: str, photos: str) -> None:
    """Print how many answers are the same, and how far probabilities differ."""
    model = ModelDir(Path(model_path)).load()
    draws = np.random.default_rng(0)
    files = sorted(str(file) for file in Path(photos).rglob("*") if file.is_file())
    read = runpy.run_path(str(EXAMPLE))["read"]
    with tempfile.TemporaryDirectory() as folder:
        print(export_onnx(model, Path(folder) / "model.onnx"))
        session = onnxruntime.InferenceSession(Path(folder) / "model.onnx")
        chosen = draws.choice(files, COUNT, replace=False)
        paths = [resave(file, number, Path(folder), draws) for number, file in enumerate(chosen)]
        same, unknown, differences = 0, 0, []
        for ours in predict(model, expand_paths(paths), top=len(model.classes)):
            theirs = session.run(None, {"image": read(ours.path, model.shape[1])})
            row = dict(zip(map(str, model.classes), theirs[0].tolist(), strict=True))
            same += max(row, key=lambda name: row[name]) == str(ours.classes[0][0]) and ours.unknown == theirs[2]
            unknown += ours.unknown
            differences.append([abs(row[str(name)] - value) for name, value in ours.classes])
    print(f"same answer for {same} of {COUNT} photos ({same / COUNT:.1%}); {unknown} are unknown")
    print(f"difference of probabilities: mean {np.mean(differences):.1e}, largest {np.max(differences):.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
