"""Streams over HTTP from a host of our own: errors, a worker that is killed in the middle, who hangs up, the gateway."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from slotwise.archive.build import build
from slotwise.archive.scaffold import new as scaffold
from slotwise.errors import SlotwiseError
from slotwise.frontend.grpc.open_inference_messages import CLASSES, SERVICE
from tests.backends.streaming_models import GENERATOR, STEPS, streaming_archive
from tests.backends.test_archives import HANDLER
from tests.server.conftest import Live, started
from tests.server.event_client import EVENTS, PATIENCE_S, client_to, events
from tests.server.test_serve import slotwise
from tests.support.archives import unproven
from tests.support.torchserve_client import Outcome, TorchServeClient, client_of
from tests.support.waiting import until

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A host with a model of words, one of sums, one that does not stream, and what `slotwise new --streams` writes."""
    folder, store = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("store")
    for name, handler in (("words", GENERATOR), ("sums", STEPS), ("twice", HANDLER)):
        streaming_archive(folder, name, handler, store)
    scaffold.new(str(folder / "tale"), kind="stream")
    build(folder / "tale", store, prove=unproven)  # it takes its time for each piece
    with started("slotwise", tmp_path_factory.mktemp("home"), store) as live:
        for name in ("words", "sums", "twice", "tale"):
            live.management.register(f"{name}.mar", batch_size=4, initial_workers=1)
            live.management.wait_ready(name, 1)
        yield live


@pytest.fixture
def client(live: Live) -> Iterator[httpx.Client]:
    with client_to(live) as client:
        yield client


@pytest.fixture
def calls(live: Live) -> Iterator[TorchServeClient]:
    with client_of(live.record.ports, live.record.state_dir) as calls:
        yield calls


def words(count: int) -> list[tuple[str, dict[str, object]]]:
    return [("piece", {"text": f"word{i} "}) for i in range(count)]


