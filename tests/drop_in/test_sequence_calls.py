"""StreamPredictions2: a sequence's requests on one call of gRPC, each with its own answers, errors among them."""

from __future__ import annotations

import json
import os
import queue
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from slotwise.frontend.grpc.request_stream import LEAVES
from slotwise.host.torchserve_grpc.sequence_call import BAD_ID, LONGEST_ID, ONE_SEQUENCE, REASON
from slotwise.host.torchserve_grpc.torchserve_messages import INFERENCE
from tests.drop_in.stores import archive
from tests.drop_in.test_sequences import CONFIG, LINES, stored
from tests.support.deployments import OURS, Deployment, deployed
from tests.support.torchserve_client import TorchServeClient, client_of

Asked = Mapping[str, Any]
END = LINES[0].partition("=")[2]
OPTIONS = ("--ncs", "--models", "counts.mar,pieces.mar")


def store_of(place: Path) -> Path:
    """Sums of sequences in two workers, and a handler that sends pieces."""
    stored(place / "store", "counts", CONFIG.format(workers=2, most=30, idle_ms=600_000))
    archive(place / "store", "pieces", "pieces")
    return place / "store"


@pytest.fixture(scope="module")
def deployment(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    place = tmp_path_factory.mktemp("b")
    with deployed(program, place / "d", store_of(place), ("default_workers_per_model=1", *LINES), OPTIONS) as one:
        one.wait_ready("counts", 2)
        one.wait_ready("pieces")
        yield one


def request(data: str, sequence: str = "s", model: str = "counts", **inputs: bytes) -> Asked:
    """The fields of a request."""
    named = {name.replace("_", "-"): value for name, value in inputs.items()}
    return {"model_name": model, "sequence_id": sequence, "input": {"data": data.encode(), **named}}


def said(answer: Any) -> Any:
    """What an answer says: its bytes, or an error's code, words and kind."""
    if not answer.HasField("status"):
        return answer.prediction
    (detail,) = answer.status.details
    assert detail.type_url == REASON
    return answer.status.code, answer.status.message, INFERENCE.classes["ErrorInfo"].FromString(detail.value).reason


REFUSED = {
    "no id": (request("1", ""), (13, "Parameter sequenceId is required.", "BadRequestException.()")),
    "no model": (request("1", model=""), (13, "Parameter model_name is required.", "BadRequestException.()")),
    "unknown": (
        request("1", model="nobody"),
        (13, "Model not found: nobody", "org.pytorch.serve.archive.model.ModelNotFoundException"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_is_an_answer_in_torchserves_words(client: TorchServeClient, name: str) -> None:
    """TorchServe's call ends then, as UNKNOWN, where there is no such model."""
    asked, wanted = REFUSED[name]
    assert said(next(client.both_ways([asked]))) == wanted


@pytest.mark.parametrize("program", [OURS], indirect=True, ids=["ours"])
class TestOursAlone:
    """TorchServe tells its handler that each request is its sequence's last, and ends the call with the client's last one."""

    def test_a_call_begins_its_sequence_and_stays_in_one_worker(self, client: TorchServeClient) -> None:
        answers = [*client.both_ways(request(str(i), "sum") for i in (1, 2, 3))]
        read = [json.loads(said(answer)) for answer in answers]
        assert ([one["total"] for one in read], len({one["pid"] for one in read})) == ([1, 3, 6], 1)
        assert {answer.sequence_id for answer in answers} == {"sum"}

    def test_a_request_says_where_its_sequence_begins_and_ends(self, client: TorchServeClient) -> None:
        start = "ts_request_sequence_start"
        first = {**request("1", "long"), "input": {"data": b"1", start: b"true"}}
        on = {**request("2", "long"), "input": {"data": b"2", start: b"false"}}
        last = {**request("3", "long"), "input": {"data": b"3", END: b"true"}}
        totals = [json.loads(said(one))["total"] for asked in ([first], [on, last]) for one in client.both_ways(asked)]
        assert totals == [1, 3, 6]
        (over,) = client.both_ways([on])
        assert "it was ended" in said(over)[1]

    def test_headers_of_the_call_are_no_requests_own(self, client: TorchServeClient) -> None:
        known = ("authorization", f"Bearer {client.token('inference')}")
        metadata = [known, ("ts_request_sequence_start", "true"), ("ts_request_sequence_id", "other")]
        answers = client.both_ways([request("1", "mine"), request("2", "mine")], metadata=metadata)
        assert [json.loads(said(one))["total"] for one in answers] == [1, 3]

    def test_pieces_come_one_request_after_the_other_and_an_error_ends_its_own(self, client: TorchServeClient) -> None:
        bodies = ("type a b", "x a fail b", "bytes a", "plain")
        answers = [said(one) for one in client.both_ways(request(body, model="pieces") for body in bodies)]
        late = answers.pop(4)
        assert answers == [b"a ", b"b ", b"end", b"a ", b"\xff\x00\n", b"end", b"end"]
        assert (late[0], late[2]) == (13, "org.pytorch.serve.http.InternalServerException")

    def test_what_is_no_request_of_it_is_refused_and_the_others_answered(self, client: TorchServeClient) -> None:
        why = "org.pytorch.serve.http.BadRequestException"
        bad = [request("1", "x" * (LONGEST_ID + 1)), request("1", "line\nfeed"), request("1", "other")]
        answers = [said(one) for one in client.both_ways([request("1", "one"), *bad, request("2", "one")])]
        assert [json.loads(one)["total"] for one in (answers[0], answers[-1])] == [1, 3]
        assert answers[1:-1] == [(3, BAD_ID, why), (3, BAD_ID, why), (3, ONE_SEQUENCE, why)]

    @pytest.mark.parametrize("name", REFUSED)
    def test_after_an_error_the_call_goes_on(self, client: TorchServeClient, name: str) -> None:
        asked, wanted = REFUSED[name]
        sequence = asked["sequence_id"] or "after"
        begins = {**request("1", sequence), "input": {"data": b"1", "ts_request_sequence_start": b"true"}}
        error, answer = client.both_ways([asked, begins])
        assert (said(error), json.loads(said(answer))["total"]) == (wanted, 1)

    def test_who_brings_no_token_is_not_let_in(self, client: TorchServeClient) -> None:
        with pytest.raises(grpc.RpcError) as error:
            next(client.both_ways([request("1")], metadata=()))
        assert error.value.code().name == "PERMISSION_DENIED"

    def test_a_client_that_goes_leaves_the_worker_as_it_was(self, client: TorchServeClient) -> None:
        """There is one worker. The handler runs to its end there."""
        call = client.both_ways([request("x a " + "wait " * 8, model="pieces")] * 3)
        assert said(next(call)) == b"a "
        call.cancel()
        assert [said(one) for one in client.both_ways([request("x a", model="pieces")])] == [b"a ", b"end"]

    def test_answers_come_while_the_call_goes_on(self, client: TorchServeClient) -> None:
        asked: queue.Queue[Asked | None] = queue.Queue()
        call = client.both_ways(iter(asked.get, None))
        for number, total in (("1", 1), ("4", 5)):
            asked.put(request(number, "talk"))
            assert json.loads(said(next(call)))["total"] == total
        asked.put(None)
        assert [*call] == []

    def test_a_server_that_ends_waits_for_no_idle_call(self, program: str, tmp_path: Path) -> None:
        with deployed(program, tmp_path / "d", store_of(tmp_path), LINES, OPTIONS) as one:
            one.wait_ready("pieces")
            with client_of(one.ports, one.folder) as client:
                asked: queue.Queue[Asked | None] = queue.Queue()
                call = client.both_ways(iter(asked.get, None))
                asked.put(request("plain", model="pieces"))
                assert said(next(call)) == b"end"
                os.kill(one.pid, signal.SIGTERM)
                with pytest.raises(grpc.RpcError) as error:
                    next(call)
                asked.put(None)
        assert (error.value.code().name, LEAVES in error.value.details()) == ("UNAVAILABLE", True)
