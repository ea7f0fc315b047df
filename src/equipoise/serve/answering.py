"""Answers about pictures: what they show, and which of the unknown ones are similar."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.app.predict import Prediction
from equipoise.serve import schema
from equipoise.serve.metrics import PREDICTIONS
from equipoise.serve.pictures import NotFoundError, Picture
from equipoise.serve.service import Service
from equipoise.serve.snapshot import Snapshot
from equipoise.serve.uploads import decode_upload

EMPTY_TRAY = schema.TrayContent(version=None, groups=[])


def predict_files(
    service: Service, snapshot: Snapshot, files: Sequence[bytes], top: int, accept: float, keep: bool
) -> schema.Answers:
    """Predict picture files, and keep the pictures if asked for."""
    uploads = [decode_upload(data, snapshot.size, snapshot.model.bicubic) for data in files]
    pixels = [upload.pixels for upload in uploads if upload.pixels is not None]
    predictions = iter(snapshot.predict(pixels, top, accept))
    kept = iter(service.pictures.add_all(pixels) if keep else [None] * len(pixels))
    answers = [
        schema.Answer(error=upload.problem)
        if upload.pixels is None
        else _answer(service, snapshot, next(predictions), next(kept))
        for upload in uploads
    ]
    return schema.Answers(version=snapshot.version, predictions=answers)


def predict_kept(service: Service, snapshot: Snapshot, names: Sequence[str], top: int, accept: float) -> schema.Answers:
    """Predict pictures that were kept; those that can no longer be predicted have an error."""
    found = [_read(service, snapshot, name) for name in names]
    pixels = [one[1] for one in found if not isinstance(one, str)]
    predictions = iter(snapshot.predict(pixels, top, accept))
    answers = [
        schema.Answer(error=one) if isinstance(one, str) else _answer(service, snapshot, next(predictions), one[0])
        for one in found
    ]
    return schema.Answers(version=snapshot.version, predictions=answers)


def _read(service: Service, snapshot: Snapshot, name: str) -> tuple[Picture, np.ndarray] | str:
    try:
        picture = service.pictures.get(name)
        if picture.size != snapshot.size:
            return "the model now takes pictures of another size: upload it again"
        return picture, service.pictures.read(picture)
    except NotFoundError as error:
        return str(error)


def _answer(service: Service, snapshot: Snapshot, prediction: Prediction, kept: Picture | None) -> schema.Answer:
    PREDICTIONS.labels(str(prediction.unknown).lower()).inc()
    classes = [schema.Probability(**{"class": str(name)}, probability=round(p, 6)) for name, p in prediction.classes]
    if kept is not None:
        service.tray.add(kept, prediction, snapshot.version)
    return schema.Answer(unknown=prediction.unknown, predictions=classes, picture=kept.id if kept else None)


def group_unknown(service: Service, snapshot: Snapshot) -> schema.TrayContent:
    """Return the tray's pictures in groups."""
    groups = [
        schema.TrayGroup(
            pictures=[schema.TrayPicture(id=p.id, nearest=p.nearest, probability=p.probability) for p in group]
        )
        for group in service.tray.groups(snapshot)
    ]
    return schema.TrayContent(version=snapshot.version, groups=groups)
