"""`equipoise serve` with clients that mean no good. Every refusal is a sentence, and the server goes on as before."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from equipoise.serve.demo import KINDS
from tests import hostile_clients as hostile
from tests.hostile_clients import (
    FORM,
    SCRIPT,
    connected,
    exchange,
    file_part,
    form,
    is_closed,
    listing,
    log_of,
    peak_memory,
    post_form,
    reply,
    request,
    waiting_pictures,
)
from tests.serving import Server, demo_files, serving, wait_until

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at the server's process in /proc")

PHOTO = demo_files(0, [0])[0]
MEMORY = 600
"""MB that the server may need for all attacks together."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a small model; its temporary folder is beside it."""
    root = tmp_path_factory.mktemp("hostile")
    (root / "temporary").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(root / "temporary"))
        with serving(root / "model") as server:
            server.learn([0, 1], range(3))
            before = peak_memory(server)
            yield server
            assert peak_memory(server) - before < MEMORY
            assert "Traceback" not in log_of(server)
            server.stop(9)


@pytest.fixture
def unharmed(server: Server) -> Iterator[Server]:
    """The first server, which afterwards has the same files, keeps no more pictures and answers."""
    before, pictures = listing(server.model.parent), waiting_pictures(server)
    yield server
    assert listing(server.model.parent) == before
    assert waiting_pictures(server) == pictures
    assert server.get("/api/health") == {"status": "ok", "model": True}