def test_the_same_request_whole_and_in_pieces(client: httpx.Client) -> None:
    streamed = client.post("/predictions/words", content="[3]", headers=EVENTS)
    assert (streamed.status_code, streamed.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert events(streamed.text) == [*words(3), ("end", {"pieces": 3})]
    whole = client.post("/predictions/words", content="[3]", headers={"content-type": "application/json"})
    assert (whole.status_code, whole.text) == (200, "word0 word1 word2 ")


def test_a_new_model_streams_and_answers_whole(live: Live) -> None:
    with live.inference.stream("tale", b"Every") as pieces:
        assert [piece["text"] for piece in pieces] == [" request", " keeps", " its", " slot"]
    whole = live.inference.predict("tale", b"so it is with every")
    assert (whole.status_code, whole.text) == (200, " request keeps its slot")
    assert [live.inference.predict("tale", body).status_code for body in (b"nothing", b" ")] == [422, 422]


def test_triton_clients_get_a_text_for_a_text(client: httpx.Client) -> None:
    asked, named = {"text_input": "Every"}, {"model_name": "tale", "model_version": "1.0"}
    whole = client.post("/v2/models/tale/generate", json=asked)
    assert (whole.status_code, whole.json()) == (200, {**named, "text_output": " request keeps its slot"})
    streamed = client.post("/v2/models/tale/generate_stream", json=asked).text.removesuffix("\n\n").split("\n\n")
    pieces = [json.loads(event.removeprefix("data: ")) for event in streamed]
    assert pieces == [{**named, "text_output": text} for text in (" request", " keeps", " its", " slot")]
    for model, status in (("tale", 422), ("twice", 406), ("none", 404)):
        refused = client.post(f"/v2/models/{model}/generate_stream", json={"text_input": "nothing"})
        assert (refused.status_code, list(refused.json())) == (status, ["error"])
    with_parameters = client.post("/v2/models/tale/generate", json={**asked, "parameters": {"top": 1}})
    assert (with_parameters.status_code, "error" in with_parameters.json()) == (422, True)


def test_errors_before_and_after_the_first_piece(client: httpx.Client) -> None:
    early = client.post("/predictions/words", content="[]", headers=EVENTS)
    assert (early.status_code, early.json()["error"]["message"]) == (400, "there is nothing to say")
    late = client.post("/predictions/words", content='[5, "raise", 2]', headers={**EVENTS, "x-request-id": "late"})
    *pieces, (kind, error) = events(late.text)
    assert (late.status_code, pieces, kind) == (200, words(2), "error")
    assert error == {"error": {"code": 500, "message": "the model failed on this input", "request_id": "late"}}


def test_a_model_that_answers_whole_only_says_so(client: httpx.Client) -> None:
    refused = client.post("/predictions/twice", content="2", headers={**EVENTS, "content-type": "text/plain"})
    assert (refused.status_code, "application/json" in refused.json()["error"]["message"]) == (406, True)
    either = {"accept": "text/event-stream, */*", "content-type": "text/plain"}
    assert client.post("/predictions/twice", content="2", headers=either).text == "4.0"


def test_a_stream_without_a_token_is_refused(live: Live) -> None:
    url = f"{live.record.inference_url}/predictions/words"
    assert httpx.post(url, content="[3]", headers=EVENTS, trust_env=False).status_code in (400, 401, 403)


def test_a_worker_that_is_killed_in_the_middle_costs_nobody_a_piece(live: Live, client: httpx.Client) -> None:
    def asked(i: int) -> str:
        headers = {**EVENTS, "content-type": "text/plain", "x-request-id": f"killed-{i}"}
        return client.post("/predictions/sums", content=f"{i + 1} 400", headers=headers).text

    alone = [asked(i) for i in range(4)]
    together: dict[int, str] = {}
    threads = [threading.Thread(target=lambda i=i: together.setdefault(i, asked(i))) for i in range(1, 4)]
    with client.stream("POST", "/predictions/sums", content="1 400", headers={**EVENTS, "x-request-id": "killed-0"}) as first:
        for thread in threads:
            thread.start()
        parts = first.iter_text()
        text = next(parts)
        os.kill(live.pids("sums")[0], signal.SIGKILL)
        text += "".join(parts)
    for thread in threads:
        thread.join()
    assert [text, *(together[i] for i in range(1, 4))] == alone
    assert all(one.endswith('event: end\ndata: {"pieces": 400}\n\n') for one in alone)


def test_who_hangs_up_frees_the_slot(live: Live, client: httpx.Client) -> None:
    for _ in range(12):  # the worker runs four at once
        with client.stream("POST", "/predictions/words", content='[1000000, "slow"]', headers=EVENTS) as stream:
            next(stream.iter_text())
    assert events(client.post("/predictions/words", content="[2]", headers=EVENTS).text) == [*words(2), ("end", {"pieces": 2})]
    wait_for_metric(live, 'slotwise_host_open_requests{model="words",version="1.0"} 0.0')


def wait_for_metric(live: Live, line: str) -> None:
    until(lambda: line in httpx.get(f"{live.record.metrics_url}/metrics", trust_env=False).text, line)


def test_torchserves_grpc_gives_a_message_a_piece(calls: TorchServeClient) -> None:
    def streamed(model: str, body: str) -> Outcome:
        return calls.ask("StreamPredictions", model_name=model, input={"data": body.encode()})

    assert streamed("words", "[3]") == Outcome("OK", "", (b"word0 ", b"word1 ", b"word2 "))
    assert streamed("twice", "2") == Outcome("OK", "", (b"4.0",))
    lines = json.loads(streamed("words", '[1, "lines", 0]').content[0])
    assert lines == {"text": "a\nb\r\u2028c", "more": [1, {}]}
    early, late = streamed("words", "[]"), streamed("words", '[5, "raise", 2]')
    assert (early.code, early.details.splitlines()[0], early.content) == ("INVALID_ARGUMENT", "there is nothing to say", ())
    assert (late.code, late.content) == ("INTERNAL", (b"word0 ", b"word1 "))
    assert late.details.startswith("the model failed on this input")


def test_who_cancels_a_call_or_does_not_read_it_frees_the_slot(live: Live, calls: TorchServeClient) -> None:
    silent = calls.streamed("words", b'[1000000, "large"]')
    wait_for_metric(live, 'slotwise_cut_off_readers_total{model="words"} 1.0')
    for _ in range(12):
        stream = calls.streamed("words", b'[1000000, "slow"]')
        next(stream)
        stream.cancel()
    assert calls.ask("StreamPredictions", model_name="words", input={"data": b"[2]"}).content == (b"word0 ", b"word1 ")
    wait_for_metric(live, 'slotwise_host_open_requests{model="words",version="1.0"} 0.0')
    silent.cancel()


def test_the_command_prints_pieces_as_they_come(live: Live, tmp_path: Path) -> None:
    def predict(body: str, *more: str) -> tuple[int, list[str], str]:
        (tmp_path / "body.json").write_text(body)
        line = ("predict", "words", "body.json", "--name", live.record.name, "--stream", *more)
        done = slotwise(tmp_path, *line, SLOTWISE_HOME=str(live.record.state_dir.parent))
        return done.returncode, done.stdout.splitlines(), done.stderr

    code, lines, said = predict('[2, "lines", 1]', "--json")
    pieces = [{"text": "word0 "}, {"text": "a\nb\r\u2028c", "more": [1, {}]}, {"text": "word1 "}]
    assert (code, [json.loads(line) for line in lines], said) == (0, pieces, "")
    code, lines, said = predict('[5, "raise", 2]')
    assert (code, lines) == (1, ["word0 word1 "])
    assert said.startswith("error: the stream ended after piece 2: the model failed on this input\nhint: ")


def test_a_client_in_python_is_told_why_there_is_no_stream(live: Live) -> None:
    for model, body, status in (("words", b"[]", 400), ("none", b"[3]", 404), ("twice", b"2", 406)):
        with live.inference.stream(model, body) as pieces, pytest.raises(SlotwiseError, match=f"HTTP {status}: "):
            next(pieces)


def test_through_a_gateway_too(live: Live, tmp_path: Path) -> None:
    with live.front() as record, httpx.Client(base_url=record.url, timeout=PATIENCE_S, trust_env=False) as client:
        assert events(client.post("/predictions/words", content="[3]", headers=EVENTS).text)[-1] == ("end", {"pieces": 3})
        resumed = client.post("/predictions/words", content="[3]", headers={**EVENTS, "last-event-id": "1"})
        assert resumed.status_code == 400


def test_v2s_grpc_gives_a_response_a_piece(live: Live) -> None:
    def requests() -> Iterator[bytes]:
        for identity, text in (("three", b"[3]"), ("none", b"[]"), ("late", b'[5, "raise", 2]')):
            message = CLASSES["ModelInferRequest"](model_name="words", id=identity)
            tensor = message.inputs.add(name="x", datatype="BYTES", shape=[1])
            tensor.contents.bytes_contents.append(text)
            message.outputs.add(name="answer")
            yield message.SerializeToString()

    with live.front("--grpc-port", "0") as record, grpc.insecure_channel(record.grpc) as channel:
        ask = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        pieces: dict[str, list[str]] = {}
        for data in ask(requests(), timeout=PATIENCE_S):
            response = CLASSES["ModelStreamInferResponse"].FromString(data)
            answer = response.infer_response
            said = [value.decode() for output in answer.outputs for value in output.contents.bytes_contents]
            pieces.setdefault(answer.id, []).extend(said or [response.error_message])
    failed = "the model failed on this input"
    assert pieces == {
        "three": ["word0 ", "word1 ", "word2 "],
        "none": ["there is nothing to say"],
        "late": ["word0 ", "word1 ", failed],
    }
