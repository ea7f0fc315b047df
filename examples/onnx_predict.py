"""Ask an exported model (equipoise export MODEL model.onnx) about pictures. Needs onnxruntime and Pillow, not torch."""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1])
facts = session.get_modelmeta().custom_metadata_map
names, size = json.loads(facts["classes"]), int(facts["size"])
for path in sys.argv[2:]:
    upright = ImageOps.exif_transpose(Image.open(path)).convert("RGBA")
    on_white = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright).convert("RGB")
    picture = ImageOps.fit(on_white, (size, size), Image.Resampling.BILINEAR)
    (shares,) = session.run(None, {"images": np.asarray(picture)[None]})[0]
    print(f"{path}  {names[shares.argmax()]} {shares.max():.1%}")
