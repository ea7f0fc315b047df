"""The API of `equipoise serve` keeps what its OpenAPI schema says, for generated requests (schemathesis)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
schemathesis = pytest.importorskip("schemathesis", reason="the extra test is not installed")

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis.errors import Unsatisfiable  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from equipoise.serve.demo import KINDS  # noqa: E402
from tests.hostile_clients import log_of  # noqa: E402
from tests.serving import JOB_SECONDS, Server, demo_files, serving, wait_until  # noqa: E402

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
Operations = dict[str, Any]
Statuses = Counter[tuple[str, int]]
Change = Callable[[Any, Random], bool]
"""Changes a request; returns whether it should be sent."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a small model; generated jobs change it."""
    with serving(tmp_path_factory.mktemp("schema") / "model") as server:
        server.learn([0, 1], range(3))
        yield server
        assert "Traceback" not in log_of(server)
        server.stop(9)


@pytest.fixture(scope="module")
def operations(server: Server) -> Operations:
    """All operations except streams, which do not end."""
    schema = schemathesis.openapi.from_url(server.url + "openapi.json").exclude(path_regex="events$")
    found = [result.ok() for result in schema.get_all_operations()]
    return {operation.label: operation for operation in found}


def call_all(operation: Any, mode: Any, examples: int, change: Change | None = None) -> Statuses:
    """Call an operation with generated requests, and check each answer; return how often each status came."""
    statuses: Statuses = Counter()
    random = Random(0)

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        if change is not None and not change(case, random):
            return
        response = case.call()
        case.validate_response(response, checks=CHECKS)
        statuses[operation.label, response.status_code] += 1

    try:
        check()
    except Unsatisfiable:  # there is no invalid request
        assert mode is GenerationMode.NEGATIVE
    return statuses


def test_requests_that_the_schema_allows(operations: Operations) -> None:
    statuses: Statuses = Counter()
    for operation in operations.values():
        statuses += call_all(operation, GenerationMode.POSITIVE, 10, keep_model)
    assert {label for label, _ in statuses} == set(operations)
    assert {200, 202} <= {status for _, status in statuses}  # others: an id has to exist, a file to be a picture


def keep_model(case: Any, random: Random) -> bool:
    """Leave out what would delete the model that the other requests are about."""
    return not isinstance(case.body, dict) or case.body.get("kind") != "start_again"


def test_requests_that_the_schema_does_not_allow(operations: Operations) -> None:
    statuses: Statuses = Counter()
    for operation in operations.values():
        statuses += call_all(operation, GenerationMode.NEGATIVE, 6)
    assert 422 in {status for _, status in statuses}


def test_requests_without_a_model(server: Server, operations: Operations) -> None:
    wait_until(lambda: not waiting(server))  # of other tests
    aside = server.model.with_name("aside")
    server.model.rename(aside)
    try:
        wait_until(lambda: server.version is None)
        statuses: Statuses = Counter()
        for operation in operations.values():
            statuses += call_all(operation, GenerationMode.POSITIVE, 4)
        wait_until(lambda: not waiting(server))
        assert statuses["GET /api/model", 200]
        assert server.post_files("/api/predict", demo_files(0, [0])).status_code == 409
        assert not server.model.exists()
    finally:
        aside.rename(server.model)
    wait_until(lambda: server.version is not None)


@pytest.mark.parametrize("label", ["POST /api/pictures", "POST /api/predict"])
def test_generated_uploads_with_pictures(server: Server, operations: Operations, label: str) -> None:
    files = [*demo_files(0, range(2)), *demo_files(2, range(2)), b"", b"no picture"]

    def use_pictures(case: Any, random: Random) -> bool:
        case.body = {"files": random.choices(files, k=random.randint(1, 4))}
        return True

    statuses = call_all(operations[label], GenerationMode.POSITIVE, 25, use_pictures)
    assert statuses[label, 200]
    assert statuses[label, 415]


def test_generated_jobs_with_things_that_exist(server: Server, operations: Operations) -> None:
    label = "POST /api/jobs"
    tried: Counter[str] = Counter()

    def use_what_exists(case: Any, random: Random) -> bool:
        body = case.body
        tried[body["kind"]] += 1
        if tried[body["kind"]] > 1:
            return False
        wait_until(lambda: not waiting(server), JOB_SECONDS)
        if server.version is None:  # deleted by the job before
            server.learn([0, 1], range(3))
        pictures = server.upload(demo_files(random.randrange(6), [random.randrange(3, 9)]))
        names = [one["name"] for one in server.get("/api/classes")]
        known = {
            "name": names[0],
            "to": random.choice(KINDS),
            "names": random.sample(names, 1),
            "classes": {random.choice(KINDS): pictures},
            "picture": pictures[0],
            "images": server.get("/api/classes/0/images")["images"][:1],
            "version": server.version,
        }
        body.update({field: known[field] for field in body if field in known})
        return True

    statuses = call_all(operations[label], GenerationMode.POSITIVE, 100, use_what_exists)
    wait_until(lambda: not waiting(server), JOB_SECONDS)
    assert set(tried) == {"learn", "correct", "rename", "merge", "move", "forget", "undo", "start_again", "export"}
    assert set(statuses) == {(label, 202)}
    states = {(job["kind"], job["state"]) for job in server.get("/api/jobs")}
    assert len({kind for kind, state in states if state == "done"}) > 3, states


def waiting(server: Server) -> bool:
    """Return whether a job waits or runs."""
    return any(job["state"] in ("queued", "running") for job in server.get("/api/jobs"))
