"""A handler that answers batches for a host without a server's context: in a process of its own, on Ray, on Triton."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slotwise.worker.answer import Answer
from slotwise.worker.batch import Batch
from slotwise.worker.handler import BatchHandler
from slotwise.worker.hosts import reading
from slotwise.worker.hosts.frames import Frame
from slotwise.worker.hosts.started_worker import StartedWorker
from slotwise.worker.request import Request
from slotwise.worker.streaming.framed_streams import FramedStreams
from slotwise.worker.streaming.stream_desk import StreamDesk
from slotwise.worker.streaming.stream_handler import StreamHandler


class LocalContext:
    """What is told of a worker and its batches: where TorchServe and MMS have their context."""

    def __init__(self, model_dir: Path, batch_size: int) -> None:
        manifest = json.loads((model_dir / "MAR-INF" / "MANIFEST.json").read_text("utf-8"))["model"]
        self.model_dir, self.batch_size = model_dir, batch_size
        self.model_name = str(manifest.get("modelName") or "model")
        self.model_version = str(manifest.get("modelVersion") or "")
        self.values: list[list[Any]] = []

    def metric(self, name: str, value: float, unit: str = "", code: int | None = None) -> None:
        """Keep one number until the host takes it."""
        self.values.append([name, value, unit, code])


class LocalWorker(StartedWorker):
    """Answers batches with a handler in its extracted archive."""

    def __init__(self, handler: BatchHandler, model_dir: Path, batch_size: int = 8) -> None:
        self.context = LocalContext(model_dir, batch_size)
        super().__init__(handler, self.context, self.context.metric)

    @property
    def started(self) -> dict[str, Any]:
        """What it runs on."""
        engine = getattr(self.handler.engine, "name", type(self.handler.engine).__name__)
        said = {"engine": engine, "profile": self.pipeline.settings.profile}
        if (handler := self._stream_handler) is None:
            return said
        return {**said, "streams": {"slots": 1 if self.pipeline.apart else handler.slots}}

    @property
    def streaming(self) -> Callable[[Callable[[Frame], Request]], FramedStreams] | None:
        """What makes of this worker one that streams; None where its handler answers whole."""
        if (handler := self._stream_handler) is None:
            return None
        self.desk = StreamDesk(self.pipeline, handler.runner)
        return partial(FramedStreams, self)

    @property
    def _stream_handler(self) -> StreamHandler | None:
        """The handler where it answers in pieces. Known once it is loaded: it depends on its engine."""
        return self.handler if isinstance(self.handler, StreamHandler) and self.handler.streams else None

    def measured_streams(self, ended: Sequence[Batch]) -> list[list[object]]:
        """The numbers since the last call, those of these batches of one request among them."""
        for batch in ended:
            self.meter.measure(self.context, batch, self.handler)
        return self.take_metrics()

    def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """Exactly one answer a request, in order."""
        return self.run(requests).answers

    def run(self, requests: Sequence[Request]) -> Batch:
        """Answer one batch of requests whose bodies nobody has looked at."""
        return self.measured([reading.parsed(request) for request in requests], self.context)

    def between(self) -> None:
        """To be called between two batches."""
        if self.audit is not None:
            self.audit.run()

    def take_metrics(self) -> list[list[Any]]:
        """The numbers since the last call: name, value, unit ("ms", "%" or "", a count), HTTP status or None."""
        values, self.context.values = self.context.values, []
        return values
