"""The routes of the API for reading: the model, its classes and steps, predictions, pictures, the tray."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from equipoise.app.model import ACCEPT
from equipoise.app.report.pictures import jpeg
from equipoise.app.stored_images import THUMBNAIL
from equipoise.core.open_dir import printable
from equipoise.engine.results import StepResult
from equipoise.serve import answering, demo, limits, metrics, schema
from equipoise.serve.overview import describe_classes, describe_model
from equipoise.serve.pictures import NotFoundError
from equipoise.serve.service import Service
from equipoise.serve.snapshot import Snapshot
from equipoise.serve.uploads import FORM, decode_upload, read_files

JPEG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}, "description": "A JPEG file"}}
PARTIAL = Query(description="Answer 200 even if no file is a picture; the answer says what is wrong with each.")
VERSION = "x-model-version"
"""The header of answers that have no room for the version."""
Number = Annotated[int, Query(ge=0, le=10**6)]
Top = Annotated[int, Query(ge=1, le=100)]
Accept = Annotated[float, Query(gt=0, le=1)]


async def get_service(request: Request) -> Service:
    """Return the service of the application."""
    service: Service = request.app.state.service
    return service


Shared = Annotated[Service, Depends(get_service)]
router = APIRouter(responses={"4XX": {"model": schema.Error}, "5XX": {"model": schema.Error}})


@router.get("/api/health")
async def health(service: Shared) -> schema.Health:
    """Return whether the server works; needs no token."""
    problem = service.current.problem is not None
    return schema.Health(status="problem" if problem else "ok", model=service.current.snapshot is not None)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def prometheus(service: Shared) -> Response:
    """Return metrics for Prometheus."""
    metrics.PICTURES.set(len(service.pictures))
    return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)


@router.get("/api/model")
def model(service: Shared) -> schema.ModelInfo:
    """Return everything that the page shows about the model."""
    snapshot = service.current.snapshot
    facts: dict[str, Any] = {"version": None, "size": service.size} if snapshot is None else describe_model(snapshot)
    return schema.ModelInfo(
        **facts,
        name="demo" if service.demo else printable(service.model.resolve().name),
        problem=service.current.problem,
        demo=service.demo,
        limits=schema.Limits(
            file_bytes=limits.FILE_BYTES,
            request_bytes=limits.REQUEST_BYTES,
            files_per_request=limits.FILES,
            pictures=limits.PICTURES,
        ),
        jobs=service.jobs.recent(),
    )


@router.get("/api/classes")
def classes(service: Shared, response: Response) -> list[schema.ClassInfo]:
    """List the classes: how many images each has, and how well it is recognised."""
    snapshot = service.snapshot()
    response.headers[VERSION] = snapshot.version
    return describe_classes(snapshot)


@router.get("/api/steps")
def steps(service: Shared, response: Response) -> list[StepResult]:
    """List the steps, with the schema of ``steps.json``."""
    snapshot = service.snapshot()
    response.headers[VERSION] = snapshot.version
    return snapshot.model.steps


def _check_class(snapshot: Snapshot, number: int) -> None:
    if not 0 <= number < len(snapshot.model.classes):
        raise NotFoundError(f"there is no class number {number}: the model has changed")


@router.get("/api/classes/{number}/images")
def class_images(
    service: Shared, number: int, offset: Number = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 60
) -> schema.StoredImages:
    """List the images that the model keeps of a class."""
    snapshot = service.snapshot()
    _check_class(snapshot, number)
    names = list(dict.fromkeys(snapshot.stored.names(number)))
    shown = names[offset : offset + limit]
    pictures = snapshot.stored.shown
    return schema.StoredImages(version=snapshot.version, total=len(names), images=shown, pictures=pictures)


@router.get("/api/classes/{number}/images/{name}", response_class=Response, responses=JPEG)
def class_image(service: Shared, number: int, name: str) -> Response:
    """Return a thumbnail of an image that the model keeps."""
    snapshot = service.snapshot()
    _check_class(snapshot, number)
    stored = snapshot.stored.picture(number, name[:64])
    picture = jpeg(stored, THUMBNAIL) if stored else None
    if picture is None:
        raise NotFoundError("the model keeps no such picture")
    return Response(picture, media_type="image/jpeg", headers={VERSION: snapshot.version})


@router.post("/api/predict", openapi_extra=FORM)
async def predict(
    request: Request,
    service: Shared,
    top: Top = 5,
    accept: Accept = ACCEPT,
    keep: Annotated[bool, Query(description="Keep the pictures, to correct or to name them later.")] = False,
    partial: Annotated[bool, PARTIAL] = False,
) -> schema.Answers:
    """Predict the classes of picture files. All answers of a request come from one version."""
    service.snapshot()  # an error before the pictures are sent
    files = await read_files(request)
    snapshot = service.snapshot()  # it may have changed meanwhile
    answers = await service.compute(lambda: answering.predict_files(service, snapshot, files, top, accept, keep))
    if not partial and all(answer.error for answer in answers.predictions):
        raise HTTPException(415, answers.predictions[0].error)
    return answers


@router.post("/api/pictures", openapi_extra=FORM)
async def upload_pictures(
    request: Request, service: Shared, partial: Annotated[bool, PARTIAL] = False
) -> schema.UploadedPictures:
    """Upload picture files to be learned. They are decoded and cropped, and deleted when the server stops."""
    files = await read_files(request)
    found = await service.compute(lambda: _store(service, files))
    if not partial and all(one.problem for one in found):
        raise HTTPException(415, found[0].problem)
    return schema.UploadedPictures(pictures=found)


def _store(service: Service, files: list[bytes]) -> list[schema.Uploaded]:
    size, bicubic = service.size, service.bicubic
    uploads = [decode_upload(data, size, bicubic) for data in files]
    stored = iter(service.pictures.add_all([upload.pixels for upload in uploads if upload.pixels is not None]))
    return [
        schema.Uploaded(problem=upload.problem) if upload.pixels is None else schema.Uploaded(id=next(stored).id)
        for upload in uploads
    ]


@router.post("/api/pictures/predict")
async def predict_pictures(
    service: Shared, kept: schema.KeptPictures, top: Top = 5, accept: Accept = ACCEPT
) -> schema.Answers:
    """Predict the classes of pictures that were kept; those that are gone have an ``error``."""
    snapshot = service.snapshot()
    return await service.compute(lambda: answering.predict_kept(service, snapshot, kept.pictures, top, accept))


@router.get("/api/pictures/{name}", response_class=Response, responses=JPEG)
def picture(service: Shared, name: str) -> Response:
    """Return a preview of an uploaded picture."""
    return Response(service.pictures.preview(name), media_type="image/jpeg")


@router.delete("/api/pictures/{name}", status_code=204)
def delete_picture(service: Shared, name: str) -> None:
    """Delete an uploaded picture."""
    service.pictures.remove([service.pictures.get(name).id])


@router.get("/api/tray")
async def tray(service: Shared) -> schema.TrayContent:
    """Return unknown pictures that were kept, in groups of similar ones."""
    return await service.group(lambda snapshot: answering.group_unknown(service, snapshot), answering.EMPTY_TRAY)


@router.get("/api/demo")
def demo_kinds(service: Shared) -> schema.Demo:
    """List the pictures of the demo."""
    kinds = demo.KINDS if service.demo else ()
    return schema.Demo(kinds=[schema.DemoKind(name=name, pictures=demo.PICTURES) for name in kinds])


@router.get("/api/demo/{kind}/{number}", response_class=Response, responses=JPEG)
def demo_picture(service: Shared, kind: str, number: int) -> Response:
    """Return a picture of the demo."""
    if not service.demo or kind not in demo.KINDS or not 0 <= number < demo.PICTURES:
        raise NotFoundError("there is no such demo picture")
    return Response(demo.draw(kind, number), media_type="image/jpeg")
