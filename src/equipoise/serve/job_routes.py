"""The routes of the API that change the model: jobs, and the events that follow from them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse, StreamingResponse

from equipoise.serve import schema
from equipoise.serve.routes import Shared
from equipoise.serve.tasks import plain_name

EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "Server-sent events"}
}
router = APIRouter(responses={"4XX": {"model": schema.Error}, "5XX": {"model": schema.Error}})


@router.get("/api/jobs")
async def jobs(service: Shared) -> list[schema.Job]:
    """List jobs that wait, run, or were finished not long ago, oldest first."""
    return service.jobs.recent()


@router.post("/api/jobs", status_code=202)
async def start_job(service: Shared, task: schema.Task) -> schema.Job:
    """Change the model, or make a file to download. One job runs at a time; others wait."""
    return service.jobs.submit(task)


@router.get("/api/jobs/{number}")
async def job(service: Shared, number: str) -> schema.Job:
    """Return a job."""
    return service.jobs.get(number).job


@router.delete("/api/jobs/{number}")
async def cancel_job(service: Shared, number: str) -> schema.Job:
    """Cancel a job; the model stays as it is."""
    return service.jobs.cancel(number)


@router.get("/api/jobs/{number}/events", response_class=StreamingResponse, responses=EVENTS)
async def job_events(service: Shared, number: str) -> StreamingResponse:
    """Follow a job until it is finished."""
    entry = service.jobs.get(number)
    return service.events.follow(lambda: ("job", entry.job.model_dump()), number)


@router.get("/api/events", response_class=StreamingResponse, responses=EVENTS)
async def events(service: Shared) -> StreamingResponse:
    """Follow the model (event ``model``) and all jobs (event ``job``)."""
    return service.events.follow(lambda: ("model", service.version()))


@router.get(
    "/api/jobs/{number}/file",
    response_class=FileResponse,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "The file"}},
)
async def job_file(service: Shared, number: str) -> FileResponse:
    """Download the file that an export made."""
    file = service.jobs.get(number).file
    if file is None or not file.is_file():
        raise HTTPException(404, "this job made no file: start an export and wait until it is done")
    return FileResponse(file, filename=plain_name(service.model) + file.suffix, media_type="application/octet-stream")
