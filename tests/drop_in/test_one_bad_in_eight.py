"""One bad request in eight, on every kind of archive that TorchServe's examples and tests have: nobody else loses an answer.

All eight are in one batch, the bad one in each of its places. The kinds with a network are in test_archives_beside.py, where
answers are compared with TorchServe's, too.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.drop_in.one_batch import in_one_batch
from tests.drop_in.stores import archive
from tests.support.deployments import OURS, Deployment, deployed

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(600)]

JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Asked:
    """One request: its body and headers."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Archive:
    """What seven ask well, what the eighth asks, and the status that it alone gets."""

    path: str
    good: list[Asked]
    bad: Asked
    status: int


WORDS = [Asked(b"word %d" % i) for i in range(7)]
ARCHIVES = {
    "echo": Archive(  # it answers whatever it gets, as on TorchServe
        "/predictions/echo", [Asked(b'{"a": %d}' % i, JSON) for i in range(7)], Asked(b"{broken", JSON), 200
    ),
    "errors": Archive("/predictions/errors", WORDS, Asked(b"boom"), 500),
    "too few": Archive("/predictions/errors", WORDS, Asked(b"short"), 500),
    "headers": Archive(
        "/predictions/headers",
        [Asked(b"x", {"color": f"color {i}", "x-status": str(200 + i)}) for i in range(4)]
        + [Asked(b"x", {"color": f"color {i}"}) for i in range(3)],
        Asked(b"x", {"x-status": "no number"}),
        500,
    ),
    "folder": Archive("/predictions/folder", WORDS, Asked(b"boom"), 500),
}
ENVELOPED = Archive(
    "/predictions/enveloped",
    [Asked(json.dumps({"instances": [[i], [i + 1]]}).encode(), JSON) for i in range(7)],
    Asked(b'{"instances": [[1], ', JSON),
    500,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("s") / "store"
    for name in ("echo", "errors", "headers", "enveloped", "never"):
        archive(folder, name, name)
    archive(folder, "folder", "errors", form="no-archive")
    whole = (folder / "echo.mar").read_bytes()
    (folder / "broken.mar").write_bytes(whole[: len(whole) // 2])
    return folder


@contextmanager
def batched(place: Path, store: Path, archives: Mapping[str, str], *lines: str) -> Iterator[Deployment]:
    """These archives, by their models' names, with batches of eight."""
    own = {"defaultVersion": True, "batchSize": 8, "maxBatchDelay": 200}
    settings = {name: {"1.0": {**own, "marName": archive}} for name, archive in archives.items()}
    lines = ("default_workers_per_model=1", "metrics_mode=prometheus", f"models={json.dumps(settings)}", *lines)
    options = ("--ncs", "--enable-model-api", "--models", ",".join(archives.values()))
    with deployed(OURS, place, store, lines, options) as running:
        for name in archives:
            running.wait_ready(name)
        yield running


@pytest.fixture(scope="module")
def deployment(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    archives = {"echo": "echo.mar", "errors": "errors.mar", "headers": "headers.mar", "folder": "folder"}
    with batched(tmp_path_factory.mktemp("d"), store, archives) as running:
        yield running


def ask(deployment: Deployment, path: str, one: Asked) -> httpx.Response:
    headers = {**deployment.headers("inference"), **one.headers}
    return deployment.asked("POST", deployment.inference + path, headers=headers, content=one.body)


@pytest.mark.parametrize("name", ARCHIVES)
def test_nobody_else_loses_an_answer(deployment: Deployment, name: str) -> None:
    nobody_else_loses(deployment, ARCHIVES[name])


def test_nor_behind_an_envelope(store: Path, tmp_path: Path) -> None:
    with batched(tmp_path / "d", store, {"enveloped": "enveloped.mar"}, "service_envelope=json") as running:
        nobody_else_loses(running, ENVELOPED)


def nobody_else_loses(deployment: Deployment, one: Archive) -> None:
    alone = [said(ask(deployment, one.path, request)) for request in one.good]
    refused = ask(deployment, one.path, one.bad)
    assert refused.status_code == one.status
    assert one.status == 200 or set(refused.json()) == {"code", "type", "message"}
    for place in range(8):
        asked = [*one.good[:place], one.bad, *one.good[place:]]
        model = one.path.rpartition("/")[2]
        answers = in_one_batch(deployment, model, lambda request: ask(deployment, one.path, request), one.good[0], asked)
        assert said(answers.pop(place))[:2] == (one.status, refused.content)
        assert [said(answer) for answer in answers] == alone


def said(answer: httpx.Response) -> tuple[int, bytes, dict[str, str | None]]:
    return answer.status_code, answer.content, {name: answer.headers.get(name) for name in ("content-type", "x-made-by")}


@pytest.mark.parametrize(("url", "status"), [("never.mar", 500), ("broken.mar", 400)])
def test_an_archive_that_cannot_be_served_costs_nobody_an_answer(deployment: Deployment, url: str, status: int) -> None:
    good, over = ARCHIVES["errors"].good, threading.Event()

    def keep_asking(one: Asked) -> set[tuple[int, bytes]]:
        seen = set()
        while not over.is_set():
            answer = ask(deployment, "/predictions/errors", one)
            seen.add((answer.status_code, answer.content))
        return seen

    with ThreadPoolExecutor(8) as clients:
        asking = [clients.submit(keep_asking, one) for one in good]
        try:
            answer = deployment.call("POST", "/models", url=url, initial_workers="1", synchronous="true")
            assert (answer.status_code, answer.json()["code"]) == (status, status)
            if url == "never.mar":
                assert ask(deployment, "/predictions/never", Asked(b"x")).status_code == 503
                assert deployment.call("DELETE", "/models/never").status_code == 200
        finally:
            over.set()
        for one, asked in zip(good, asking, strict=True):
            assert asked.result() == {(200, one.body)}
