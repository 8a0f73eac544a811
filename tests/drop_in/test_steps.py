"""A handler of continuousBatching as it is, on ours and on the real TorchServe: it is called until its criterion stops it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.drop_in.stores import archive
from tests.drop_in.test_pieces import asked, read
from tests.support.deployments import OURS, Deployment, deployed
from tests.support.torchserve_client import TorchServeClient

CONFIG = "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 10\ncontinuousBatching: true\n"


@pytest.fixture(scope="module")
def deployment(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    place = tmp_path_factory.mktemp("s")
    (place / "model-config.yaml").write_text(CONFIG)
    archive(place / "store", "steps", "steps", config_file=place / "model-config.yaml")
    options = ("--ncs", "--models", "steps.mar")
    with deployed(program, place / "d", place / "store", ("default_workers_per_model=1",), options) as one:
        one.wait_ready("steps")
        yield one


def pieces(deployment: Deployment, body: bytes, *headers: str) -> tuple[bytes, list[bytes], bool]:
    return read(asked(deployment, body, *headers, model="steps"))


SAID = {b"type a b": [b"type ", b"a ", b"b "], b"json a": [b'{\n  "word": "json"\n}', b"a "]}


@pytest.mark.parametrize("body", SAID, ids=bytes.decode)
def test_what_each_call_gives_is_a_chunk(deployment: Deployment, body: bytes) -> None:
    head, chunks, whole = pieces(deployment, body)
    assert head.startswith(b"HTTP/1.1 200")
    assert (chunks, whole) == (SAID[body], True)
    assert (b"content-type: text/plain; charset=utf-8" in head) == body.startswith(b"type")


def test_the_description_says_how_it_is_called(deployment: Deployment, client: TorchServeClient) -> None:
    (over_http,) = deployment.call("GET", "/models/steps").json()
    (over_grpc,) = client.ask("DescribeModel", model_name="steps").value
    assert [(one["continuousBatching"], one["stateful"], one["useJobTicket"]) for one in (over_http, over_grpc)] == [
        (True, False, False)
    ] * 2


def test_many_clients_get_their_own(deployment: Deployment) -> None:
    bodies = [b" ".join(b"%d.%d" % (i, k) for k in range(2 + i % 4)) for i in range(24)]
    with ThreadPoolExecutor(8) as clients:
        got = list(clients.map(lambda body: pieces(deployment, body)[1], bodies))
    assert [b"".join(chunks) for chunks in got] == [body + b" " for body in bodies]


@pytest.mark.parametrize("program", [OURS], indirect=True, ids=["ours"])
class TestOursAlone:
    """What only ours promises."""

    @pytest.mark.parametrize("body", SAID, ids=bytes.decode)
    def test_by_grpc_it_is_a_message(self, client: TorchServeClient, body: bytes) -> None:
        """TorchServe's gRPC gives the first piece, and calls the handler again only when the call's deadline has passed."""
        got = client.ask("StreamPredictions", model_name="steps", input={"data": body})
        assert (got.code, list(got.content)) == ("OK", SAID[body])

    def test_an_error_is_one_requests_own_and_leaves_nothing(self, deployment: Deployment) -> None:
        with ThreadPoolExecutor(8) as clients:
            got = list(clients.map(lambda i: pieces(deployment, b"a fail b" if i % 4 == 0 else b"a b"), range(16)))
        assert [(chunks, whole) for _, chunks, whole in got] == 4 * [([b"a "], False), *[([b"a ", b"b "], True)] * 3]
        assert pieces(deployment, b"left", "Accept: text/event-stream")[1][0].startswith(b'data: {"text": "1 "}')

    def test_a_criterion_that_says_nothing_is_an_error(self, deployment: Deployment) -> None:
        address = f"{deployment.inference}/predictions/steps"
        early = deployment.asked("POST", address, headers=deployment.headers("inference"), content=b"nothing")
        assert (early.status_code, "stopping criterion" in early.text) == (500, True)
        _, chunks, whole = pieces(deployment, b"a nothing b")
        assert (chunks, whole) == ([b"a "], False)

    def test_one_id_of_two_clients_keeps_them_apart(self, deployment: Deployment) -> None:
        bodies = [b"%d wait %d" % (i, i) for i in range(4)]
        with ThreadPoolExecutor(4) as clients:
            got = list(clients.map(lambda body: pieces(deployment, body, "X-Request-Id: same")[1], bodies))
        assert [b"".join(chunks) for chunks in got] == [body + b" " for body in bodies]

    def test_who_asks_for_events_gets_events_and_whole_it_is_all_in_one(
        self, deployment: Deployment, client: TorchServeClient
    ) -> None:
        _, chunks, whole = pieces(deployment, b"a fail", "Accept: text/event-stream")
        assert b"".join(chunks).startswith(b'data: {"text": "a "}\n\nevent: error\ndata: ')
        assert whole
        assert client.predict("steps", b"type a b").content == (b"type a b ",)

    def test_a_worker_that_dies_ends_no_stream(self, deployment: Deployment) -> None:
        with asked(deployment, b"a " + b"wait " * 8 + b"b", model="steps") as connection:
            begun = connection.recv(1 << 16)
            (worker,) = deployment.call("GET", "/models/steps").json()[0]["workers"]
            os.kill(worker["pid"], signal.SIGKILL)
            rest = read(connection, begun)
        assert rest[1:] == ([b"a ", *[b"wait "] * 8, b"b "], True)

    def test_a_client_that_goes_frees_the_worker(self, deployment: Deployment) -> None:
        """The one that has gone would take an hour, and there is one worker."""
        with asked(deployment, b"a " + b"wait " * 18_000, model="steps") as connection:
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert pieces(deployment, b"a b")[1] == [b"a ", b"b "]
