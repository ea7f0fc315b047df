"""Predict photos with an exported model (equipoise export MODEL model.onnx). Needs onnxruntime and Pillow, not torch.

python onnx_predict.py model.onnx photo.jpg …
"""

import json
import os
import sys

import numpy as np
from PIL import Image, ImageOps

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # otherwise ONNX Runtime contacts its makers
import onnxruntime


def read(path: str, size: int) -> np.ndarray:
    """Return a photo as upright RGB, with transparent parts made white."""
    with Image.open(path) as file:
        if file.format == "JPEG":
            file.draft("RGB", (2 * size, 2 * size))  # decodes a large photo at a fraction of its size
        picture = ImageOps.exif_transpose(file)
    if picture.mode.startswith("I;16"):
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.has_transparency_data:
        rgba = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return np.asarray(picture.convert("RGB"))


def main(model: str, *paths: str) -> None:
    """Print the most probable class of each photo, or that it is unknown."""
    session = onnxruntime.InferenceSession(model)
    metadata = session.get_modelmeta().custom_metadata_map
    classes, size = json.loads(metadata["classes"]), int(metadata["size"])
    for path in paths:
        inputs = {"image": read(path, size)}
        probabilities, unknown = session.run(["probabilities", "unknown"], inputs)
        answer = f"{classes[probabilities.argmax()]} {probabilities.max():.1%}"
        print(f"{path}  " + (f"unknown (nearest: {answer})" if unknown else answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
