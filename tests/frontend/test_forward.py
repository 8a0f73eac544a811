"""A request through the gateway: what is passed on, what comes back, what is tried again."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import math
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.backends.exchange import BackendAnswer, BackendRequest
from slotwise.client.tokens import auth_headers
from slotwise.frontend import replies
from slotwise.frontend.events.raw_pieces import RawPieces
from slotwise.frontend.inference_request import InferenceRequest
from tests.support.errors import error

from .conftest import MakeFront
from .standin import StandIn

pytestmark = pytest.mark.anyio
EXPIRED = "2000-01-01T00:00:00+00:00"


async def test_an_answer_passes_through_with_its_slot(make_front: MakeFront) -> None:
    front = await make_front()
    answer = await front.predict(b"\x00\xff picture", headers={"content-type": "image/png", "accept": "text/plain"})
    assert answer.status_code == 200
    assert answer.json()["sha256"] == hashlib.sha256(b"\x00\xff picture").hexdigest()
    assert answer.headers["x-batch-size"] == "4"
    assert answer.headers["x-batch-slot"] == "1"
    assert float(answer.headers["x-total-ms"]) >= float(answer.headers["x-queue-ms"])
    sent = front.server.seen[0]
    assert (sent.method, sent.target) == ("POST", "/predictions/digits")
    assert (sent.headers["content-type"], sent.headers["accept"]) == ("image/png", "text/plain")
    assert sent.headers["x-request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/predictions/digits", "/predictions/digits"),
        ("/predictions/digits/1.0?top=3", "/predictions/digits/1.0?top=3"),
        ("/classify/digits", "/predictions/digits"),
        ("/models/digits/invoke", "/predictions/digits"),
        ("/caption", "/predictions/captions"),
        ("/translation", "/predictions/translation"),
    ],
)
async def test_every_route_reaches_its_model(make_front: MakeFront, path: str, target: str) -> None:
    front = await make_front(StandIn(models={"digits": 1, "captions": 1, "translation": 1}))
    answer = await front.client.post(path, content=b"x")
    assert answer.status_code == 200
    assert front.server.seen[0].target == target


async def test_put_is_taken_and_get_is_not(make_front: MakeFront) -> None:
    front = await make_front()
    assert (await front.client.put("/predictions/digits", content=b"x")).status_code == 200
    refused = await front.client.get("/predictions/digits")
    assert refused.status_code == 405
    error(refused)


async def test_multipart_passes_through_as_it_is(make_front: MakeFront) -> None:
    front = await make_front()
    await front.client.post("/predictions/digits", files={"data": ("7.png", b"\x89PNG", "image/png")})
    sent = front.server.seen[0]
    assert sent.headers["content-type"].startswith("multipart/form-data; boundary=")
    assert b'name="data"' in sent.body
    assert b"\x89PNG" in sent.body


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"\x89PNG\r\n", "application/octet-stream"),
        (b'{"payload": 1}', "application/octet-stream"),
        (b"data=abc&x=1", "application/x-www-form-urlencoded"),
    ],
)
async def test_what_curl_calls_a_form_is_one_only_where_it_is(make_front: MakeFront, body: bytes, content_type: str) -> None:
    front = await make_front()
    await front.predict(body, headers={"content-type": "application/x-www-form-urlencoded"})
    assert front.server.seen[0].headers["content-type"] == content_type


async def test_a_form_that_the_server_cannot_take_apart_is_the_clients_error(make_front: MakeFront) -> None:
    front = await make_front(StandIn(script=deque(["form"])))
    answer = await front.predict(b"=", headers={"content-type": "application/x-www-form-urlencoded"})
    assert answer.status_code == 400
    assert "java" not in error(answer)["message"]
    assert len(front.server.seen) == 1


async def test_a_slots_own_error_is_an_answer_and_never_tried_again(make_front: MakeFront) -> None:
    for action, status in (("bad", 400), ("fault", 500)):
        front = await make_front(StandIn(script=deque([action])))
        answer = await front.predict()
        assert answer.status_code == status
        assert error(answer)["message"] == "this slot's own error"
        assert answer.headers["x-batch-slot"] == "1"
        assert len(front.server.seen) == 1


@pytest.mark.parametrize("failure", ["dead", "full", "drop"])
async def test_a_dead_worker_or_a_broken_connection_is_tried_once_more(make_front: MakeFront, failure: str) -> None:
    front = await make_front(StandIn(script=deque([failure])))
    answer = await front.predict(b"again")
    assert answer.status_code == 200
    assert [seen.body for seen in front.server.seen] == [b"again", b"again"]


@pytest.mark.parametrize(("failure", "status"), [("full", 503), ("drop", 502)])
async def test_but_only_once(make_front: MakeFront, failure: str, status: int) -> None:
    front = await make_front(StandIn(script=deque([failure] * 2)))
    answer = await front.predict()
    assert answer.status_code == status
    error(answer)
    assert len(front.server.seen) == 2
    assert ("retry-after" in answer.headers) == (status == 503)


async def test_a_server_that_is_down_or_was_never_there_is_a_502(make_front: MakeFront) -> None:
    front = await make_front()
    await front.server.stop()
    assert error(await front.predict())["code"] == 502
    front.backend.upstream = None
    assert error(await front.predict())["message"] == "no model server is running"


async def test_an_unknown_model_is_the_servers_404_in_our_shape(make_front: MakeFront) -> None:
    front = await make_front()
    assert error(await front.predict(model="nosuch"))["message"] == "Model not found: nosuch"
    assert error(await front.predict(model="..%2f..%2fmodels"))["code"] == 404
    assert error(await front.predict(model="%00"))["code"] == 404


async def test_the_token_is_the_gateways_own_and_is_read_again_when_refused(make_front: MakeFront) -> None:
    front = await make_front(StandIn(token="first"))
    answer = await front.predict(headers={"authorization": "Bearer the-clients"})
    assert answer.status_code == 200
    assert front.server.seen[0].headers["authorization"] == "Bearer first"
    front.server.token = "second"
    front.server.record(front.record.state_dir)  # somebody renewed it: the file holds the new one
    assert (await front.predict()).status_code == 200
    front.server.token = "third"  # and now nobody knows it: that is no fault of the client
    assert error(await front.predict())["code"] == 503


async def test_a_new_token_is_read_for_every_request_that_was_refused(make_front: MakeFront) -> None:
    front = await make_front(StandIn(token="first"))
    assert front.record is not None
    front.server.token = "second"
    front.server.record(front.record.state_dir)  # a renewed key file
    answers = await asyncio.gather(*(front.predict() for _ in range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8


async def test_an_expired_token_is_renewed_once_for_all_that_were_refused(make_front: MakeFront) -> None:
    front = await make_front(in_flight=32)
    front.server.token = "nobody has it"
    front.server.write_keys(EXPIRED)
    answers = await asyncio.gather(*(front.predict() for _ in range(32)))
    assert [answer.status_code for answer in answers] == [200] * 32
    assert front.server.renewals == 1


async def test_a_token_that_is_worthless_again_before_it_is_used_is_renewed_again(make_front: MakeFront) -> None:
    front = await make_front(StandIn(token="first"))
    front.server.token, tokens = "third", iter(["second", "third"])
    assert front.backend.upstream is not None
    front.backend.upstream._auth = lambda record: {"Authorization": f"Bearer {next(tokens)}"}
    assert (await front.predict()).status_code == 200


async def test_a_token_that_cannot_be_renewed_is_a_503(make_front: MakeFront) -> None:
    front = await make_front()
    front.server.token = "nobody has it"
    assert front.record is not None
    (front.record.state_dir / "key_file.json").unlink()
    answer = await front.predict()
    assert error(answer)["message"] == "the model server's token could not be renewed"
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert 'slotwise_requests_total{model="digits",status="503"} 1.0' in (await front.client.get("/metrics")).text


async def test_a_key_file_that_is_just_being_written_is_read_again(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = await make_front()
    assert front.record is not None
    (front.record.state_dir / "key_file.json").write_text("")
    monkeypatch.setattr("slotwise.client.tokens.time.sleep", lambda seconds: front.server.write_keys())
    assert auth_headers(front.record) == {"Authorization": "Bearer token"}


async def test_the_headers_of_a_sequence_go_both_ways(make_front: MakeFront) -> None:
    front = await make_front()
    answer = await front.predict(headers={"ts_request_sequence_id": "7", "ts_request_sequence_start": "true"})
    assert answer.headers["ts_request_sequence_id"] == "7"
    sent = front.server.seen[0].headers
    assert (sent["ts_request_sequence_id"], sent["ts_request_sequence_start"]) == ("7", "true")


async def test_a_crash_is_a_guarded_500_with_the_logs_request_id(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    front = await make_front()
    monkeypatch.setattr(front.gateway, "killers", None)
    monkeypatch.setattr(front.gateway, "described", None)
    for answer in (await front.predict(), await front.client.get("/models")):
        assert error(answer)["message"] == "the gateway failed on this request"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-request-id"] in caplog.text
    assert 'slotwise_requests_total{model="digits",status="500"} 1.0' in (await front.client.get("/metrics")).text


async def test_the_clients_request_id_is_kept_where_it_is_harmless(make_front: MakeFront) -> None:
    front = await make_front()
    assert (await front.predict(headers={"x-request-id": "my-id.7"})).headers["x-request-id"] == "my-id.7"
    assert (await front.predict(headers={"x-request-id": "<b>"})).headers["x-request-id"] != "<b>"


@pytest.mark.parametrize("status", [200, 400])
async def test_an_answer_that_its_model_has_packed_says_so(
    make_front: MakeFront, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    front = await make_front()

    async def packed(request: BackendRequest) -> BackendAnswer:
        said = {b"Content-Type": b"text/plain", b"Content-Encoding": b"gzip"}
        return BackendAnswer(status, list(said.items()), gzip.compress(b"packed"))

    monkeypatch.setattr(front.gateway.backend, "answer", packed)
    answer = await front.predict()
    if status == 200:
        assert answer.text == "packed"
    else:  # in the shape of every error, which is not packed
        assert answer.json()["error"]["code"] == 400
    generated = await front.client.post("/v2/models/digits/generate", json={"text_input": "x"})
    assert "error" in generated.json()


async def test_the_deadline_is_passed_on_and_kept(make_front: MakeFront) -> None:
    front = await make_front(StandIn(slow_s=300), timeout_s=90)
    wanted = int((time.time() + 60) * 1000)
    await front.predict(headers={"x-deadline-ms": str(wanted)})
    assert abs(int(front.server.seen[0].headers["x-deadline-ms"]) - wanted) <= 500
    await front.predict(headers={"x-deadline-ms": str(wanted + 3_600_000)})
    assert int(front.server.seen[1].headers["x-deadline-ms"]) <= (time.time() + 90) * 1000
    front.server.script.append("slow")
    answer = await front.predict(headers={"x-deadline-ms": str(int(time.time() * 1000) + 100)})
    assert error(answer)["code"] == 504
    seen = len(front.server.seen)  # 2 where those 100 ms were over before it was sent
    assert error(await front.predict(headers={"x-deadline-ms": "1"}))["code"] == 504
    assert len(front.server.seen) == seen
    for nonsense in ("soon", "nan", "9" * 5000):
        assert error(await front.predict(headers={"x-deadline-ms": nonsense}))["code"] == 400


async def test_a_deadline_that_a_clock_took_for_passed_is_tried_again(make_front: MakeFront) -> None:
    front = await make_front(StandIn(script=deque(["late"])), timeout_s=60)
    assert (await front.predict()).status_code == 200
    first, second = (int(seen.headers["x-deadline-ms"]) for seen in front.server.seen)
    assert abs(first - second) < 50_000
    front.server.script.extend(["late", "late", "late"])
    assert error(await front.predict())["code"] == 504
    assert len(front.server.seen) == 5


@pytest.mark.parametrize(("own_s", "left_s"), [(math.inf, 120), (5.0, 5)])
async def test_each_piece_extends_the_fronts_time_and_never_its_clients(
    make_front: MakeFront, own_s: float, left_s: float
) -> None:
    gateway, now = (await make_front()).gateway, time.monotonic()
    request = InferenceRequest("digits", now + min(1, own_s), gateway=gateway, client_deadline=now + own_s)
    client: Any = SimpleNamespace(write=lambda data: None)
    RawPieces(request, client, 120.0).send(b"a piece")
    assert request.deadline == pytest.approx(now + left_s, abs=2)


async def test_a_body_over_the_limit_is_refused_with_and_without_a_length(make_front: MakeFront) -> None:
    front = await make_front(max_body_bytes=1000)

    async def chunks() -> Any:
        for _ in range(11):
            yield b"x" * 100

    assert error(await front.predict(b"x" * 1001))["code"] == 413
    assert error(await front.client.post("/predictions/digits", content=chunks()))["code"] == 413
    assert (await front.predict(b"x" * 1000)).status_code == 200
    assert front.gateway.body_memory.now_bytes == 0
    assert len(front.server.seen) == 1


async def test_bodies_together_stay_within_the_memory_budget(make_front: MakeFront) -> None:
    front = await make_front(max_memory_bytes=1500)
    front.server.gate = asyncio.Event()
    first = asyncio.create_task(front.predict(b"x" * 1000))
    while not front.server.seen:
        await asyncio.sleep(0.001)
    refused = await front.predict(b"x" * 1000)
    assert error(refused)["code"] == 429
    assert refused.headers["retry-after"] == "1"
    front.server.gate.set()
    assert (await first).status_code == 200
    assert front.gateway.body_memory.now_bytes == 0


async def test_answers_are_counted_like_bodies_until_they_are_sent(make_front: MakeFront) -> None:
    front = await make_front(max_memory_bytes=50)
    assert error(await front.predict(b"x"))["code"] == 413  # its answer is longer
    assert front.gateway.body_memory.now_bytes == 0
    front.gateway.body_memory.max_bytes = 1000
    front.gateway.body_memory.take(900)
    assert error(await front.predict(b"x"))["code"] == 429
    front.gateway.body_memory.give_back(900)
    assert (await front.predict(b"x")).status_code == 200
    assert front.gateway.body_memory.now_bytes == 0


async def test_a_long_error_of_a_server_is_not_read(make_front: MakeFront) -> None:
    assert json.loads(replies.error_from_server(500, b'{"message": "' + b"x" * 70_000 + b'"}', "i"))["error"] == {
        "code": 500,
        "message": "Internal Server Error",
        "request_id": "i",
    }


async def test_beyond_the_places_and_the_queue_requests_are_refused_at_once(make_front: MakeFront) -> None:
    front = await make_front(in_flight=2, queued=3)
    front.server.gate = asyncio.Event()
    asked = [asyncio.create_task(front.predict()) for _ in range(9)]
    async with asyncio.timeout(60):
        while sum(task.done() for task in asked) < 4 or len(front.server.seen) < 2:
            await asyncio.sleep(0.01)
    done = [task for task in asked if task.done()]
    waiting = [task for task in asked if not task.done()]
    assert len(done) == 4
    for task in done:
        assert error(task.result())["code"] == 429
        assert int(task.result().headers["retry-after"]) >= 1
    assert len(front.server.seen) == 2
    load = front.gateway.described()[0]
    assert (load["in_flight"], load["queued"]) == (2, 3)
    front.server.gate.set()
    assert [task.result().status_code for task in (await asyncio.wait(waiting))[0]] == [200] * 5
    load = front.gateway.described()[0]
    assert (load["in_flight"], load["queued"]) == (0, 0)


async def test_metrics_count_what_happened(make_front: MakeFront) -> None:
    front = await make_front(StandIn(script=deque(["answer", "drop", "answer", "bad"])), in_flight=1, queued=0)
    for _ in range(3):
        await front.predict()
    await front.predict(model="nosuch")
    text = (await front.client.get("/metrics")).text
    for line in (
        'slotwise_requests_total{model="digits",status="200"} 2.0',
        'slotwise_requests_total{model="digits",status="400"} 1.0',
        'slotwise_requests_total{model="other",status="404"} 1.0',
        'slotwise_retries_total{model="digits"} 1.0',
        'slotwise_batch_size_sum{model="digits"} 12.0',
        'slotwise_in_flight_requests{model="digits"} 0.0',
        "slotwise_server_up 1.0",
    ):
        assert line in text.splitlines()
    assert "nosuch" not in text


@pytest.mark.parametrize("path", ["/predictions/digits/", "/v2/models/digits/", "/healthz/"])
async def test_a_slash_too_many_is_an_error_and_no_redirection(make_front: MakeFront, path: str) -> None:
    answer = await (await make_front()).client.post(path, content=b"1")
    assert error(answer)["code"] == 404
