"""What every request has to pass: who asks, from where, how much it sends and how slowly.

A page of another site may send requests to this server through the user's browser. It cannot choose the Origin header,
and after DNS rebinding the Host header names that site, so both are checked.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import time
from collections.abc import Iterable
from typing import Any, NoReturn

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from equipoise.serve.limits import BODY_SECONDS, CONNECTIONS, JSON_BYTES, REQUEST_BYTES
from equipoise.serve.metrics import REQUESTS, SECONDS

OPEN = ("/", "/page/", "/api/session", "/api/health", "/openapi.json")
"""Paths that need no token; a slash at the end includes what is below it."""
UPLOADS = ("/api/predict", "/api/pictures")
STREAMS = ("/api/events", "/api/jobs/{number}/events")
BODIES = 8 * REQUEST_BYTES
"""Bytes of all requests that are worked on: each is kept in memory until it is answered."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class Guard:
    """ASGI middleware around the whole application.

    Parameters
    ----------
    app
        The application.
    hosts
        Names under which the server may be addressed, besides IP addresses.
    loopback
        Whether the server listens on this machine only; other IP addresses are then refused, too.
    token
        What clients have to know; None if everybody on this machine may use the server.
    port
        Of the server, for the name of the cookie: browsers share cookies between ports.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], loopback: bool, token: str | None, port: int) -> None:
        self.app, self.hosts, self.loopback, self.token = app, {host.lower() for host in hosts}, loopback, token
        self.cookie = f"equipoise-{port}"
        self._guesses = asyncio.Lock()
        self.active, self.received = 0, 0
        """Requests that are worked on, and how many bytes they have sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 0
        headers = Headers(scope=scope)
        body = Body(self, receive, headers, _limit(scope["path"]))

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": _with_headers(message["headers"], close=not body.complete)}
            await send(message)

        self.active += 1
        try:
            await self._check(headers, scope)
            await self.app(scope, body.read, answer)
        except HTTPException as error:
            if not status:
                await _refuse(answer, error)
        finally:
            self.active -= 1
            body.release()
            route = getattr(scope.get("route"), "path", "other")
            REQUESTS.labels(route, status).inc()
            if route not in STREAMS:
                SECONDS.labels(route).observe(time.monotonic() - started)

    async def _check(self, headers: Headers, scope: Scope) -> None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            raise HTTPException(421, "this server does not answer under that name: use the address it printed")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise HTTPException(403, "requests from other sites are refused")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and scope["path"] != "/":
            raise HTTPException(403, "requests from other sites are refused")
        if self.active > CONNECTIONS:
            raise HTTPException(503, "the server is busy with other requests: try again in a moment")
        if "transfer-encoding" in headers and "content-length" in headers:  # a proxy may believe the other one
            raise HTTPException(400, "the request has two lengths: send Content-Length or Transfer-Encoding, not both")
        if _has_body(headers) and scope["method"] != "POST":
            raise HTTPException(400, f"a {scope['method']} request has no body: leave it out")
        limit = _limit(scope["path"])
        if int(headers.get("content-length", "0")) > limit:
            raise too_large(limit)
        if self.token is not None and not _is_open(scope["path"]):
            await self._check_token(headers)

    def _is_ours(self, host: str) -> bool:
        name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
        if port and not port.isdecimal():
            return False
        name = name.lower().removesuffix(".")
        if name in self.hosts:
            return True
        try:
            address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return address.is_loopback or not self.loopback

    async def _check_token(self, headers: Headers) -> None:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if given and kind.lower() == "bearer":
            await self.check_token(given.strip())
            return
        cookie = _cookie(headers, self.cookie)
        if cookie is None:
            raise HTTPException(401, "this server needs a token: open the link it printed, or send a bearer token")
        if not hmac.compare_digest(cookie.encode(), self.session().encode()):
            # as slow as a wrong token: whoever guesses the token can compute the cookie
            await self._refuse_guess("the session is not valid any more: open the link that the server printed")

    async def check_token(self, given: str) -> None:
        """Raise an error for a wrong token; a few guesses per second are possible."""
        if self.token is None or hmac.compare_digest(given.encode(errors="replace"), self.token.encode()):
            return
        await self._refuse_guess("the token is wrong: use the one that the server was started with")

    async def _refuse_guess(self, message: str) -> NoReturn:
        self.active -= 1  # those who guess must not keep others out
        try:
            async with self._guesses:
                await asyncio.sleep(0.3)
        finally:
            self.active += 1
        raise HTTPException(401, message)

    def session(self) -> str:
        """Return the value of the cookie, which proves that somebody had the token."""
        return hmac.new((self.token or "").encode(), b"equipoise session", hashlib.sha256).hexdigest()


def _is_open(path: str) -> bool:
    return any(path == one or (one != "/" and one.endswith("/") and path.startswith(one)) for one in OPEN)


def _limit(path: str) -> int:
    return REQUEST_BYTES if path in UPLOADS else JSON_BYTES


class Body:
    """The body of a request; reading it ends if it is too long, or comes too slowly."""

    def __init__(self, guard: Guard, receive: Receive, headers: Headers, limit: int) -> None:
        self.guard, self.receive, self.limit = guard, receive, limit
        self.received, self.until = 0, time.monotonic() + BODY_SECONDS
        self.complete = not _has_body(headers)

    async def read(self) -> Message:
        """Return the next part, or raise the error to answer with."""
        if self.complete:  # waits for the client to go away
            return await self.receive()
        try:
            async with asyncio.timeout(max(0.0, self.until - time.monotonic())):
                message = await self.receive()
        except TimeoutError:
            raise HTTPException(408, f"the request took longer than {BODY_SECONDS} s: send less at a time") from None
        size = len(message.get("body", b""))
        self.received += size
        self.guard.received += size
        self.complete = not message.get("more_body", False)
        if self.received > self.limit:
            raise too_large(self.limit)
        if self.guard.received > BODIES:
            self.release()  # at once, or others would be refused, too
            raise HTTPException(503, "the server is busy with other uploads: try again in a moment")
        return message

    def release(self) -> None:
        """Count the bytes no longer."""
        self.guard.received -= self.received
        self.received = 0


def too_large(limit: int) -> HTTPException:
    """Return the error for a request that is larger than ``limit`` bytes."""
    return HTTPException(413, f"the request is larger than {limit >> 20} MB: send less at a time")


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def _cookie(headers: Headers, wanted: str) -> str | None:
    """Return the value of a cookie; http.cookies takes a second for some values."""
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted:
            return value
    return None


def _with_headers(headers: Iterable[tuple[bytes, bytes]], close: bool) -> list[tuple[bytes, bytes]]:
    """Add the headers of all answers; close the connection if the rest of the request will not be read."""
    ending = [(b"connection", b"close")] if close else []
    return [*headers, *ending, *((name.encode(), value.encode()) for name, value in HEADERS.items())]


async def _refuse(send: Any, error: HTTPException) -> None:
    body = json.dumps({"detail": error.detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