@functools.cache
def bad_files() -> dict[str, tuple[bytes, str]]:
    """Return files that have to be refused, with a part of the reason."""
    no_picture = "this is not a picture"
    return {
        "PNG of 900 million pixels": (hostile.png(30000, 30000), "too many pixels"),
        "PNG of 81 million pixels": (hostile.png(9000, 9000), "more than 50 million pixels"),
        "GIF header of 4 billion pixels": (hostile.gif(65535, 65535), "too many pixels"),
        "GIF header of 64 million pixels": (hostile.gif(8000, 8000), "more than 50 million pixels"),
        "BMP header of 900 million pixels": (hostile.bmp(30000, 30000), "too many pixels"),
        "BMP header of 64 million pixels": (hostile.bmp(8000, 8000), "more than 50 million pixels"),
        "TIFF header of 900 million pixels": (hostile.tiff(30000, 30000), "too many pixels"),
        "TIFF header of 64 million pixels": (hostile.tiff(8000, 8000), "more than 50 million pixels"),
        "WebP canvas of 268 million pixels": (hostile.webp(16383, 16383), "too many pixels"),
        "JPEG that needs 1 GB": (hostile.jpeg_of_size(13000), "too much memory"),
        "transparent PNG that needs 700 MB": (hostile.saved(Image.new("RGBA", (6000, 6000)), "PNG"), "too much memory"),
        "JPEG of 210 scans": (hostile.progressive_jpeg(3200, 200), "too many scans"),
        "half a JPEG": (PHOTO[: len(PHOTO) // 2], "damaged"),
        "nothing": (b"", "the file is empty"),
        "EPS": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", no_picture),
        "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert()"/>', no_picture),
        "PDF": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", no_picture),
        "HTML": (b"<!doctype html>" + SCRIPT, no_picture),
        "AVIF": (b"\0\0\0\x1cftypavif\0\0\0\0mif1avifmiaf" + bytes(99), "HEIC and AVIF cannot be read"),
        "ZIP": (b"PK\x03\x04" + bytes(99), no_picture),
    }


@pytest.mark.parametrize("path", ["/api/pictures", "/api/predict?keep=true"])
def test_files_that_are_no_harmless_pictures(unharmed: Server, path: str) -> None:
    for name, (data, sentence) in bad_files().items():
        answer = unharmed.client.post(path, files=[("files", ("photo.jpg", data, "image/jpeg"))])
        assert answer.status_code == 415, name
        assert sentence in answer.json()["detail"], name
    everything = [data for data, _ in bad_files().values()]
    answer = unharmed.post_files(path.partition("?")[0], [*everything, PHOTO], partial=True)
    assert answer.status_code == 200
    *refused, accepted = answer.json().popitem()[1]
    assert all(one.get("problem") or one.get("error") for one in refused)
    if "id" in accepted:
        assert unharmed.client.delete(f"/api/pictures/{accepted['id']}").status_code == 204


def test_large_pictures_are_decoded_one_after_the_other(unharmed: Server) -> None:
    before = peak_memory(unharmed)
    large = hostile.saved(Image.new("RGB", (7000, 7000)), "PNG")
    with ThreadPoolExecutor() as threads:
        answers = [threads.submit(unharmed.post_files, "/api/predict", [large]) for _ in range(2)]
    assert [answer.result().status_code for answer in answers] == [200, 200]
    assert peak_memory(unharmed) - before < 500  # one takes 400 MB


def test_a_picture_that_is_also_a_page_is_encoded_again(unharmed: Server) -> None:
    (name,) = unharmed.upload([hostile.polyglot()])
    preview = unharmed.client.get(f"/api/pictures/{name}")
    assert preview.headers["content-type"] == "image/jpeg"
    assert preview.headers["x-content-type-options"] == "nosniff"
    stored = [file.read_bytes() for file in (unharmed.model.parent / "temporary").rglob("*.png")]
    assert len(stored) == 1
    for content in (preview.content, *stored):
        assert b"script" not in content
        assert b"PK\x03\x04" not in content
    assert unharmed.client.delete(f"/api/pictures/{name}").status_code == 204


HEADER = b"Content-Disposition: form-data; "
BROKEN_FORMS = {
    "no form": ("text/plain", b"files=x", 415, "as multipart/form-data"),
    "no boundary": ("multipart/form-data", form(file_part(PHOTO)), 422, "Missing boundary"),
    "boundary of 10 kB": (f"multipart/form-data; boundary={'x' * 10000}", b"", 422, "cannot read the form"),
    "empty body": (FORM, b"", 422, "no files in the field"),
    "empty form": (FORM, form(), 422, "no files in the field"),
    "field instead of a file": (FORM, form((HEADER + b'name="files"', PHOTO)), 422, "no files in the field"),
    "file in another field": (FORM, form(file_part(PHOTO, field=b"other")), 422, "no files in the field"),
    "field name with a path": (FORM, form(file_part(PHOTO, field=b"../files")), 422, "no files in the field"),
    "field name with NUL": (FORM, form(file_part(PHOTO, field=b"files\0")), 422, "no files in the field"),
    "file name of 10 kB": (FORM, form(file_part(PHOTO, b"x" * 10_000)), 422, "cannot read the form"),
    "part without a name": (FORM, form((HEADER + b"filename=x", PHOTO)), 422, "must be provided"),
    "part without headers": (FORM, form((b"", PHOTO)), 422, "cannot read the form"),
    "form that ends in a file": (FORM, form(file_part(PHOTO), end=False)[:-100], 422, "no files in the field"),
    "form that ends in a header": (FORM, form(file_part(PHOTO))[:60], 422, "no files in the field"),
    "garbage": (FORM, bytes(range(256)) * 40, 422, "cannot read the form"),
    "unknown charset": (FORM + "; charset=undefined", form(file_part(PHOTO)), 422, "cannot read the form"),
    "11 fields": (FORM, form(*[(HEADER + b'name="x"', b"")] * 11), 413, "Too many fields"),
    "field of 2 MB": (FORM, form((HEADER + b'name="x"', bytes(2 << 20))), 422, "exceeded maximum size"),
    "33 files": (FORM, form(*[file_part(PHOTO)] * 33), 413, "Too many files"),
    "10,000 files": (FORM, form(*[file_part(b"x")] * 10_000), 413, "Too many files"),
}


@pytest.mark.parametrize("name", BROKEN_FORMS)
def test_broken_forms(unharmed: Server, name: str) -> None:
    content_type, body, status, sentence = BROKEN_FORMS[name]
    answer = post_form(unharmed, body, content_type)
    assert (answer.status, sentence in answer.detail) == (status, True), answer


def test_file_names_do_not_matter(unharmed: Server) -> None:
    names = (
        b"../../../evil.png",
        b"/etc/passwd",
        b"a\x1b[31m",
        b"\xff\xfe",
        b"\xe2\x80\xae.gpj",
        b"..\\evil",
        b"\0.jpg",
        b"",
    )
    answer = post_form(unharmed, form(*(file_part(PHOTO, name) for name in names)))
    assert answer.status == 200
    pictures = json.loads(answer.text)["pictures"]
    assert len(pictures) == len(names)
    for picture in pictures:
        assert unharmed.client.delete(f"/api/pictures/{picture['id']}").status_code == 204


JSON = "Content-Type: application/json"
CHUNKED = "Transfer-Encoding: chunked"
CHUNK = b"10000\r\n%b\r\n" % bytes(65536)
LENGTHS = {
    "JSON of 5 MB": (("POST /api/jobs", JSON, "Content-Length: 5000000"), bytes(5_000_000), 413, "larger than 4 MB"),
    "form of 70 MB": (("POST /api/predict", "Content-Length: 70000000"), bytes(100), 413, "larger than 64 MB"),
    "form to another address": (("POST /api/model", "Content-Length: 70000000"), bytes(100), 413, "larger than 4 MB"),
    "chunks of 5 MB": (("POST /api/jobs", JSON, CHUNKED), CHUNK * 80, 413, "larger than 4 MB"),
    "chunks without end": (("POST /api/jobs", CHUNKED), b"z\r\n", 400, "not valid HTTP"),
    "negative": (("POST /api/jobs", "Content-Length: -1"), b"", 400, "not valid HTTP"),
    "no number": (("POST /api/jobs", "Content-Length: many"), b"", 400, "not valid HTTP"),
    "number of 5000 digits": (("POST /api/jobs", f"Content-Length: {'9' * 5000}"), b"", 400, "not valid HTTP"),
    "two": (("POST /api/jobs", "Content-Length: 2", "Content-Length: 3"), b"{}", 400, "not valid HTTP"),
    "length and chunks": (("POST /api/jobs", "Content-Length: 4", CHUNKED), b"0\r\n\r\n", 400, "two lengths"),
    "unknown encoding": (("POST /api/jobs", "Transfer-Encoding: gzip"), b"", 400, "not valid HTTP"),
    "body of a GET request": (("GET /api/events", "Content-Length: 5"), b"", 400, "GET request must not have a body"),
    "not HTTP": (("\x16\x03\x01\x02\x00\x01",), b"", 400, "not valid HTTP"),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_that_lie(unharmed: Server, name: str) -> None:
    headers, body, status, sentence = LENGTHS[name]
    answer = exchange(unharmed, request(*headers, body=body))
    assert (answer.status, sentence in answer.detail) == (status, True), answer
    assert answer.headers["connection"].lower() == "close"


def test_the_rest_of_a_refused_request_is_not_taken_for_another_one(unharmed: Server) -> None:
    smuggled = request("DELETE /api/jobs/1")
    for headers in (["Content-Length: 70000000"], ["Content-Length: 4", CHUNKED]):
        with connected(unharmed) as connection:
            connection.sendall(request("POST /api/predict", *headers, body=b"0\r\n\r\n" + smuggled))
            assert reply(connection).status in (400, 413)
            assert is_closed(connection, 5)


def test_clients_that_go_away_in_the_middle(unharmed: Server) -> None:
    body = form(file_part(PHOTO * 20))
    for sent in (10, len(body) // 2, len(body) - 5):
        with connected(unharmed) as connection:
            length = f"Content-Length: {len(body)}"
            connection.sendall(request("POST /api/pictures", f"Content-Type: {FORM}", length, body=body[:sent]))
    with connected(unharmed) as connection:
        connection.sendall(request("POST /api/jobs", JSON, "Content-Length: 100", body=b'{"kind":'))
    with connected(unharmed) as connection:  # an error in a body whose request is answered already
        connection.sendall(request("POST /api/nothing", CHUNKED, body=b"1\r\nx\r\n"))
        assert reply(connection).status == 404
        assert is_closed(connection, 5)
    wait_until(lambda: unharmed.client.get("/api/health").status_code == 200)


LONG = "x" * 10**6
BAD_TASKS = {
    "long name": ({"kind": "rename", "name": "a", "to": LONG}, "rename.to: String should have at most 200"),
    "long class": ({"kind": "learn", "classes": {LONG: ["0" * 32]}}, "at most 200 characters"),
    "lone surrogate": ({"kind": "forget", "names": ["\ud800"]}, "forget.names.0: Input should be a valid string"),
    "lone surrogate of a class": ({"kind": "learn", "classes": {"\udfff": ["0" * 32]}}, "should be a valid string"),
    "name of spaces": ({"kind": "rename", "name": "a", "to": " \t\n"}, "at least 1 character"),
    "1001 classes": ({"kind": "forget", "names": ["x"] * 1001}, "at most 1000 items"),
    "path as a picture": ({"kind": "correct", "picture": "../../../../etc/passwd", "to": "x"}, "should match pattern"),
    "path as an image": ({"kind": "move", "images": ["../config.json"], "to": "x"}, "should match pattern"),
    "long kind": ({"kind": LONG}, "does not match any of the expected tags"),
    "path as a format": ({"kind": "export", "format": "../../x"}, "should be 'onnx' or 'directory'"),
    "unknown field": ({"kind": "undo", "file\u202e/etc/passwd": 1}, r"undo.file\u202e/etc/passwd: Extra inputs"),
}


@pytest.mark.parametrize("name", BAD_TASKS)
def test_tasks_with_impossible_values(unharmed: Server, name: str) -> None:
    task, sentence = BAD_TASKS[name]
    answer = unharmed.client.post("/api/jobs", content=json.dumps(task), headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert sentence in answer.json()["detail"]
    assert len(answer.text) < 1000


@pytest.mark.parametrize(
    "body", [b"[" * 10**6, b'{"kind": ' + b"1" * 10**5 + b"}", b"\xff\xfe\x00", b'{"kind":"undo"', b"NaN", b"null", b""]
)
def test_json_that_is_none(unharmed: Server, body: bytes) -> None:
    answer = unharmed.client.post("/api/jobs", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json()["detail"]


def test_class_names_that_look_like_paths(server: Server) -> None:
    before = listing(server.model.parent)
    names = ["../../evil", "/etc/passwd", "..", "config.json", "memory", "CON", "-rf", "<script>", "é" * 200]
    pictures = server.upload(demo_files(3, range(len(names))))
    job = server.do(kind="learn", classes={name: [picture] for name, picture in zip(names, pictures, strict=True)})
    assert [one["name"] for one in server.get("/api/classes")][2:] == names
    new = listing(server.model.parent) - before
    assert all(path.startswith("model/") for path in new)
    assert len(list((server.model / "memory").iterdir())) == 2 + len(names)
    server.do(kind="undo", version=job["version"])
    assert len(server.get("/api/classes")) == 2


@pytest.mark.parametrize("name", ["\x1b[31mred", "nul\0", "\u202egpj.exe", "\u200b"])
def test_class_names_that_nobody_could_read(server: Server, name: str) -> None:
    job = server.finish(kind="rename", name=KINDS[0], to=name)
    assert job["state"] == "failed"
    assert "cannot be the name of a class" in job["error"]
    assert json.dumps(job, ensure_ascii=False).isprintable()
    assert len(server.get("/api/classes")) == 2


@pytest.mark.parametrize(
    "path",
    [
        "/page/../guard.py",
        "/page/%2e%2e/guard.py",
        "/page/..%2fguard.py",
        "/page//etc/passwd",
        "/page/%00",
        "//etc/passwd",
        "/docs",
        "/api/pictures/..%2flock",
        "/api/jobs/1/../../lock",
        "/api/jobs/%00/file",
        "/api/classes/0/images/..%2f..%2fconfig.json",
        "/api/classes/99999/images",
        "/api/demo/house/0",
    ],
)
def test_paths_to_files(unharmed: Server, path: str) -> None:
    answer = exchange(unharmed, request(f"GET {path}"))
    assert answer.status == 404
    assert len(answer.detail) > 20


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_forms_of_other_sites_start_no_job(unharmed: Server, kind: str) -> None:
    jobs = unharmed.get("/api/jobs")
    headers = f"Content-Type: {kind}", "Content-Length: 16"
    answer = exchange(unharmed, request("POST /api/jobs", *headers, body=b'{"kind": "undo"}'))
    assert answer.status == 422
    assert unharmed.get("/api/jobs") == jobs
