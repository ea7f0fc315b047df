"""Picture files in a request: read within limits, and recognised by their content, never by their names."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from fastapi import HTTPException, Request
from PIL import Image, JpegImagePlugin
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from equipoise.data.decoding import decode
from equipoise.data.picture_files import FORMATS, cost_problem, decoding_bytes
from equipoise.errors import DataError
from equipoise.serve.limits import FILE_BYTES, FILES, PIXELS, REQUEST_BYTES

FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "properties": {
                        "files": {
                            "type": "array",
                            "minItems": 1,
                            "maxItems": FILES,
                            "items": {"type": "string", "contentMediaType": "application/octet-stream"},
                            "description": "Picture files: JPEG, PNG, WebP, BMP, GIF or TIFF.",
                        }
                    },
                }
            }
        },
    }
}
"""How the OpenAPI schema describes a form with files."""


class MemoryParser(MultiPartParser):
    """Keeps files in memory: they are decoded at once, and a full disk does not matter."""

    spool_max_size = REQUEST_BYTES


@dataclass(frozen=True)
class Upload:
    """A decoded picture, or what is wrong with the file."""

    pixels: np.ndarray | None
    problem: str | None = None


async def read_files(request: Request) -> list[bytes]:
    """Return the content of the files in a form; the names that a client gives them are not used."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise HTTPException(415, "send picture files as multipart/form-data, in the field `files`")
    parser = MemoryParser(request.headers, request.stream(), max_files=FILES, max_fields=10)
    try:
        form = await parser.parse()
    except ClientDisconnect as error:
        raise HTTPException(400, "the upload was interrupted: send it again") from error
    except MultiPartException as error:
        many = "Too many" in error.message
        raise HTTPException(413 if many else 422, f"cannot read the form ({error.message.rstrip('.')})") from error
    except (KeyError, UnicodeError, ValueError) as error:  # no boundary, or a name that is not text
        raise HTTPException(422, "cannot read the form: send it as a browser or curl -F does") from error
    try:
        files = [value for name, value in form.multi_items() if name == "files" and isinstance(value, UploadFile)]
        if not files:
            raise HTTPException(422, "the form has no files in the field `files`: add at least one picture")
        return [await _take(file) for file in files]
    finally:
        await form.close()


async def _take(file: UploadFile) -> bytes:
    """Return the content of a file and free the parser's copy."""
    try:
        return await file.read()
    finally:
        await file.close()


def decode_upload(data: bytes, size: int, bicubic: bool = True) -> Upload:
    """Decode a picture, and crop and resize it as the model needs it."""
    if not data:
        return Upload(None, "the file is empty")
    if len(data) > FILE_BYTES:
        return Upload(None, f"the file is larger than {FILE_BYTES >> 20} MB: make it smaller")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            problem = _problem(picture, data)
    except Image.DecompressionBombError:
        return Upload(None, "the picture has too many pixels: make it smaller")
    except Exception:  # a decoder may raise anything
        if data[4:8] == b"ftyp":
            return Upload(None, "HEIC and AVIF cannot be read: save the picture as JPEG or PNG")
        return Upload(None, "this is not a picture (JPEG, PNG, WebP, BMP, GIF or TIFF)")
    if problem is not None:
        return Upload(None, problem)
    try:
        return Upload(decode(data, size, bicubic=bicubic))
    except DataError as error:
        reason = " ".join(str(error.__cause__).split())[:200] or type(error.__cause__).__name__
        return Upload(None, f"the picture is damaged ({reason})")


def _problem(picture: Image.Image, data: bytes) -> str | None:
    """Return what is wrong with a picture that would take too much time or memory to decode."""
    is_jpeg = isinstance(picture, JpegImagePlugin.JpegImageFile)
    if not is_jpeg and picture.size[0] * picture.size[1] > PIXELS:
        return f"the picture has more than {PIXELS // 1_000_000} million pixels: make it smaller"
    full = picture.size
    picture.draft("RGB", (1, 1))
    problem = cost_problem(picture, full, data, decoding_bytes(picture, full, data))
    return f"the picture {problem}" if problem else None
