"""One request from its client to its row and back, as spans: front, queue and a real worker's process."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from slotwise.backends.exchange import BackendRequest
from slotwise.backends.request_way import sent_together
from slotwise.frontend.grpc.server import GrpcServer
from slotwise.frontend.metrics import printed
from slotwise.frontend.observing.remembered import as_json
from slotwise.frontend.observing.seen_request import SeenRequest
from tests.support.observed import observed

from .traced_front import PARENT, SECRET, TRACE, Make, archives, check_tree, id_of, make, parent_of, slots_of, traced

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from slotwise.frontend.observing.spans import Sampling, over_http

__all__ = ["archives", "make"]  # fixtures
pytestmark = pytest.mark.anyio


async def test_a_batch_is_linked_to_its_requests_and_bisection_is_seen(make: Make) -> None:
    async with traced(make, "digits") as it:
        bodies = [b"a", b"poison " + SECRET, b"c", b"d"]
        answers = await asyncio.gather(*(it.ask("/predictions/digits", body, f"r-{i}") for i, body in enumerate(bodies)))
        assert [status for status, _ in answers] == [200, 500, 200, 200]
        check_tree(it.spans)
        (batch,) = it.named("batch")
        about = dict(batch.attributes or {})
        assert (about["slotwise.batch.size"], about["slotwise.cuts"]) == (4, 2)
        requests = [it.of(f"r-{i}") for i in range(4)]
        assert {link.context.span_id for link in batch.links} == {id_of(span) for span in requests}
        workers = it.named("worker")
        assert sum(parent_of(batch) == id_of(span) for span in workers) == 1
        assert sum(link.context.span_id == id_of(batch) for span in workers for link in span.links) == 3
        assert sorted(parent_of(span) for span in workers) == sorted(map(id_of, requests))
        calls = [span for span in it.named("call of the model") if parent_of(span) == id_of(batch)]
        ran = [(slots_of(span), span.status.is_ok) for span in calls]
        slot = next(
            int((span.attributes or {})["slotwise.batch.slot"]) for span in workers if parent_of(span) == id_of(requests[1])
        )  # type: ignore[arg-type]
        assert ((calls[0].attributes or {})["slotwise.slots"], ran[0]) == ("0-3", ([0, 1, 2, 3], False))
        assert ([slot], False) in ran
        assert {one for slots, fine in ran if fine for one in slots} == {0, 1, 2, 3} - {slot}
        assert [parent_of(span) for name in ("decode", "encode") for span in it.named(name)] == [id_of(batch)] * 2
        poisoned = dict(requests[1].attributes or {})
        assert (poisoned["http.response.status_code"], poisoned["error.type"]) == (500, "500")
        assert not requests[1].status.is_ok
        assert requests[0].status.is_unset
        seen = it.remembered.find("r-1")
        assert seen is not None
        told = as_json(seen)
        assert len(told["batches"][0]["mates"]) == 3
        assert sum(call["had_it"] and bool(call["error"]) for call in told["batches"][0]["calls"]) >= 2
        assert SECRET.decode() not in json.dumps(told)


async def test_a_retried_death_is_two_tries_and_a_killer_is_convicted(make: Make) -> None:
    async with traced(make, "digits", max_batch_delay_s=0.0) as it:
        assert (await it.ask("/predictions/digits", b"once", "r-1"))[0] == 200
        check_tree(it.spans)
        first, second = sorted(it.named("worker"), key=lambda span: span.start_time or 0)
        assert (first.status.is_ok, first.status.description) == (False, "the worker ended")
        assert second.status.is_unset
        assert [event.name for event in it.of("r-1").events] == ["its worker ended"]
        assert [(span.attributes or {})["slotwise.batch.number"] for span in it.named("batch")]
        it.exporter.clear()
        assert (await it.ask("/predictions/digits", b"exit", "r-2"))[0] == 500
        killer = it.of("r-2")
        assert (killer.attributes or {})["slotwise.convicted"] is True
        assert [event.name for event in killer.events] == [
            "its worker ended",
            "its worker ended on it, alone",
            "convicted: its body is not sent again",
        ]


async def test_v2_and_grpc_have_a_span_for_each_record(make: Make) -> None:
    from slotwise.frontend.grpc.open_inference_messages import CLASSES

    grpc_aio = pytest.importorskip("grpc.aio")
    async with traced(make, "digits") as it:
        content = {"inputs": [{"name": "x", "shape": [2], "datatype": "BYTES", "data": ["aa", "bbb"]}]}
        status, body = await it.ask("/v2/models/digits/infer", json.dumps(content).encode(), "r-1")
        assert status == 200, body
        check_tree(it.spans)
        whole = it.of("r-1")
        assert [parent_of(it.of(f"r-1-{i}")) for i in range(2)] == [id_of(whole)] * 2
        it.exporter.clear()

        port = GrpcServer(it.front.gateway, "127.0.0.1", 0)
        await port.bind()
        await port.start()
        message = CLASSES["ModelInferRequest"](model_name="digits", raw_input_contents=[b"\x02\0\0\0aa"])
        message.inputs.add(name="x", datatype="BYTES", shape=[1])
        metadata = (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("x-request-id", "g-1"))
        async with grpc_aio.insecure_channel(f"127.0.0.1:{port.port}") as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            await call(message.SerializeToString(), metadata=metadata)
            await asyncio.sleep(0.1)
        await port.stop(None)
        check_tree(it.spans)
        called = dict(it.of("g-1").attributes or {})
        assert (called["rpc.system"], called["rpc.method"], called["rpc.grpc.status_code"]) == ("grpc", "ModelInfer", 0)
        assert it.of("g-1").name == "inference.GRPCInferenceService/ModelInfer"
        assert it.named("call of the model")


async def test_a_stream_has_its_first_and_its_last_piece(make: Make) -> None:
    async with traced(make, "words") as it:
        status, body = await it.ask("/predictions/words", b"[5]", "r-1", "Accept: text/event-stream\r\n")
        assert status == 200, body
        check_tree(it.spans)
        span = it.of("r-1")
        assert [event.name for event in span.events] == ["first piece", "last piece"]
        assert (span.attributes or {})["slotwise.pieces"] == 5
        assert [(one.attributes or {})["slotwise.worker"] for one in it.named("worker")] == ["words_1.0-0"]


async def test_sampling_follows_the_parent_and_trouble_is_kept(make: Make) -> None:
    async with traced(make, "digits", max_batch_delay_s=0.0) as it:
        reader, writer = await it.connect()
        for parent in ("", f"traceparent: 00-{TRACE}-{PARENT}-00\r\n", "traceparent: 00-xyz-01\r\n"):
            writer.write(f"POST /predictions/digits HTTP/1.1\r\nHost: x\r\n{parent}Content-Length: 1\r\n\r\na".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))  # type: ignore[index]
        assert it.spans == []
        await it.ask("/predictions/nowhere", b"x", "r-0")
        it.exporter.clear()
        writer.write(b"POST /predictions/digits HTTP/1.1\r\nHost: x\r\nx-request-id: r-1\r\nContent-Length: 6\r\n\r\npoison")
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0)
        assert it.of("r-1").parent is None


@pytest.mark.parametrize(("other", "linked"), [(b"b", {"r-0"}), (b"poison", {"r-0", "r-1", "r-2"})])
async def test_a_batch_is_linked_to_who_may_have_a_span_and_names_all(make: Make, other: bytes, linked: set[str]) -> None:
    async with traced(make, "digits") as it:
        bodies, flags = [b"a", other, b"c"], ["01", "00", "00"]
        asked = [it.ask("/predictions/digits", bodies[i], f"r-{i}", "", flags[i]) for i in range(3)]
        await asyncio.gather(*asked)
        check_tree(it.spans)
        (batch,) = it.named("batch")
        assert sorted(str((batch.attributes or {})["slotwise.batch.requests"]).split()) == ["r-0", "r-1", "r-2"]
        spans_of = {it.remembered.find(f"r-{i}").ids[1]: f"r-{i}" for i in range(3)}  # type: ignore[union-attr]
        assert {spans_of[link.context.span_id] for link in batch.links} == linked


async def test_a_kept_trace_is_the_exemplar_of_its_requests_seconds(make: Make) -> None:
    async with traced(make, "digits", max_batch_delay_s=0.0) as it:
        await it.ask("/predictions/digits", b"1", "r-1")
        registry = it.front.gateway.metrics.registry
        text, kind = printed(registry, "application/openmetrics-text;version=1.0.0,text/plain;q=0.2")
        assert kind.startswith("application/openmetrics-text")
        families = {family.name: family for family in openmetrics(text.decode())}
        marked = [sample.exemplar for sample in families["slotwise_request_seconds"].samples if sample.exemplar]
        assert [one.labels for one in marked] == [{"trace_id": TRACE}]
        plain, kind = printed(registry, "*/*")
        assert kind.startswith("text/plain")
        assert TRACE not in plain.decode()


async def test_a_collector_gets_them_over_http() -> None:
    taken: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        spans = over_http(f"http://127.0.0.1:{listening.server_port}", Sampling(1.0, 60.0))
        seen = SeenRequest("POST")
        seen.date()
        seen.trace(int(TRACE, 16))
        seen.parent, seen.sampled = int(PARENT, 16), True
        seen.path, seen.status, seen.reason, seen.sent_at = "/predictions/digits", 500, "it failed", seen.began
        batch = sent_together("worker-1", [observed(seen), BackendRequest("m", 0.0)])
        assert batch is not None
        batch.fail("the worker ended")
        seen.note("its worker ended")
        assert spans.keeps(seen)
        spans.ended(seen)
        spans.processor.shutdown()
        listening.shutdown()
    (resource,) = ExportTraceServiceRequest.FromString(b"".join(taken)).resource_spans
    assert {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"] == "slotwise"
    (scope,) = resource.scope_spans
    found = {span.name: span for span in scope.spans}
    assert set(found) == {"wait for a worker", "worker", "batch", "POST /predictions/digits"}
    assert {span.trace_id.hex() for span in scope.spans} == {TRACE}
    whole, batch_span = found["POST /predictions/digits"], found["batch"]
    assert (whole.parent_span_id.hex(), whole.status.message, [one.name for one in whole.events]) == (
        PARENT,
        "it failed",
        ["its worker ended"],
    )
    assert batch_span.parent_span_id == found["worker"].span_id
    assert [link.span_id for link in batch_span.links] == [whole.span_id]
    assert whole.kind == 2  # a server's
