"""The API of `equipoise serve`, with a real server and real jobs."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import numpy as np
import pytest
from PIL import Image

from equipoise.app.class_images import ClassImages
from equipoise.app.model_dir import ModelDir
from equipoise.app.predict import predict
from equipoise.serve.demo import KINDS
from tests.folders import glyph_folder
from tests.models import learn
from tests.serving import Server, demo_files, serving, wait_until

pytest.importorskip("fastapi", reason="the extra serve is not installed")
Cli = Callable[..., Any]


def counts(server: Server) -> dict[str, int]:
    """Return the number of images of each class."""
    return {one["name"]: one["images"] for one in server.get("/api/classes")}


def test_from_nothing_to_a_named_unknown_class_and_back(tmp_path: Path) -> None:
    with serving(tmp_path / "model") as server:
        before = server.get("/api/model")
        assert before["version"] is None
        assert before["classes"] == []
        refused = server.post_files("/api/predict", demo_files(0, [9]))
        assert refused.status_code == 409
        assert "no model yet" in refused.json()["detail"]
        job = server.learn([0, 1, 2], range(6))
        assert "accuracy" in job["message"]
        assert job["version"] == server.version
        answers = [server.predict(demo_files(kind, [9, 10, 11]), keep=True) for kind in range(4)]
        for kind, answer in enumerate(answers[:3]):
            assert [one["predictions"][0]["class"] for one in answer["predictions"]] == [KINDS[kind]] * 3
        assert [one["unknown"] for one in answers[3]["predictions"]] == [True] * 3
        tray = server.get("/api/tray")
        pictures = [one["id"] for group in tray["groups"] for one in group["pictures"]]
        assert set(pictures) >= {one["picture"] for one in answers[3]["predictions"]}
        server.do(kind="learn", classes={KINDS[3]: [one["picture"] for one in answers[3]["predictions"]]})
        again = server.predict(demo_files(3, [12, 13]))
        assert [one["predictions"][0]["class"] for one in again["predictions"]] == [KINDS[3]] * 2
        assert again["version"] == server.version
        shown = server.get("/api/model")
        assert [one["step"] for one in shown["classes"]] == [1, 1, 1, 2]
        assert shown["balance"]["new_classes"] == 1
        assert [one["text"] for one in shown["history"]][1] == f"learned {KINDS[3]}"

        (tmp_path / "model").rename(tmp_path / "moved")
        wait_until(lambda: server.version is None)  # a model that is deleted starts again
        server.learn([0, 1, 2], range(4))
        server.do(kind="rename", name=KINDS[0], to="home")
        server.do(kind="merge", names=["home"], to=KINDS[1])
        assert counts(server) == {KINDS[1]: 8, KINDS[2]: 4}
        export = server.do(kind="export", format="directory")["id"]
        job = server.do(kind="forget", names=[KINDS[2]])
        assert server.client.get(f"/api/jobs/{export}/file").status_code == 404  # the class was in it
        assert job["message"] == f"forgot {KINDS[2]}; 4 pictures removed"
        assert server.get("/api/model")["can_undo"] is False
        assert "no earlier version" in server.finish(kind="undo")["error"]
        assert "did you mean" in server.finish(kind="rename", name=KINDS[1] + "x", to="y")["error"]


def test_answers_are_those_of_the_command_line(taught: Server, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "one.jpg").write_bytes(demo_files(1, [11])[0])
    answer = taught.predict(demo_files(1, [11]), top=3)["predictions"][0]
    (printed,) = map(
        json.loads, cli("predict", taught.model, tmp_path / "one.jpg", "--top", 3, "--json").out.splitlines()
    )
    assert answer["unknown"] == printed["unknown"]
    for ours, theirs in zip(answer["predictions"], printed["predictions"], strict=True):
        assert ours["class"] == theirs["class"]
        assert ours["probability"] == pytest.approx(theirs["probability"], abs=1e-5)


def test_pictures_are_learned_as_the_command_line_learns_files(taught: Server, tmp_path: Path, cli: Cli) -> None:
    files = demo_files(4, range(4))
    (tmp_path / "new" / "thing").mkdir(parents=True)
    for number, data in enumerate(files):
        (tmp_path / "new" / "thing" / f"{number}.jpg").write_bytes(data)
    taught.do(kind="learn", classes={"thing": taught.upload(files)})
    by_page = {name for row in ModelDir(taught.model).load(images=True).blocks.values() for name in row}
    taught.do(kind="undo", version=taught.version)
    assert cli("learn", taught.model, tmp_path / "new", "--quiet").code == 0
    by_command = {name for row in ModelDir(taught.model).load(images=True).blocks.values() for name in row}
    assert by_page == by_command
    wait_until(lambda: taught.version == ModelDir(taught.model).config().version)
    taught.do(kind="undo")


def test_the_server_follows_the_command_line(taught: Server, tmp_path: Path, cli: Cli) -> None:
    heard: list[str] = []

    def listen() -> None:
        with httpx.stream("GET", f"{taught.url}api/events", timeout=30) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    heard.append(line[5:])
                if len(heard) == 3:
                    return

    thread = threading.Thread(target=listen)
    thread.start()
    wait_until(lambda: heard)
    assert cli("rename", taught.model, KINDS[0], "home").code == 0
    wait_until(lambda: "home" in [one["name"] for one in taught.get("/api/classes")])
    assert taught.predict(demo_files(0, [10]))["predictions"][0]["predictions"][0]["class"] == "home"
    assert cli("undo", taught.model).code == 0
    wait_until(lambda: KINDS[0] in [one["name"] for one in taught.get("/api/classes")])
    thread.join(20)
    versions = [json.loads(line)["version"] for line in heard]
    assert versions[0] == versions[2] != versions[1]


def test_a_job_waits_for_the_command_line(taught: Server) -> None:
    with ModelDir(taught.model).writing():
        job = taught.start(kind="rename", name=KINDS[1], to="ship")
        wait_until(lambda: "waiting" in ((taught.get(f"/api/jobs/{job}")["progress"] or {}).get("text") or ""))
    assert taught.events(job)[-1]["state"] == "done"
    taught.do(kind="undo")


def test_one_answer_is_corrected_and_taken_back(taught: Server) -> None:
    version = taught.version
    answer = taught.predict(demo_files(5, [0]), keep=True)["predictions"][0]
    job = taught.do(kind="correct", picture=answer["picture"], to="new thing")
    assert taught.predict(demo_files(5, [0]))["predictions"][0]["predictions"][0]["class"] == "new thing"
    again = taught.predict(demo_files(5, [0]), keep=True)["predictions"][0]["picture"]
    refused = taught.finish(kind="correct", picture=again, to="new thing")
    assert "already" in refused["error"]
    # the picture is all there is of its class: correcting it renames or merges the class
    taught.do(kind="correct", picture=again, to="other thing")
    assert "other thing" in [one["name"] for one in taught.get("/api/classes")]
    third = taught.predict(demo_files(5, [0]), keep=True)["predictions"][0]["picture"]
    taught.do(kind="correct", picture=third, to=KINDS[0])
    assert counts(taught) == dict(zip(KINDS, [7, 6, 6], strict=False))
    stale = taught.finish(kind="undo", version=job["version"])
    assert stale["state"] == "failed"
    assert "changed" in stale["error"]
    assert taught.client.post("/api/jobs", json={"kind": "undo", "version": ""}).status_code == 422
    for _ in range(3):
        taught.do(kind="undo", version=taught.version)
    assert taught.version == version


def test_a_learned_picture_in_a_wrong_class_is_moved(taught: Server) -> None:
    picture = taught.predict(demo_files(0, [0]), keep=True)["predictions"][0]["picture"]  # number 0 was learned
    job = taught.do(kind="correct", picture=picture, to=KINDS[1])
    assert job["message"].startswith(f"moved 1 picture to {KINDS[1]}")
    assert counts(taught) == dict(zip(KINDS, [5, 7, 6], strict=False))
    taught.do(kind="undo")


def test_images_of_a_class_are_listed_shown_and_moved(taught: Server) -> None:
    listed = taught.get("/api/classes/2/images?limit=4")
    assert listed["total"] == 6
    assert listed["pictures"] is True
    assert len(listed["images"]) == 4
    for name in (*listed["images"], *taught.get("/api/classes")[2]["thumbnails"]):
        shown = taught.client.get(f"/api/classes/2/images/{name}")
        assert shown.headers["content-type"] == "image/jpeg"
        assert max(Image.open(io.BytesIO(shown.content)).size) == 96
    assert taught.client.get("/api/classes/2/images/x").status_code == 404
    assert taught.client.get("/api/classes/99/images").status_code == 404
    taught.do(kind="move", images=listed["images"][:2], to=KINDS[0])
    assert counts(taught) == dict(zip(KINDS, [8, 6, 4], strict=False))
    taught.do(kind="undo")


def test_exports_can_be_downloaded_and_used(taught: Server, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    job = taught.do(kind="export", format="onnx")
    assert job["file"]
    answer = taught.client.get(f"/api/jobs/{job['id']}/file")
    assert answer.headers["content-disposition"] == 'attachment; filename="my-model.onnx"'
    session = runtime.InferenceSession(answer.content)
    picture = np.asarray(Image.open(io.BytesIO(demo_files(1, [12])[0])))
    exported = session.run(["probabilities"], {session.get_inputs()[0].name: picture})[0].ravel()
    ours = taught.predict(demo_files(1, [12]))["predictions"][0]["predictions"][0]
    assert exported.max() == pytest.approx(ours["probability"], abs=0.02)

    job = taught.do(kind="export", format="directory")
    zipfile.ZipFile(io.BytesIO(taught.client.get(f"/api/jobs/{job['id']}/file").content)).extractall(tmp_path)
    copied = ModelDir(tmp_path / "my-model").load()
    found = next(predict(copied, [("", demo_files(1, [12])[0])]))
    assert found.classes[0][1] == pytest.approx(ours["probability"], abs=1e-5)
    assert taught.client.get("/api/jobs/1/file").status_code == 404


def test_problems_are_reported_per_picture(taught: Server) -> None:
    answer = taught.post_files("/api/pictures", [*demo_files(3, [0, 0]), b"no picture"]).json()["pictures"]
    assert [one["problem"] for one in answer] == [
        None,
        None,
        "this is not a picture (JPEG, PNG, WebP, BMP, GIF or TIFF)",
    ]
    known = taught.upload(demo_files(0, [0]))[0]
    names = [answer[0]["id"], answer[1]["id"], known]
    job = taught.do(kind="learn", classes={"more": names})
    reasons = {one["picture"]: one["reason"] for one in job["problems"]}
    assert reasons == {
        names[1]: "another picture is the same",
        known: f"the model already has this picture in class '{KINDS[0]}'",
    }
    taught.do(kind="undo")
    refused = taught.finish(kind="learn", classes={"more": taught.upload(demo_files(0, [0]))})
    assert refused["state"] == "failed"
    assert refused["error"].startswith("none of these pictures can be used (the model already has this picture")
    assert len(refused["problems"]) == 1


def test_images_that_were_learned_before_thumbnails_were_kept(tmp_path: Path, cli: Cli) -> None:
    for kind, keep in ((0, "features"), (1, "thumbnails")):
        (tmp_path / keep / KINDS[kind]).mkdir(parents=True)
        for number, data in enumerate(demo_files(kind, range(2))):
            (tmp_path / keep / KINDS[kind] / f"{number}.jpg").write_bytes(data)
        assert cli("learn", "model", keep, "--keep", keep).code == 0
    place = ModelDir(tmp_path / "model")
    stored = ClassImages(place, place.load(), place.images_of(place.config()))
    grey, thumbnail = (stored.picture(number, stored.first(number)[0]) or b"" for number in range(2))
    assert np.ptp(np.asarray(Image.open(io.BytesIO(grey)))) < 3
    assert np.ptp(np.asarray(Image.open(io.BytesIO(thumbnail)))) > 50
    assert stored.picture(0, "0" * 32) is None


def test_known_classes_need_extend(taught: Server) -> None:
    names = taught.upload(demo_files(0, [8]))
    assert "already known" in taught.finish(kind="learn", classes={KINDS[0]: names})["error"]
    taught.do(kind="learn", classes={KINDS[0]: names}, extend=True)
    assert counts(taught)[KINDS[0]] == 7
    taught.do(kind="undo")


def test_names_that_look_alike_are_one_class(taught: Server) -> None:
    pictures = taught.upload(demo_files(3, range(3)))
    names = ["caf\u00e9", "cafe\u0301", "caf\u00e9 "]  # composed, decomposed, with a space
    taught.do(kind="learn", classes={name: [picture] for name, picture in zip(names, pictures, strict=True)})
    assert counts(taught)["caf\u00e9"] == 3
    taught.do(kind="undo")


def test_models_that_train_their_network(tmp_path: Path) -> None:
    """They keep images instead of features, and their features change."""
    learn(tmp_path / "model", glyph_folder(tmp_path / "photos", [0, 1]), epochs=5)
    files = [file.read_bytes() for file in sorted((tmp_path / "photos" / "A").iterdir())[:3]]
    with serving(tmp_path / "model") as server:
        answer = server.predict(files, keep=True, accept=0.001)
        assert answer["predictions"][0]["predictions"][0]["class"] in ("A", "B")
        tray = server.get("/api/tray")
        assert sum(len(group["pictures"]) for group in tray["groups"]) == sum(
            one["unknown"] for one in answer["predictions"]
        )
        assert server.client.get("/api/classes/0/images/" + server.get("/api/classes")[0]["thumbnails"][0]).is_success
        server.do(kind="rename", name="A", to="letter")


def test_pictures_can_be_looked_at_and_deleted(taught: Server) -> None:
    (name,) = taught.upload(demo_files(4, [3]))
    assert Image.open(io.BytesIO(taught.client.get(f"/api/pictures/{name}").content)).size == (224, 224)
    assert taught.client.delete(f"/api/pictures/{name}").status_code == 204
    assert taught.client.get(f"/api/pictures/{name}").status_code == 404
    refused = taught.client.post("/api/jobs", json={"kind": "learn", "classes": {"x": [name]}})
    assert refused.status_code == 404
    assert "upload it again" in refused.json()["detail"]


def test_steps_and_figures(taught: Server) -> None:
    assert taught.get("/api/steps") == json.loads((taught.model / "steps.json").read_text())
    assert "Thumbnails of the images are stored as well." in (taught.model / "README.md").read_text()
    assert taught.get("/api/health") == {"status": "ok", "model": True}
    text = taught.client.get("/metrics").text
    assert "equipoise_classes 3.0" in text
    assert 'equipoise_requests_total{route="/api/predict",status="200"}' in text


def test_too_many_jobs_are_refused(taught: Server) -> None:
    with ModelDir(taught.model).writing():
        started = [taught.start(kind="rename", name=KINDS[0], to=f"name {n}") for n in range(9)]
        refused = taught.client.post("/api/jobs", json={"kind": "undo"})
        assert refused.status_code == 429
        for job in started[1:]:
            assert taught.client.delete(f"/api/jobs/{job}").status_code == 200
        started.append(taught.start(kind="undo"))  # there is room again
        for job in (started[0], started[-1]):
            assert taught.client.delete(f"/api/jobs/{job}").status_code == 200
    states = [taught.events(job)[-1]["state"] for job in started]
    assert states == ["cancelled"] * 10
    again = taught.client.delete(f"/api/jobs/{started[0]}")
    assert (again.status_code, again.json()["detail"]) == (409, "the job has already finished")  # nothing to undo
    done = taught.finish(kind="rename", name=KINDS[0], to=KINDS[0].upper())["id"]
    assert "use undo" in taught.client.delete(f"/api/jobs/{done}").json()["detail"]
    taught.do(kind="undo")
    assert KINDS[0] in counts(taught)


def test_a_damaged_version_is_reported_and_the_one_before_answers(taught: Server) -> None:
    config = taught.model / "config.json"
    good = config.read_bytes()
    config.write_bytes(b"{}")
    wait_until(lambda: taught.get("/api/model")["problem"])
    assert "damaged" in taught.get("/api/model")["problem"]
    assert taught.get("/api/health")["status"] == "problem"
    assert taught.predict(demo_files(0, [9]))["predictions"][0]["predictions"][0]["class"] == KINDS[0]
    config.write_bytes(good)
    wait_until(lambda: taught.get("/api/model")["problem"] is None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "a token is needed"),
        (["--token", "short"], "at least 12"),
        (["--token", " starts-with-a-space"], "no spaces"),
        (["--token", "ends-with-a-line\n"], "no spaces"),
        (["--token", "not-ascii-é-not-ascii"], "no spaces"),
        (["--token", "long" * 300], "no spaces"),
        (["--host", "192.0.2.1", "--token", "twelve-and-more"], "check --host"),
        (["--host", "nowhere.invalid", "--token", "twelve-and-more"], "check --host"),
        (["--port", "99999"], "--port"),
        (["--demo"], "remove the model's name"),
    ],
)
def test_unsafe_options_are_refused(cli: Cli, options: list[str], message: str) -> None:
    done = cli("serve", "model", *options)
    assert done.code == 2
    assert message in done.err


def test_a_port_that_is_taken(taught: Server, cli: Cli) -> None:
    done = cli("serve", "model", "--port", taught.url.rstrip("/").rpartition(":")[2])
    assert done.code == 2
    assert "choose another --port" in done.err


@pytest.mark.parametrize("token", ["abc+defghijklm&n", "four words with spaces", "100%-#?=/;,'\"-secure"])
def test_a_token_with_special_characters_is_in_the_link_and_works(token: str, tmp_path: Path) -> None:
    from equipoise.serve.server import link

    (given,) = parse_qs(urlsplit(link("127.0.0.1", 80, token)).fragment)["token"]  # as the page reads it
    assert given == token
    with serving(tmp_path / "model", token=token) as server:
        assert server.get("/api/model")["version"] is None
        assert httpx.post(server.url + "api/session", json={"token": given}).status_code == 204
