"""Pictures that the server keeps: predicted again by their ids, and grouped in the tray while models come and go."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from equipoise.app.class_images import ClassImages
from equipoise.app.learn import LearnOptions, learn_folder
from equipoise.app.model import ACCEPT
from equipoise.app.model_dir import ModelDir
from equipoise.serve.demo import KINDS
from tests.folders import glyph_folder
from tests.hostile_clients import FORM, connected, file_part, form, reply, request
from tests.models import learn
from tests.serving import Server, demo_files, serving, wait_until

pytest.importorskip("fastapi", reason="the extra serve is not installed")
from equipoise.serve.pictures import Picture, Pictures
from equipoise.serve.snapshot import Snapshot
from equipoise.serve.tray import Tray
from equipoise.serve.uploads import decode_upload


def top(answer: dict[str, Any]) -> str:
    return str(answer["predictions"][0]["class"])


def in_tray(server: Server) -> set[str]:
    return {one["id"] for group in server.get("/api/tray")["groups"] for one in group["pictures"]}


def predict_kept(server: Server, pictures: list[str], **query: Any) -> dict[str, Any]:
    """Predict pictures by their ids."""
    answer = server.client.post("/api/pictures/predict", json={"pictures": pictures}, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


# ---- by id


def test_kept_pictures_are_predicted_by_their_ids(taught: Server) -> None:
    before = taught.predict(demo_files(1, [9, 10]), keep=True, top=3)
    names = [one["picture"] for one in before["predictions"]]
    assert predict_kept(taught, names, top=3) == before
    assert len(predict_kept(taught, names, top=1)["predictions"][0]["predictions"]) == 1
    assert taught.client.delete(f"/api/pictures/{names[0]}").status_code == 204
    taught.do(kind="rename", name=KINDS[1], to="ship")
    gone, there, other = predict_kept(taught, [*names, "0" * 32])["predictions"]
    assert top(there) == "ship"
    assert there["picture"] == names[1]
    for one, name in ((gone, names[0]), (other, "0" * 32)):
        assert one == {
            "unknown": None,
            "predictions": [],
            "picture": None,
            "error": f"there is no picture '{name}': upload it again",
        }
    taught.do(kind="undo")
    for wrong in ([], ["../lock"], names * 20):
        assert taught.client.post("/api/pictures/predict", json={"pictures": wrong}).status_code == 422


def test_kept_pictures_enter_and_leave_the_tray(taught: Server) -> None:
    pictures = [one["picture"] for one in taught.predict(demo_files(3, [9, 10]), keep=True)["predictions"]]
    assert in_tray(taught) >= set(pictures)
    taught.do(kind="learn", classes={KINDS[3]: taught.upload(demo_files(3, range(6)))})
    assert [top(one) for one in predict_kept(taught, pictures)["predictions"]] == [KINDS[3]] * 2
    assert not in_tray(taught) & set(pictures)
    taught.do(kind="undo")
    assert [one["unknown"] for one in predict_kept(taught, pictures)["predictions"]] == [True] * 2
    assert in_tray(taught) >= set(pictures)
    for name in pictures:
        taught.client.delete(f"/api/pictures/{name}")


# ---- models that come and go


def test_a_model_that_takes_pictures_of_another_size(tmp_path: Path) -> None:
    photos = glyph_folder(tmp_path / "photos", [0, 1])
    learn(tmp_path / "model", photos, epochs=1)
    files = [file.read_bytes() for file in sorted((photos / "A").iterdir())[:4]]
    with serving(tmp_path / "model") as server:
        old = [one["picture"] for one in server.predict(files, keep=True, accept=0.001)["predictions"]]
        assert in_tray(server)
        shutil.rmtree(tmp_path / "model")
        wait_until(lambda: server.version is None)
        assert server.get("/api/tray") == {"version": None, "groups": []}
        learn(tmp_path / "model", photos, epochs=1, image_size=32)
        wait_until(lambda: server.version is not None)
        new = {one["picture"] for one in server.predict(files, keep=True, accept=0.001)["predictions"]}
        assert in_tray(server)
        assert in_tray(server) <= new
        for one in predict_kept(server, old)["predictions"]:
            assert one["error"] == "the model now takes pictures of another size: upload it again"
        refused = server.client.post("/api/jobs", json={"kind": "learn", "classes": {"x": old}})
        assert (refused.status_code, "another size" in refused.json()["detail"]) == (409, True)
        shutil.rmtree(tmp_path / "model")
        wait_until(lambda: server.version is None)
        assert server.client.post("/api/jobs", json={"kind": "learn", "classes": {"x": old}}).status_code == 409


def test_an_upload_that_takes_long_is_answered_by_the_version_at_its_end(taught: Server) -> None:
    body = form(file_part(demo_files(0, [9])[0]))
    length = f"Content-Length: {len(body)}"
    with connected(taught) as connection:
        start = request("POST /api/predict?keep=true", f"Content-Type: {FORM}", length, body=body[:1000])
        connection.sendall(start)
        taught.predict(demo_files(0, [10]))  # the server has read the first part by now, or is reading it
        taught.do(kind="rename", name=KINDS[0], to="home")
        connection.sendall(body[1000:])
        answer = reply(connection)
    assert answer.status == 200
    assert str(taught.version) in answer.text
    assert '"home"' in answer.text
    taught.do(kind="undo")


# ---- the tray itself


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Snapshot]:
    """Return two versions of a model: the second knows one more kind."""
    root = tmp_path_factory.mktemp("versions")
    found = []
    for step, kinds in enumerate(((0, 1), (3,))):
        for kind in kinds:
            folder = root / str(step) / KINDS[kind]
            folder.mkdir(parents=True)
            for number, data in enumerate(demo_files(kind, range(6))):
                (folder / f"{number}.jpg").write_bytes(data)
        learn_folder(ModelDir(root / "model"), root / str(step), LearnOptions(keep=None if step else "thumbnails"))
        found.append(Snapshot.load(ModelDir(root / "model")))
    return found


def fill(tray: Tray, snapshot: Snapshot, kind: int, numbers: range) -> list[Picture]:
    """Predict pictures, and put those that are unknown into the tray."""
    uploads = [decode_upload(data, snapshot.size) for data in demo_files(kind, numbers)]
    kept = tray.pictures.add_all([upload.pixels for upload in uploads if upload.pixels is not None])
    for picture in kept:
        (prediction,) = snapshot.predict([tray.pictures.read(picture)], 1, ACCEPT)
        tray.add(picture, prediction, snapshot.version)
    return kept


def test_pictures_that_an_old_version_did_not_know_leave_the_tray(versions: list[Snapshot], tmp_path: Path) -> None:
    old, new = versions
    tray = Tray(Pictures(tmp_path))
    assert not tray.predict_again(new)  # the version is swapped while an answer of the old one is on its way
    kept = fill(tray, old, 3, range(9, 12))
    assert all(picture.in_tray for picture in kept)
    assert tray.groups(new) == []
    assert not any(picture.in_tray for picture in kept)


def test_pictures_are_read_once_while_the_version_stays(versions: list[Snapshot], tmp_path: Path) -> None:
    tray = Tray(Pictures(tmp_path))
    kept = fill(tray, versions[0], 3, range(9, 12))
    before = tray.groups(versions[0])
    assert sum(map(len, before)) == 3
    for picture in kept:
        picture.file.unlink()
    assert tray.groups(versions[0]) == before
    assert len(tray.pictures) == 3
    assert tray.groups(versions[1]) == []  # they cannot be read any more


# ---- thumbnails


def test_thumbnails_name_their_version(taught: Server) -> None:
    for name in (taught.get("/api/classes")[0]["thumbnails"][0], taught.get("/api/classes/0/images")["images"][0]):
        shown = taught.client.get(f"/api/classes/0/images/{name}")
        assert shown.headers["x-model-version"] == taught.version


def test_a_block_of_features_is_read_once_for_all_its_thumbnails(versions: list[Snapshot]) -> None:
    snapshot = versions[1]
    images = ClassImages(snapshot.place, snapshot.model, snapshot.images)
    names = images.names(2)
    (block,) = snapshot.images.memory[2]
    file = snapshot.place.path / "memory" / KINDS[3] / f"{block}.safetensors"
    file.rename(file.with_name("elsewhere"))
    try:
        assert len(names) == 6
        assert all(images.picture(2, name) for name in names)
    finally:
        file.with_name("elsewhere").rename(file)
