"""Predict images with an exported model (equipoise export MODEL model.onnx). Needs onnxruntime and Pillow, not torch.

python onnx_predict.py model.onnx photo.jpg …
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1])
metadata = session.get_modelmeta().custom_metadata_map
classes, size = json.loads(metadata["classes"]), int(metadata["size"])
for path in sys.argv[2:]:
    upright = ImageOps.exif_transpose(Image.open(path)).convert("RGBA")
    on_white = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright).convert("RGB")
    picture = ImageOps.fit(on_white, (size, size), Image.Resampling.BILINEAR)
    (probabilities,) = session.run(None, {"images": np.asarray(picture)[None]})[0]
    print(f"{path}  {classes[probabilities.argmax()]} {probabilities.max():.1%}")
