"""Start the server, and stop it without losing anything."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import logging
import os
import re
import signal
import socket
import threading
import webbrowser
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from urllib.parse import quote

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from equipoise.app.model_dir import ModelDir
from equipoise.core.output import print_json, say
from equipoise.errors import UsageError, describe_os_error
from equipoise.serve.api import guarded, make_app
from equipoise.serve.guard import HEADERS, Guard
from equipoise.serve.limits import CONNECTIONS, HEADER_SECONDS, SEND_SECONDS, SHUTDOWN_SECONDS
from equipoise.serve.pictures import TemporaryFolder
from equipoise.serve.service import Service

HEADER_BYTES = 32 << 10
TOKEN = re.compile("[!-~][ -~]{10,998}[!-~]")
"""A token that arrives unchanged in a header: ASCII without control characters, and no spaces at the ends."""


@dataclass(frozen=True)
class ServeOptions:
    """Options of the server."""

    host: str = "127.0.0.1"
    port: int = 8765
    token: str | None = None
    allow_host: tuple[str, ...] = ()
    """Additional host names that the server answers to, for example that of a proxy."""
    open: bool = False
    demo: bool = False
    json: bool = False


class Connection(H11Protocol):
    """Closes connections that are too slow, or idle while others need room; uvicorn itself would wait forever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waiting: asyncio.TimerHandle | None = None
        self.blocked: asyncio.TimerHandle | None = None
        self._wait_for_request()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_request()

    def _wait_for_request(self) -> None:
        """Limit the time from the first byte of a request to the end of its headers."""
        self.used = self.loop.time()
        if self.conn.their_state is not h11.IDLE:
            if self.waiting is not None:
                self.waiting.cancel()
            self.waiting = None
        elif self.waiting is None:
            self.waiting = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _make_room(self) -> None:
        """If there are too many connections, end the one that has been idle for the longest time, or the new one."""
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self]
        idle = [one for one in others if one.conn.their_state is h11.IDLE or one.transport.is_closing()]
        if len(others) >= CONNECTIONS and idle:
            oldest = min(idle, key=lambda one: one.used)
            self.connections.discard(oldest)
            oldest.transport.abort()
        elif len(others) >= 2 * CONNECTIONS:
            self.transport.abort()

    def end_upload(self) -> None:
        """Close the connection if its client has not sent a whole request."""
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Limit the time in which a client has to take what was sent."""
        super().pause_writing()
        self.blocked = self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.blocked is not None:
            self.blocked.cancel()

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore the header, without advice to install something."""

    def send_400_response(self, msg: str) -> None:
        """Reject invalid HTTP with the usual form of answer."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # nobody waits for its answer any more
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            text = f"this is not valid HTTP, or its headers are larger than {HEADER_BYTES >> 10} KB"
            body = json.dumps({"detail": text}).encode()
            headers = [("content-type", "application/json"), ("content-length", str(len(body))), *HEADERS.items()]
            answer = h11.Response(status_code=400, headers=[*headers, ("connection", "close")], reason=b"Bad Request")
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """Ends event streams when it stops, and treats Ctrl-C as a normal end."""

    def __init__(self, config: uvicorn.Config, service: Service, started: threading.Event) -> None:
        super().__init__(config)
        self.service, self.started_event = service, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.started_event.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.events.close()
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.end_upload()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def serve(model: Path | None, options: ServeOptions) -> None:
    """Serve a model until Ctrl-C, SIGTERM, or the end of the terminal."""
    check(options)
    if model is None and not options.demo:
        raise UsageError("name a directory for the model (it need not exist yet), or use --demo")
    if model is not None and options.demo:
        raise UsageError("--demo creates its own model: remove the model's name, or --demo")
    with ExitStack() as stack:
        if model is not None:
            ModelDir(model).check_free()
        listening = stack.enter_context(listen(options))
        temporary = TemporaryFolder()
        folder = stack.enter_context(temporary)
        place = model or folder / "demo"
        service = Service(place, folder, options.demo, (temporary.file.fileno(),))
        stack.callback(service.worker.kill)
        run(service, listening, options)


def check(options: ServeOptions) -> None:
    """Raise an error for a server that would be open to others, or a token that can be guessed."""
    if options.token is None and not is_loopback(options.host):
        raise UsageError(f"{options.host} can be reached from other machines, so a token is needed: add --token auto")
    if options.token is not None and not TOKEN.fullmatch(options.token):
        what = "a token needs at least 12 and at most 1000 ASCII characters, and no spaces at its ends"
        raise UsageError(f"{what}: use --token auto to generate one")
    if not 0 <= options.port < 65536:
        raise UsageError(f"--port must be from 0 to 65535, got {options.port}")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(options: ServeOptions) -> socket.socket:
    """Open the port; 0 chooses a free one."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # with the protocol, because asyncio turns off Nagle's algorithm for TCP only; it costs 40 ms per answer
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if os.name == "posix":  # on Windows, two servers could then share a port
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((options.host, options.port))
    except OSError as error:
        opened.close()
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            where, remedy = options.host, "check --host"
        else:
            where, remedy = f"{options.host}:{options.port}", "choose another --port"
        raise UsageError(f"cannot listen on {where} ({describe_os_error(error)}): {remedy}") from error
    return opened


def run(service: Service, listening: socket.socket, options: ServeOptions) -> None:
    """Serve on an open port until a signal arrives."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of every broken form
    port = listening.getsockname()[1]
    loopback = is_loopback(options.host)
    names = {"localhost", *options.allow_host, *(() if loopback else own_names())}
    guard = partial(Guard, hosts=names, loopback=loopback, token=options.token, port=port)
    config = uvicorn.Config(
        guarded(make_app(service), guard),
        http=Connection,
        ws="none",
        log_config=None,
        log_level="error",  # clients could fill the log with warnings
        access_log=False,  # addresses may hold secrets
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        h11_max_incomplete_event_size=HEADER_BYTES,
    )
    started = threading.Event()
    url = link(options.host, port, options.token)
    threading.Thread(target=announce, args=(started, service, url, options), daemon=True).start()
    server = Server(config, service, started)
    # uvicorn handles SIGINT and SIGTERM; without this one, a closed terminal would leave pictures behind
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, server.handle_exit)
    server.run([listening])


def link(host: str, port: int, token: str | None) -> str:
    """Return the address to open."""
    fragment = f"#token={quote(token, safe='')}" if token else ""
    return f"http://{shown_host(host)}:{port}/{fragment}"


def own_names() -> tuple[str, str]:
    """Return the names of this machine in its network."""
    name = socket.gethostname()
    return name, f"{name}.local"


def shown_host(host: str) -> str:
    """Return the address to open: if the server listens on all, one that other machines can reach."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - it is what the user asked for
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing, but chooses the network
            return str(probe.getsockname()[0])
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def announce(started: threading.Event, service: Service, url: str, options: ServeOptions) -> None:
    """Print the server's address as soon as it answers."""
    started.wait()
    if options.json:
        print_json({"url": url, "model": None if options.demo else str(service.model)})
    else:
        say(f"serving {'a demo' if options.demo else service.model} at {url} (Ctrl-C stops it)", flush=True)
    if options.open:
        webbrowser.open(url)
