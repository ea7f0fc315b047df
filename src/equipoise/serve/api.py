"""The application: the page, the API, and one kind of answer for all errors."""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp

from equipoise.core.open_dir import printable
from equipoise.errors import EquipoiseError
from equipoise.serve import job_routes, routes, schema
from equipoise.serve.guard import Guard, address_of
from equipoise.serve.pictures import FullError, NotFoundError
from equipoise.serve.service import Service
from equipoise.serve.words import for_the_page, without_paths
from equipoise.version import __version__

PAGE = Path(__file__).with_name("page")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
ADDRESSES = {
    "Not Found": "no such address: see /openapi.json",
    "Method Not Allowed": "this address does not accept that method: see /openapi.json",
}
log = logging.getLogger("equipoise.serve")


def make_app(service: Service) -> FastAPI:
    """Return the application without its guard."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    # FastAPI's own pages for the schema load scripts from another site
    app = FastAPI(
        title="equipoise",
        version=__version__,
        summary="A classifier that keeps learning new classes.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.include_router(routes.router)
    app.include_router(job_routes.router)
    app.add_exception_handler(EquipoiseError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_invalid)
    app.add_exception_handler(StarletteHTTPException, _refuse_address)
    app.add_exception_handler(OSError, _refuse_os_error)
    app.add_exception_handler(Exception, _fail)
    _add_page(app)
    return app


def guarded(app: FastAPI, guard: Any) -> ASGIApp:
    """Return the application behind its guard, with the route that exchanges the token for a cookie."""
    protected: Guard = guard(app)

    @app.post("/api/session", status_code=204, responses={"4XX": {"model": schema.Error}})
    async def session(body: schema.Session, request: Request) -> Response:
        """Exchange the token for a cookie, so that the page can use the API."""
        protected.check_token(body.token, address_of(request.scope))
        response = Response(status_code=204)
        secure = request.headers.get("origin", "").startswith("https:")
        response.set_cookie(protected.cookie, protected.session, httponly=True, samesite="strict", secure=secure)
        return response

    return protected


def _add_page(app: FastAPI) -> None:
    files = {file.name: file for file in PAGE.iterdir() if file.suffix in TYPES}

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(files["index.html"], media_type=TYPES[".html"])

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> FileResponse:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        return FileResponse(files[name], media_type=TYPES[files[name].suffix])


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    status = 404 if isinstance(error, NotFoundError) else 507 if isinstance(error, FullError) else 409
    service: Service = request.app.state.service
    where = service.current.place.path, service.pictures.folder
    return JSONResponse({"detail": for_the_page(without_paths(str(error), *where))}, status)


async def _refuse_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query"))[:100]
    message = printable(first["msg"])
    if len(message) > 300:  # it quotes the value
        message = f"{message[:100]}…{message[-200:]}"
    return JSONResponse({"detail": f"{printable(where) or 'the request'}: {message}"}, 422)


async def _refuse_address(request: Request, error: Exception) -> JSONResponse:
    """Answer with a sentence where Starlette has only the name of a status."""
    assert isinstance(error, StarletteHTTPException)
    detail = ADDRESSES.get(error.detail, error.detail)
    return JSONResponse({"detail": detail}, error.status_code, error.headers)


async def _refuse_os_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, OSError)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return JSONResponse({"detail": "the disk is full: free some space"}, 507)
    return await _fail(request, error)


async def _fail(request: Request, error: Exception) -> JSONResponse:
    log.error("unexpected error in %s", request.url.path, exc_info=error)
    return JSONResponse({"detail": "an unexpected error; details are in the server's log"}, 500)
