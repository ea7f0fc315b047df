"""`equipoise serve` with strangers: other sites, wrong tokens, and clients that are slow or many."""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from PIL import Image

from tests.hostile_clients import (
    FORM,
    Reply,
    connected,
    exchange,
    file_part,
    form,
    is_closed,
    log_of,
    open_stream,
    post_form,
    reply,
    request,
    saved,
    use_tiny_disk,
    waiting_pictures,
)
from tests.serving import Server, demo_files, serving, wait_until

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses details of Linux's sockets")

TOKEN = "a-token-of-the-tests"
BEARER = f"Authorization: Bearer {TOKEN}"
PHOTO = demo_files(0, [0])[0]
PATIENCE = 3.0
"""Seconds that the server waits for slow clients."""
ALLOWED = "pets.example"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a token, little patience, room for 20 pictures, and if possible a tiny disk."""
    root = tmp_path_factory.mktemp("strangers")
    limits = {"HEADER_SECONDS": PATIENCE, "BODY_SECONDS": PATIENCE, "SEND_SECONDS": PATIENCE, "PICTURES": 20}
    limits |= {"REQUEST_BYTES": 4 << 20}
    changes = "".join(f"limits.{name} = {value}\n" for name, value in limits.items())
    (root / "sitecustomize.py").write_text("from equipoise.serve import limits\n" + changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])]))
        tiny = use_tiny_disk(root, patch)
        with serving(root / "model", "--allow-host", ALLOWED, token=TOKEN) as server:
            server.has_tiny_disk = tiny  # type: ignore[attr-defined]
            yield server
            assert log_of(server) == ""
            server.stop(9)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        f"{ALLOWED}.evil.example",
        f"www.{ALLOWED}",
        "192.0.2.1",
        "[2001:db8::1]",
        "0.0.0.0",
        "localhost:x",
        "",
    ],
)
def test_other_hosts(server: Server, host: str) -> None:
    for path in ("/", "/page/main.js", "/api/model", "/metrics"):
        answer = exchange(server, request(f"GET {path}", BEARER, host=host))
        assert (answer.status, "does not answer under that name" in answer.detail) == (421, True)


@pytest.mark.parametrize("host", ["localhost:1", "LocalHost.", "127.0.0.2", "[::1]:8765", ALLOWED, "Pets.Example:443"])
def test_our_hosts(server: Server, host: str) -> None:
    assert exchange(server, request("GET /api/model", BEARER, host=host)).status == 200
    origin = f"Origin: https://{host}"
    assert exchange(server, request("GET /api/model", BEARER, origin, host=host)).status == 200


def test_a_demo_for_other_machines_is_opened_and_deleted(tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{opened}.tmp" && mv "{opened}.tmp" "{opened}"\n')
    browser.chmod(0o755)
    options = ("--demo", "--open", "--host", "0.0.0.0", "--allow-host", ALLOWED)
    environment = {"BROWSER": f"{browser} %s", "TMPDIR": str(tmp_path)}
    environment |= {"PYTHONPATH": ""}  # without the guard of the tests, which allows no browser
    with serving(None, *options, token=TOKEN, **environment) as server:
        wait_until(opened.exists)
        assert opened.read_text() == f"{server.url}#token={TOKEN}\n"
        shown, _, port = server.url.partition("://")[2].rstrip("/").partition(":")
        assert shown != "0.0.0.0"

        server.url = f"http://127.0.0.1:{port}/"
        server.client.base_url = server.url
        own = socket.gethostname()
        for host in ("localhost", ALLOWED, own, f"{own.upper()}.local:80", shown, "192.0.2.7", "[2001:db8::1]:80"):
            assert exchange(server, request("GET /api/model", BEARER, host=host)).status == 200
            assert exchange(server, request("GET /api/model", host=host)).status == 401
        for host in ("evil.example", f"{ALLOWED}.evil.example", f"www.{ALLOWED}", f"{own}.example", ""):
            assert exchange(server, request("GET /api/model", BEARER, host=host)).status == 421
        foreign = request("GET /api/model", BEARER, "Origin: http://192.0.2.8", host="192.0.2.7")
        assert exchange(server, foreign).status == 403

        folder = server.folder()
        server.learn([0, 1], range(2))
        assert (folder / "demo" / "config.json").exists()
        assert server.stop() == 0
        assert not folder.exists()


def test_requests_without_a_host(server: Server) -> None:
    assert exchange(server, b"GET /api/health HTTP/1.0\r\n\r\n").status == 421
    assert exchange(server, b"GET /api/health HTTP/1.1\r\n\r\n").status == 400
    assert exchange(server, request("GET /api/health", "Host: evil.example")).status == 400
    assert exchange(server, request("GET http://evil.example/api/health", BEARER)).status == 404


@pytest.mark.parametrize("line", ["POST /api/jobs", "GET /api/model", "GET /api/events", "DELETE /api/jobs/1"])
@pytest.mark.parametrize(
    "header",
    [
        "Origin: http://evil.example",
        "Origin: http://localhost.evil.example",
        "Origin: http://localhost:1",
        "Origin: null",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
    ],
)
def test_requests_of_other_sites(server: Server, line: str, header: str) -> None:
    answer = exchange(server, request(line, header, BEARER))
    assert (answer.status, answer.detail) == (403, "requests from other sites are refused")


def test_links_of_other_sites_open_the_page(server: Server) -> None:
    assert exchange(server, request("GET /", "Sec-Fetch-Site: cross-site")).status == 200
    assert exchange(server, request("GET /page/main.js", "Origin: http://localhost")).status == 200


def test_many_and_large_headers(server: Server) -> None:
    assert exchange(server, request("GET /api/health", *["A: b"] * 2000)).status == 200
    for headers in (["A: b"] * 50_000, [f"A: {'b' * 200_000}"], [f"{'a' * 200_000}: b"]):
        answer = exchange(server, request("GET /api/health", *headers))
        assert (answer.status, "headers are larger than 32 KB" in answer.detail) == (400, True)
    assert exchange(server, request(f"GET /{'a' * 200_000}")).status == 400


def test_upgrades_are_ignored(server: Server) -> None:
    for protocol in ("websocket", "h2c"):
        headers = ["Connection: Upgrade", f"Upgrade: {protocol}", "Sec-WebSocket-Key: eA==", BEARER]
        assert exchange(server, request("GET /api/health", *headers)).status == 200
        assert exchange(server, request("GET /api/nothing", *headers)).status == 404


def test_the_token_is_needed(server: Server) -> None:
    for path in ("/api/model", "/api/events", "/metrics", f"/api/model?token={TOKEN}", "/api/nothing"):
        answer = exchange(server, request(f"GET {path}"))
        assert (answer.status, "needs a token" in answer.detail) == (401, True)
    for wrong in ("x", TOKEN[:-1], TOKEN + "x", "\xff"):
        answer = exchange(server, request("GET /api/model", f"Authorization: Bearer {wrong}"))
        assert (answer.status, "the token is wrong" in answer.detail) == (401, True)
    assert exchange(server, request("GET /api/model", f"Authorization: Basic {TOKEN}")).status == 401
    assert exchange(server, request("GET /api/model", BEARER)).status == 200
    for path in ("/", "/page/main.js", "/api/health", "/openapi.json"):
        assert exchange(server, request(f"GET {path}")).status == 200


def cookie(server: Server) -> str:
    """Exchange the token for a cookie."""
    answer = httpx.post(server.url + "api/session", json={"token": TOKEN})
    assert answer.status_code == 204
    return answer.headers["set-cookie"]


def test_the_cookie_stands_for_the_token(server: Server) -> None:
    given = cookie(server)
    assert "HttpOnly" in given
    assert "SameSite=strict" in given
    name, _, value = given.partition(";")[0].partition("=")
    assert TOKEN not in value
    assert exchange(server, request("GET /api/model", f"Cookie: other=1; {name}={value}")).status == 200
    for wrong in (value[:-1], TOKEN, "", '"' + r"\"" * 10_000):  # http.cookies takes a second for the last one
        answer = exchange(server, request("GET /api/model", f"Cookie: {name}={wrong}"))
        assert (answer.status, "not valid any more" in answer.detail) == (401, True)
    refused = httpx.post(server.url + "api/session", json={"token": "wrong"})
    assert refused.status_code == 401
    assert "set-cookie" not in refused.headers


def connected_from(server: Server, address: str) -> socket.socket:
    """Connect from one of the addresses of this machine."""
    return socket.create_connection(("127.0.0.1", int(server.port)), 30, (address, 0))


def ask_from(server: Server, address: str, line: str) -> Reply:
    with connected_from(server, address) as connection:
        connection.sendall(request("GET /api/model", line))
        return reply(connection)


def test_an_address_that_guesses_has_to_wait_and_others_do_not(server: Server) -> None:
    guesses = [ask_from(server, "127.0.0.2", f"Authorization: Bearer guess-{number}") for number in range(15)]
    assert [answer.status for answer in guesses[:10]] == [401] * 10
    assert guesses[-1].status == 429
    assert "too many wrong tokens from your address: try again in" in guesses[-1].detail
    # or the answer to the right token would tell that it is right
    assert ask_from(server, "127.0.0.2", BEARER).status == 429
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2")) as client:
        refused = client.post(server.url + "api/session", json={"token": TOKEN})
    assert (refused.status_code, int(refused.headers["retry-after"]) <= 10) == (429, True)
    assert ask_from(server, "127.0.0.2", f"Cookie: {cookie(server)}").status == 200  # a page that is open goes on
    assert ask_from(server, "127.0.0.3", BEARER).status == 200
    wait_until(lambda: ask_from(server, "127.0.0.2", BEARER).status == 200)


def test_guesses_wait_for_nothing_and_leave_nothing(server: Server) -> None:
    """The first version kept them in a queue, in which others waited, and for which the end of the server waited."""
    name = cookie(server).partition("=")[0]
    with ExitStack() as stack:
        for number in range(300):
            connection = stack.enter_context(connected_from(server, "127.0.0.4"))
            line = f"Cookie: {name}=guess-{number}" if number % 2 else f"Authorization: Bearer guess-{number}"
            connection.sendall(request("GET /api/model", line))
    started = time.monotonic()
    answer = exchange(server, request("GET /api/model", f"Cookie: {name}=old"))
    assert (answer.status, "not valid any more" in answer.detail) == (401, True)
    assert time.monotonic() - started < PATIENCE


def test_tokens_that_are_sent_slowly_keep_nobody_out(server: Server) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(connected_from(server, "127.0.0.5")) for _ in range(300)]
        for connection in slow:
            connection.sendall(request("POST /api/session", "Content-Length: 100", body=b"{"))
        assert exchange(server, request("GET /api/model", BEARER)).status == 200
        answers = Counter[int]()
        for connection in slow[:40]:
            with suppress(ConnectionError):  # idle connections were closed to make room for others
                answers[reply(connection).status] += 1
        assert set(answers) <= {408, 503}
        assert answers[408] <= 8
        with connected_from(server, "127.0.0.6") as other:
            body = json.dumps({"token": TOKEN}).encode()
            length = f"Content-Length: {len(body)}"
            other.sendall(request("POST /api/session", length, "Content-Type: application/json", body=body))
            assert reply(other).status == 204
    answer = exchange(server, request("POST /api/session", "Content-Length: 5000"))
    assert (answer.status, "larger than 4 KB" in answer.detail) == (413, True)


def test_a_client_in_an_ipv6_network_is_its_network() -> None:
    from equipoise.serve.guard import address_of

    def seen(address: str) -> str:
        return address_of({"client": (address, 1)})

    assert seen("2001:db8::1") == seen("2001:db8::2:3") != seen("2001:db8:0:1::1")
    assert seen("fe80::1%eth0") == "fe80::/64"
    assert seen("::ffff:192.0.2.1") == "192.0.2.1" != seen("::ffff:192.0.2.2")
    assert (seen("192.0.2.1"), address_of({"client": None})) == ("192.0.2.1", "127.0.0.1")


def test_only_so_many_addresses_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.serve.guard import Guesses

    monkeypatch.setattr("equipoise.serve.guard.ADDRESSES", 3)
    guesses = Guesses()
    for address in ("a", "b", "c", "a", "d"):
        guesses.add(address)
    assert list(guesses._until) == ["c", "a", "d"]


def test_300_idle_connections(server: Server) -> None:
    with ExitStack() as stack:
        for number in range(300):
            connection = stack.enter_context(connected(server))
            connection.sendall(b"GET / HTTP/1.1\r\n" if number % 2 else b"")
        started = time.monotonic()
        assert exchange(server, request("GET /api/health")).status == 200
        assert time.monotonic() - started < PATIENCE


def test_pages_that_follow_events_and_never_read(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(64):
            assert open_stream(stack.enter_context(connected(server)), BEARER) == 200
        answer = exchange(server, request("GET /api/events", BEARER))
        assert (answer.status, "too many pages" in answer.detail) == (503, True)
        job = server.start(kind="forget", names=["nobody"])
        wait_until(lambda: server.get(f"/api/jobs/{job}")["state"] == "failed")
    for _ in range(100):  # those that are gone at once leave nothing behind
        with connected(server) as connection:
            connection.sendall(request("GET /api/events", BEARER))
    with ExitStack() as stack:
        wait_until(lambda: open_stream(stack.enter_context(connected(server)), BEARER) == 200)


def test_streams_are_counted_before_their_first_event(server: Server) -> None:
    with ExitStack() as stack:
        opened = [stack.enter_context(connected(server)) for _ in range(100)]
        for connection in opened:
            connection.sendall(request("GET /api/events", BEARER))
        answers = Counter(connection.recv(12)[-3:] for connection in opened)
    assert set(answers) == {b"200", b"503"}
    assert 60 <= answers[b"200"] <= 64  # some of the test before may not have been missed yet


def test_slow_clients_are_not_waited_for(server: Server) -> None:
    with ExitStack() as stack:
        silent, slow, second, body, deaf = (stack.enter_context(connected(server)) for _ in range(5))
        second.sendall(request("GET /api/health"))
        assert reply(second).status == 200
        body.sendall(request("POST /api/session", "Content-Length: 100", body=b"{"))
        deaf.settimeout(0.3)
        with pytest.raises(TimeoutError):  # the server stops reading when its answers are not taken
            deaf.sendall(request("GET /openapi.json") * 200_000)
        sender = threading.Thread(target=send_slowly, args=([slow, second], request("GET /api/health")[:12]))
        sender.start()
        assert is_closed(silent, 2 * PATIENCE)
        sender.join()
        assert is_closed(slow, 2 * PATIENCE)
        assert is_closed(second, 2 * PATIENCE)
        answer = reply(body)
        assert (answer.status, "took longer than" in answer.detail) == (408, True)
        assert is_reset(deaf)


def is_reset(connection: socket.socket) -> bool:
    """Return whether the server ends a connection whose answers nobody reads."""
    poll = select.poll()
    poll.register(connection, 0)  # errors only: there is something to read all the time
    return bool(poll.poll(20_000))


def send_slowly(connections: list[socket.socket], data: bytes) -> None:
    """Send byte by byte, for as long as the server takes it."""
    for byte in data:
        for connection in connections:
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                return
        time.sleep(0.2)


def test_slow_uploads_do_not_keep_others_waiting(server: Server) -> None:
    headers = (BEARER, f"Content-Type: {FORM}", "Content-Length: 4000000")
    with ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(connected(server)).sendall(request("POST /api/pictures", *headers, body=bytes(1000)))
        started = time.monotonic()
        (name,) = server.upload([PHOTO])
        assert time.monotonic() - started < PATIENCE
    assert server.client.delete(f"/api/pictures/{name}").status_code == 204


def test_uploads_that_need_too_much_memory_together(server: Server) -> None:
    headers = (BEARER, f"Content-Type: {FORM}", "Content-Length: 4000000")
    start = b"".join(form(file_part(bytes(3_900_000)), end=False).rpartition(b"\0")[:2])
    with ExitStack() as stack:
        uploads = [stack.enter_context(connected(server)) for _ in range(12)]
        for connection in uploads:
            with suppress(OSError):
                connection.sendall(request("POST /api/pictures", *headers, body=start))
        answers = [reply(connection) for connection in uploads]
    assert {answer.status for answer in answers} == {408, 503}
    assert {answer.detail for answer in answers if answer.status == 503} == {
        "the server is busy with other uploads: try again in a moment"
    }
    (name,) = server.upload([PHOTO])
    assert server.client.delete(f"/api/pictures/{name}").status_code == 204


def test_no_more_pictures_than_there_is_room_for(server: Server) -> None:
    plain = saved(Image.new("RGB", (64, 64)), "PNG")
    names = server.upload([plain] * 15)
    answer = server.post_files("/api/pictures", [plain] * 10)
    assert answer.status_code == 507
    assert "20 pictures are waiting to be learned: learn or delete some" in answer.json()["detail"]
    assert waiting_pictures(server) == 15
    for name in names:
        assert server.client.delete(f"/api/pictures/{name}").status_code == 204


def test_a_full_disk(server: Server) -> None:
    if not server.has_tiny_disk:  # type: ignore[attr-defined]
        pytest.skip("needs a mount namespace")
    noise = [saved(Image.effect_noise((224, 224), 99).convert("RGB"), "PNG") for _ in range(20)]
    answer = server.post_files("/api/pictures", noise)
    assert answer.status_code == 507
    assert "cannot store the picture (No space left on device): free some space" in answer.json()["detail"]
    assert waiting_pictures(server) == 0
    (name,) = server.upload(noise[:1])
    assert server.client.get(f"/api/pictures/{name}").status_code == 200
    assert server.client.delete(f"/api/pictures/{name}").status_code == 204


def test_secrets_and_pictures_stay_out_of_the_log(server: Server) -> None:
    name, _, value = cookie(server).partition(";")[0].partition("=")
    for path in (f"/?token={TOKEN}", f"/api/model?token={TOKEN}", f"/{TOKEN}", f"/api/jobs/{TOKEN}", "BAD PATH"):
        exchange(server, request(f"GET {path}", BEARER, f"Cookie: {name}={value}"))
    post_form(server, TOKEN.encode() + form(file_part(PHOTO)))
    for data in (PHOTO[:500], TOKEN.encode(), b"%!PS-Adobe-3.0"):
        assert server.post_files("/api/pictures", [data]).status_code == 415
    assert log_of(server) == ""
