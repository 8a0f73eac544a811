"""A front in this process whose requests are traced, before real queues with real workers. The collector is in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.inspection import extract
from slotwise.backends.exchange import BackendAnswer, BackendRequest
from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.prints import FilePrints
from slotwise.backends.local.served_model import ServedModel
from slotwise.frontend.observing.observer import Observer
from slotwise.frontend.observing.remembered import Remembered
from tests.backends.streaming_models import GENERATOR, streaming_archive

from .conftest import Front, MakeFront
from .over_http import Connect, connecting
from .standin import StandIn

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from slotwise.frontend.observing.spans import Sampling, Spans

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = b"s3cr3t-7f2b"

# A body is anything; "poison" makes the model fail, "once" ends the worker the first time, "exit" each time.
HANDLER = """
import os
from pathlib import Path
from slotwise.worker import BatchHandler

class Anything(BatchHandler):
    def load(self, model_dir, settings):
        return None

    def example(self):
        return b"example"

    def decode(self, body, headers):
        return [body]

    def collate(self, items):
        return items

    def predict(self, inputs):
        for item in inputs:
            was_there = Path(item.decode("latin-1"))  # of the request's own name: one for all would make requests run alone
            if b"exit" in item or (b"once" in item and not was_there.exists()):
                was_there.touch()
                os._exit(3)
        if any(b"poison" in item for item in inputs):
            raise ValueError("s3cr3t-7f2b " + repr(inputs))
        return [len(item) for item in inputs]

    def encode(self, output, item):
        return {"length": output}

handle = Anything.entry_point()
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("archives")
    return {name: streaming_archive(folder, name, text) for name, text in (("digits", HANDLER), ("words", GENERATOR))}


@dataclass
class Make:
    """What makes a front."""

    front: MakeFront
    archives: dict[str, Path]
    folder: Path


@pytest.fixture
def make(make_front: MakeFront, archives: dict[str, Path], tmp_path: Path) -> Make:
    return Make(make_front, archives, tmp_path)


@dataclass
class Traced:
    """A front with spans, and what they are."""

    front: Front
    connect: Connect
    exporter: InMemorySpanExporter
    remembered: Remembered

    async def ask(self, path: str, body: bytes, identity: str, more: str = "", flags: str = "01") -> tuple[int, bytes]:
        """The answer's status and body. flags: of the traceparent; "": it has none."""
        reader, writer = await self.connect()
        parent = f"traceparent: 00-{TRACE}-{PARENT}-{flags}\r\n" if flags else ""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nx-request-id: {identity}\r\n{parent}{more}Connection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.read()
        await asyncio.sleep(0)  # its end is seen after its last byte
        return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2]

    @property
    def spans(self) -> list[ReadableSpan]:
        assert self.front.gateway.observer is not None
        self.front.gateway.observer.flush()
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def of(self, identity: str) -> ReadableSpan:
        """The span of the request with this id."""
        (span,) = [one for one in self.spans if (one.attributes or {}).get("slotwise.request_id") == identity]
        return span


@asynccontextmanager
async def traced(make: Make, *names: str, late_s: float | None = None, **changes: Any) -> AsyncIterator[Traced]:
    """late_s: as Observer has it; None: each request's whole way is noted, and remembered, too."""
    front = await make.front(StandIn(models={"digits": 1, "words": 1}), in_flight=64)
    served = {}
    for name in names:
        archive, folder = make.archives[name], make.folder / name
        settings = ModelSettings(
            name=name,
            version="1.0",
            archive=archive,
            model_dir=extract(archive, folder),
            environ=dict(os.environ),
            prints=FilePrints(make.folder / "model_log.log"),
            batch_size=8,
            **{"max_batch_delay_s": 0.5, "linger": "exact", **changes},
        )
        served[name] = ServedModel(settings)
        served[name].scale(1)
    gateway, exporter, remembered = front.gateway, InMemorySpanExporter(), Remembered(100)

    async def answer(request: BackendRequest) -> BackendAnswer:
        return await served[request.model].answer(request)

    gateway.backend.answer = answer  # type: ignore[method-assign]
    gateway.backend.streams = True
    sampling = Sampling(0.0, 60.0 if late_s is None else late_s)
    spans, trusted = Spans(SimpleSpanProcessor(exporter), sampling), gateway.options.trusted_proxies
    kept = {"watchers": [spans, remembered], "remembered": remembered} if late_s is None else {"watchers": [spans]}
    gateway.observer = Observer(
        trusted, lambda: gateway.models, sample=sampling.at_head, propagates=True, late_s=late_s, **kept
    )
    try:
        async with asyncio.timeout(60):
            while not all(one.queue.workers for one in served.values()):
                await asyncio.sleep(0.05)
        async with connecting(front) as connect:
            yield Traced(front, connect, exporter, remembered)
    finally:
        for one in served.values():
            await one.close(5)


def parent_of(span: ReadableSpan) -> int:
    return span.parent.span_id if span.parent else 0


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def slots_of(span: ReadableSpan) -> list[int]:
    """Whose rows a call had: "0-2, 4"."""
    parts = [part.split("-") for part in str((span.attributes or {})["slotwise.slots"]).split(", ")]
    return [slot for part in parts for slot in range(int(part[0]), int(part[-1]) + 1)]


def check_tree(spans: list[ReadableSpan]) -> None:
    """Every span is of the client's trace, and below a span that is there, or below the client's own."""
    known = {id_of(span) for span in spans} | {int(PARENT, 16)}
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {TRACE}
    assert all(parent_of(span) in known for span in spans)
    assert all(span.start_time and span.end_time and span.start_time <= span.end_time for span in spans)
    assert SECRET.decode() not in "".join(span.to_json() for span in spans)
