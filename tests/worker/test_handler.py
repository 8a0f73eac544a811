"""Start, stages, deadlines, dead engines: what the properties do not say."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import pytest

from slotwise.worker import BatchHandler, Headers, Settings
from slotwise.worker.hosts.context import ServerContext
from slotwise.worker.hosts.report import quieten
from tests.worker.toy import POISON, RawContext, Toy, ask, shown, started


def test_a_dead_engine_answers_503_and_retires_the_worker() -> None:
    handler = started()
    handler.broken = True
    answers = ask(handler, [[1], b"no", [2]])
    assert [answer.code for answer in answers] == [200, 400, 200]  # the toy shows record errors in place
    assert [shown(answer)[1] for answer in (answers[0], answers[2])] == [[503], [503]]
    assert handler.retired == 1
    handler.calls.clear()
    assert shown(ask(handler, [[3]])[0])[1] == [503], "until it is gone, it answers at once"
    assert handler.calls == []


def test_an_answer_that_the_server_would_not_let_through_costs_its_sender_only() -> None:
    handler = started(max_response_bytes=60)
    answers = ask(handler, [[1], list(range(100)), [3]])
    assert [answer.code for answer in answers] == [200, 500, 200]


def test_a_row_that_fails_does_not_retire_the_worker() -> None:
    handler = started()
    ask(handler, [[POISON]])
    assert handler.retired == 0


def test_retiring_ends_the_process_after_the_answers_left(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[Any] = []

    class Timer:
        def __init__(self, delay_s: float, call: Any, args: list[int]) -> None:
            timers.append((delay_s, call.__name__, args))

        def start(self) -> None:
            timers.append("started")

    monkeypatch.setattr("slotwise.worker.handler.threading.Timer", Timer)
    handler = started()
    BatchHandler._retire(handler)
    BatchHandler._retire(handler)
    assert timers == [(0.5, "_exit", [1]), "started"]


def test_a_deadline_that_passed_costs_its_sender_only() -> None:
    handler = started()
    past, future = str((time.time() - 1) * 1000), str((time.time() + 60) * 1000)
    sent = {0: {"X-Deadline-Ms": past}, 1: {"x-deadline-ms": future}, 2: {"x-deadline-ms": "soon"}, 3: {"x-deadline-ms": "inf"}}
    answers = ask(handler, [[1], [2], [3], [4]], sent)
    assert [answer.code for answer in answers] == [504, 200, 400, 400]
    assert len(handler.calls) == 1


def test_a_deadline_that_passes_while_other_groups_run_is_a_504() -> None:
    class Slow(Toy):
        max_rows = 1

        def predict(self, inputs: Any) -> Any:
            time.sleep(0.15)
            return super().predict(inputs)

    handler = started(Slow())
    answers = ask(handler, [[1], [2], [3]], {2: {"x-deadline-ms": str((time.time() + 0.1) * 1000)}})
    assert [shown(answer)[1] for answer in answers] == [[3.0], [5.0], [504]]


def test_after_half_of_the_response_timeout_the_undecided_get_503() -> None:
    class Slow(Toy):
        max_rows = 1

        def predict(self, inputs: Any) -> Any:
            time.sleep(0.05)
            return super().predict(inputs)

    handler = started(Slow(Settings(batch_size=8, response_timeout_s=0.2)))
    values = [shown(answer)[1] for answer in ask(handler, [[i] for i in range(8)])]
    assert values[0] == [1.0]
    assert values[-1] == [503]


def test_warm_up_runs_every_prepared_size_and_a_failing_one_stops_the_start(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotwise.worker.digests.verify", lambda model_dir: None)  # a folder that nobody packed
    sizes: list[int] = []

    class Small(BatchHandler):
        def load(self, model_dir: Any, settings: Settings) -> Any:
            def engine(inputs: Any) -> Any:
                sizes.append(len(inputs))
                if len(inputs) > 4:
                    raise MemoryError
                return inputs

            return engine

        def example(self) -> Any:
            return np.zeros(2)

    (tmp_path / "slotwise.json").write_text('{"model": {}, "profiles": {"cpu": {"padding": "static"}}}')
    handler = Small()
    assert handler.handle(None, RawContext(model_dir=tmp_path, batch_size=8)) == []
    assert sizes == [8, 4, 2, 1]
    assert handler.isolation.ceiling == 4
    handler.isolation.prepare(handler.example(), runs=2)
    assert sizes[4:] == [8, 4, 4, 2, 2, 1, 1], "for an engine that specialises in its first runs"

    class Broken(Small):
        def load(self, model_dir: Any, settings: Settings) -> Any:
            return lambda inputs: np.full(len(inputs), np.nan)

    with pytest.raises(ValueError, match="warm-up"):
        Broken().handle(None, RawContext(model_dir=tmp_path, batch_size=8))


def test_the_ten_line_handler_of_the_docs_works_with_the_defaults(tmp_path: Any) -> None:
    class Doubler(BatchHandler):
        def load(self, model_dir: Any, settings: Settings) -> Any:
            return lambda inputs: 2 * inputs

        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            return [np.float32(body.decode())]

    handle = Doubler.entry_point()
    handle(None, RawContext(model_dir=tmp_path))
    raw = RawContext([{}, {}])
    assert handle([{"body": b"1.5"}, {"data": b"x"}], raw) == [
        b"3.0",
        b'{"error": {"code": 400, "message": "the body could not be decoded"}}',
    ]
    assert raw.status == {0: (200, "OK"), 1: (400, "Bad Request")}
    assert raw.sent[0]["content-type"] == "application/json"


def test_decoding_in_a_pool_keeps_the_order(tmp_path: Any) -> None:
    class Sleepy(Toy):
        def initialize(self, context: ServerContext) -> None:
            from concurrent.futures import ThreadPoolExecutor

            super().initialize(context)
            self.pool = ThreadPoolExecutor(4)

        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            time.sleep(0.02 / (1 + len(body)))
            return super().decode(body, headers)

    sent = [[1] * n for n in (5, 1, 4, 2, 3)]
    assert [len(answer.value) for answer in ask(started(Sleepy()), sent)] == [5, 1, 4, 2, 3]


def test_metrics_tell_fill_padding_errors_and_cuts() -> None:
    seen = ask(started(padding="static"), [[1], [POISON], b"no"])[0].metrics
    assert seen["BatchFill"] == 100.0
    assert seen["PaddingShare"] > 0
    assert seen["Bisections"] == 1
    assert seen["SlotErrors"] == 1  # the request that was no request; record errors are in place


def test_gauges_are_sent_as_means_and_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("slotwise.worker.hosts.report.time.monotonic", lambda: now[0])
    handler = started()

    def told(*bodies: bytes) -> dict[str, float]:
        raw = RawContext([{}] * len(bodies), batch_size=4)
        handler.handle([{"body": body} for body in bodies], raw)
        return raw.metrics.seen

    gauges = {"BatchFill", "PaddingShare", "DecodeTime", "InferenceTime", "EncodeTime"}
    assert set(told(b"[1]")) == gauges, "the first batch has nothing to wait for"
    assert told(b"[1]", b"[2]", b"[3]", b"[4]") == {}
    assert told(b"[1]", b"[-1]", b"no", b"[2]") == {"Bisections": 2, "SlotErrors": 1}
    now[0] += 0.2
    assert (later := told(b"[1]")).keys() == gauges
    assert later["BatchFill"] == 75


def test_of_what_torchserve_says_of_every_batch_only_a_gauge_now_and_then_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    raw = RawContext([{}])
    heard: list[tuple[str, float]] = []
    raw.metrics.add_time = lambda name, value: heard.append((name, value))  # type: ignore[method-assign]
    quieten(ServerContext(raw))
    with caplog.at_level(logging.INFO):
        for value in range(3):
            logging.info("Backend received inference at: %d", 1)  # as TorchServe's worker says it
            raw.metrics.add_time("PredictionTime", value)
            raw.metrics.add_time("DecodeTime", value)
        logging.info("anything else")
    assert heard == [("PredictionTime", 0), *(("DecodeTime", value) for value in range(3))]
    assert caplog.messages == ["anything else"]


def test_metrics_that_the_server_refuses_cost_no_answer() -> None:
    class Refusing(RawContext):
        @property
        def metrics(self) -> Any:
            raise_ = type("M", (), {"add_time": lambda *a, **k: 1 / 0})
            return raise_()

        @metrics.setter
        def metrics(self, value: Any) -> None: ...

    raw = Refusing([{}])
    assert started().handle([{"body": b"[1]"}], raw) == [b"[3.0]"]


def test_an_empty_batch_is_answered_with_nothing() -> None:
    assert started().handle([], RawContext()) == []
