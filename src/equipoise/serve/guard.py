"""Checks that every request must pass: its sender, its origin, its size and its speed.

A page of another site may send requests to this server through the user's browser. It cannot choose the Origin header,
and after DNS rebinding the Host header names that site, so both are checked.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import math
import platform
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from equipoise.serve.limits import (
    ADDRESSES,
    BODY_SECONDS,
    CONNECTIONS,
    GUESSES,
    JSON_BYTES,
    REQUEST_BYTES,
    SESSION_BYTES,
    SESSION_SECONDS,
    SESSIONS,
)
from equipoise.serve.metrics import REQUESTS, SECONDS

OPEN = ("/", "/page/", "/api/session", "/api/health", "/openapi.json")
"""Paths that need no token; a slash at the end includes what is below it."""
SESSION = "/api/session"
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
        Whether the server listens on this machine only; other IP addresses are then rejected as well.
    token
        Secret that clients must send; None if everybody on this machine may use the server.
    port
        Of the server, for the name of the cookie: browsers share cookies between ports.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], loopback: bool, token: str | None, port: int) -> None:
        self.app, self.hosts, self.loopback, self.token = app, {host.lower() for host in hosts}, loopback, token
        self.cookie, self.session = f"equipoise-{port}", _session(token or "", port)
        self._guesses = Guesses()
        self.active, self.received = Counter[str](), 0
        """Requests that are worked on, and how many bytes they have sent.

        Those that anybody may send are counted by their address, so that they do not keep others out.
        """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 0
        headers = Headers(scope=scope)
        body = Body(self, receive, headers, *_limits(scope["path"]))

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": _with_headers(message["headers"], close=not body.complete)}
            await send(message)

        counted = address_of(scope) if scope["path"] == SESSION else ""
        self.active[counted] += 1
        try:
            self._check(headers, scope, busy=self.active[counted] > (SESSIONS if counted else CONNECTIONS))
            await self.app(scope, body.read, answer)
        except HTTPException as error:
            if not status:
                await _refuse(answer, error)
        finally:
            self.active[counted] -= 1
            if not self.active[counted]:
                del self.active[counted]
            body.release()
            route = getattr(scope.get("route"), "path", "other")
            REQUESTS.labels(route, status).inc()
            if route not in STREAMS:
                SECONDS.labels(route).observe(time.monotonic() - started)

    def _check(self, headers: Headers, scope: Scope, busy: bool) -> None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            raise HTTPException(421, "this server does not answer under that name: use the address it printed")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise HTTPException(403, "requests from other sites are refused")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and scope["path"] != "/":
            raise HTTPException(403, "requests from other sites are refused")
        if busy:
            raise HTTPException(503, "the server is busy with other requests: try again in a moment")
        if "transfer-encoding" in headers and "content-length" in headers:  # a proxy may believe the other one
            raise HTTPException(400, "the request has two lengths: send Content-Length or Transfer-Encoding, not both")
        if _has_body(headers) and scope["method"] != "POST":
            raise HTTPException(400, f"a {scope['method']} request must not have a body: remove it")
        limit, _ = _limits(scope["path"])
        if int(headers.get("content-length", "0")) > limit:
            raise too_large(limit)
        if self.token is not None and not _is_open(scope["path"]):
            self._check_token(headers, address_of(scope))

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

    def _check_token(self, headers: Headers, address: str) -> None:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if given and kind.lower() == "bearer":
            self.check_token(given.strip(), address)
            return
        cookie = _cookie(headers, self.cookie)
        if cookie is None:
            raise HTTPException(401, "this server needs a token: open the link it printed, or send a bearer token")
        if not hmac.compare_digest(cookie.encode(), self.session.encode()):
            raise HTTPException(401, "the session is not valid any more: open the link that the server printed")

    def check_token(self, given: str, address: str) -> None:
        """Raise an error for a wrong token, and for any token of an address that has sent too many wrong ones."""
        if self.token is None:
            return
        self._guesses.check(address)
        if not hmac.compare_digest(given.encode(errors="replace"), self.token.encode()):
            self._guesses.add(address)
            raise HTTPException(401, "the token is wrong: use the one with which the server was started")


class Guesses:
    """Counts the wrong tokens of each address.

    Others are not affected, and nobody waits: a server that delays its answers can be kept busy by those who guess.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        """When all guesses of an address are forgotten; the oldest guess comes first."""

    def check(self, address: str) -> None:
        """Raise an error if an address has to wait."""
        wait = self._until.get(address, 0.0) - time.monotonic() - GUESSES + 1
        if wait > 0:
            seconds = math.ceil(wait)
            what = f"too many wrong tokens from your address: try again in {seconds} s"
            raise HTTPException(429, what, {"retry-after": str(seconds)})

    def add(self, address: str) -> None:
        """Count a wrong token: it is forgotten after a second, but one after the other."""
        until = max(self._until.pop(address, 0.0), time.monotonic()) + 1
        self._until[address] = until
        if len(self._until) > ADDRESSES:
            del self._until[next(iter(self._until))]


def address_of(scope: Scope) -> str:
    """Return the client's address; of IPv6, the network, because a client has all addresses in it."""
    address = ipaddress.ip_address((scope.get("client") or ("127.0.0.1", 0))[0].partition("%")[0])
    if address.version == 4:
        return str(address)
    # a server that listens on IPv6 sees IPv4 clients as addresses of one network
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))


def _session(token: str, port: int) -> str:
    """Return the value of the cookie, which proves that somebody had the token.

    It stays the same when the server starts again. Guessing the token from it takes long, because ``scrypt`` is slow.
    """
    salt = f"equipoise {platform.node()} {port}".encode()
    return hashlib.scrypt(token.encode(), salt=salt, n=2**14, r=8, p=1, dklen=32).hex()


def _is_open(path: str) -> bool:
    return any(path == one or (one != "/" and one.endswith("/") and path.startswith(one)) for one in OPEN)


def _limits(path: str) -> tuple[int, float]:
    """Return how many bytes a request may have, and how many seconds it may take to send them."""
    if path == SESSION:
        return SESSION_BYTES, min(SESSION_SECONDS, BODY_SECONDS)
    return REQUEST_BYTES if path in UPLOADS else JSON_BYTES, BODY_SECONDS


class Body:
    """The body of a request; reading it ends if it is too long, or comes too slowly."""

    def __init__(self, guard: Guard, receive: Receive, headers: Headers, limit: int, seconds: float) -> None:
        self.guard, self.receive, self.limit, self.seconds = guard, receive, limit, seconds
        self.received, self.until = 0, time.monotonic() + seconds
        self.complete = not _has_body(headers)

    async def read(self) -> Message:
        """Return the next part, or raise the error to answer with."""
        if self.complete:  # waits for the client to go away
            return await self.receive()
        try:
            async with asyncio.timeout(max(0.0, self.until - time.monotonic())):
                message = await self.receive()
        except TimeoutError:
            raise HTTPException(408, f"the request took longer than {self.seconds:g} s: send less at a time") from None
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
    shown = f"{limit >> 20} MB" if limit >= 1 << 20 else f"{limit >> 10} KB"
    return HTTPException(413, f"the request is larger than {shown}: send less at a time")


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
    headers += [(name.encode(), value.encode()) for name, value in (error.headers or {}).items()]
    await send({"type": "http.response.start", "status": error.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})
