"""The pipeline's stages one by one: what each request is told, and when it is too late for what."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.worker import BadRequest, Headers, Request, Settings, pipeline
from slotwise.worker.budget import Cost
from slotwise.worker.decoding.decoders import MAX_STUCK
from slotwise.worker.separability.verdict import Verdict
from tests.worker.toy import POISON, Clock, Toy, ask, shown, started


def said(answer: Any) -> list[str]:
    """What a client is told: of the request as a whole, or of each record that failed."""
    parts = answer.value if isinstance(answer.value, list) else [answer.value]
    return [part["error"]["message"] for part in parts if isinstance(part, dict)]


def test_a_pipeline_takes_as_many_rows_at_once_as_its_handler_or_its_batches() -> None:
    class Narrow(Toy):
        max_rows = 3

    assert (started(padding="static").pipeline.padding.max_rows, started().pipeline.padding.kind) == (8, "none")
    narrow = started(Narrow(Settings(batch_size=8, padding="static", decode_threads=3))).pipeline
    assert (narrow.padding.kind, narrow.padding.max_rows, narrow.decoders.threads) == ("static", 3, 3)
    fresh = pipeline.Pipeline(narrow.handler)
    assert (fresh.dead, fresh.verdict.separable, fresh.verdict.cause) == (False, None, "it was not tried")


def test_every_answer_says_how_many_and_which_it_was() -> None:
    answers = ask(started(), [[1], b"no", [3]])
    assert [(a.headers["x-batch-size"], a.headers["x-batch-slot"]) for a in answers] == [("3", "0"), ("3", "1"), ("3", "2")]


def test_the_stages_are_timed_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 10.25, 10.75, 11.0])
    handler = started()
    monkeypatch.setattr(time, "perf_counter", lambda: next(moments))
    (answer,) = ask(handler, [[1]])
    batch = answer.batch
    assert (batch.decode_ms, batch.inference_ms, batch.total_ms) == (250.0, 500.0, 1000.0)
    assert (answer.headers["x-decode-ms"], answer.headers["x-inference-ms"]) == ("250.00", "500.00")


class Timed(Toy):
    """Moves the clock while it decodes, predicts or encodes."""

    def __init__(self, clock: Clock, stage: str, by: float = 9.0, **settings: Any) -> None:
        super().__init__(Settings(**{"batch_size": 8, "response_timeout_s": 8, **settings}))
        self.clock, self.stage, self.by = clock, stage, by

    def moves(self, stage: str) -> None:
        if stage == self.stage:
            self.clock.now += self.by

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        self.moves("decode")
        return super().decode(body, headers)

    def double(self, inputs: np.ndarray[Any, Any]) -> Any:
        self.moves("predict")
        return super().double(inputs)

    def encode(self, output: Any, item: Any) -> Any:
        self.moves("encode")
        return super().encode(output, item)


def test_after_the_first_rows_no_further_rows_are_encoded_when_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ask(started(Timed(Clock(monkeypatch), "encode")), [[1], [2, POISON]])
    assert said(answers[0]) == ["there was no time to encode this answer"]
    assert said(answers[1]) == ["there was no time to encode this answer"]
    assert [answer.code for answer in answers] == [503, 503]


def test_when_time_is_over_no_further_row_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[float] = []

    class Counted(Timed):
        def encode(self, output: Any, item: Any) -> Any:
            encoded.append(float(item[0]))
            return super().encode(output, item)

    answers = ask(started(Counted(Clock(monkeypatch), "encode")), [[1, 2], [3, 4]])
    assert [answer.code for answer in answers] == [503, 503]
    assert encoded == [1.0]


def test_the_handlers_own_headers_are_on_every_answer() -> None:
    class Named(Toy):
        def response_headers(self) -> Any:
            return {"x-own": "1"}

    assert [answer.headers["x-own"] for answer in ask(started(Named()), [[1], b"no"])] == ["1", "1"]


def test_a_row_for_which_there_was_no_time_says_so_and_the_refused_keep_their_own_word(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = started(Timed(Clock(monkeypatch), "predict"))
    answers = ask(handler, [[1], [2]])
    assert [said(answer) for answer in answers] == [["there was no time to encode this answer"]] * 2
    handler = started(Timed(Clock(monkeypatch), "predict", 4.5, max_response_bytes=10**6))
    vars(handler)["max_rows"] = None
    answers = ask(handler, [[1], b"no"])
    assert [shown(answer) for answer in answers] == [(200, [3.0]), (400, None)]


def test_what_a_dead_engine_leaves_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = started()
    handler.broken = True
    assert said(ask(handler, [[1]])[0]) == ["the model's engine failed and is being restarted"]
    assert said(ask(handler, [[1]])[0]) == ["this worker is being restarted"]


def test_a_row_that_cannot_be_grouped_says_so() -> None:
    class Lossy(Toy):
        def groups(self, items: Any) -> Any:
            if any(item[0] == 7 for item in items):
                raise ValueError
            return [[i] for i in range(len(items))]

    answers = ask(started(Lossy()), [[1], [7], [2]])
    assert [shown(answer)[1] for answer in answers] == [[3.0], [500], [5.0]]
    assert said(answers[1]) == ["the handler could not group this row"]


def test_a_deadline_that_passed_before_the_model_ran_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = started()
    monkeypatch.setattr(time, "time", lambda: 1005.0)
    monkeypatch.setattr(handler.pipeline.hooks, "decode", lambda request: [np.array([1.0])])
    deadlines = {i: {"x-deadline-ms": str(moment * 1000)} for i, moment in enumerate((1004.0, 1035.0, 1036.0))}
    answers = ask(handler, [[1], [1], [1], [1]], deadlines)
    assert [shown(answer)[1] for answer in answers] == [[504], [3.0], [3.0], [3.0]]
    assert said(answers[0]) == ["the deadline passed before the model ran"]


def test_bodies_for_which_there_is_no_time_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Heavy(Timed):
        def cost(self, body: bytes, headers: Headers) -> Cost:
            return Cost(1.0, 1 << 30)

    handler = started(Heavy(Clock(monkeypatch), "decode", decode_threads=2))
    answers = ask(handler, [[1], [2], [3]])
    assert [answer.code for answer in answers] == [503, 503, 503]
    assert said(answers[2]) == ["there was no time left to decode this body"]


@pytest.mark.parametrize("stage", ["decode", "predict", "respond"])
def test_where_the_worker_itself_fails_nobody_hears_why_and_whoever_was_refused_keeps_that(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = started()

    def fails(*args: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(handler.pipeline, stage, fails)
    answers = ask(handler, [[1], b"no"])
    assert said(answers[0]) == ["the handler failed"]
    assert (answers[0].code, answers[1].code) == (500, 500 if stage == "decode" else 400)
    assert "x-batch-slot" not in answers[0].headers


def test_headers_that_fail_fail_for_all_but_those_with_an_error_of_their_own() -> None:
    class Headless(Toy):
        def response_headers(self) -> Any:
            raise ValueError("secret")

    answers = ask(started(Headless()), [[1], b"no"])
    assert [answer.code for answer in answers] == [500, 400]
    assert said(answers[0]) == ["the handler's response headers failed"]
    assert [answer.headers["x-batch-slot"] for answer in answers] == ["0", "1"]


def test_a_request_of_no_record_is_answered_with_none() -> None:
    handler = started()
    assert [shown(answer) for answer in ask(handler, [[], ["bad"], [1]])] == [(200, []), (200, [400]), (200, [3.0])]


def test_a_worker_ends_where_more_decoders_hang_than_it_can_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    for stuck, dead in ((MAX_STUCK, False), (MAX_STUCK + 1, True)):
        handler = started()
        monkeypatch.setattr(handler.pipeline.decoders, "stuck", lambda stuck=stuck: stuck)
        ask(handler, [[1]])
        assert handler.pipeline.dead is dead


def test_the_engine_runs_as_often_as_it_needs_before_it_serves() -> None:
    class Slow(Toy):
        def load(self, model_dir: Any, settings: Settings) -> Any:
            def engine(inputs: Any) -> Any:
                return self.double(inputs)

            engine.warm_up_runs = 3  # type: ignore[attr-defined]
            return engine

    sizes = [[len(call) for call in handler.calls] for handler in (warm(Slow()), warm(Toy()))]
    assert sizes[0].count(8) - sizes[1].count(8) >= 2


def warm(handler: Toy) -> Toy:
    handler.wanted = Settings(batch_size=8, padding="static")
    handler.pipeline = pipeline.Pipeline.start(handler, Path("."), handler.wanted)
    return handler


def test_a_host_that_refuses_is_heard() -> None:
    handler = started()
    request = Request(b"[1]", refused=BadRequest("too long"))
    (answer,) = handler.pipeline.answer([request])
    assert (answer.status, b"too long" in answer.body) == (400, True)
    assert handler.calls == []


def test_an_engine_is_told_to_let_go_of_what_a_failed_call_holds() -> None:
    class Freed(Toy):
        freed = 0

        def load(self, model_dir: Path, settings: Settings) -> Any:
            return self

        def __call__(self, inputs: Any) -> Any:
            return self.double(inputs)

        def release(self) -> None:
            self.freed += 1

    handler = Freed()
    started(handler)
    ask(handler, [[1], [2]])
    assert handler.freed == 0
    ask(handler, [[POISON]])
    assert handler.freed == 1


def test_a_handler_is_loaded_from_its_folder_with_its_settings() -> None:
    given: list[Any] = []

    class Loaded(Toy):
        def load(self, model_dir: Path, settings: Settings) -> Any:
            given.extend((model_dir, settings))
            return super().load(model_dir, settings)

    handler = started(Loaded())
    assert given == [Path("."), handler.wanted]
    assert handler.settings is handler.wanted
    assert isinstance(handler.pipeline.verdict, Verdict)


def test_an_encode_that_fills_its_result_again_changes_no_earlier_one() -> None:
    class Reusing(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.result: dict[str, float] = {}

        def encode(self, output: Any, item: Any) -> Any:
            self.result["value"] = float(output[0])
            return self.result

    (answer,) = ask(started(Reusing()), [[1, 2, 3]])
    assert answer.value == [{"value": 3.0}, {"value": 5.0}, {"value": 7.0}]


def test_whom_nobody_waits_for_is_neither_decoded_nor_run() -> None:
    decoded: list[bytes] = []

    class Seen(Toy):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            decoded.append(body)
            return super().decode(body, headers)

    handler = started(Seen())
    handler.pipeline.gone = lambda: {1, 7}
    answers = ask(handler, [[1], [2], [3]])
    assert [answer.code for answer in answers] == [200, 504, 200]
    assert said(answers[1]) == ["nobody waits for this answer any more"]
    assert sorted(decoded) == [b"[1]", b"[3]"]


def test_a_form_in_which_no_field_is_the_body_is_refused_with_its_own_word() -> None:
    (answer,) = started().pipeline.answer([Request(b"", unclear=BadRequest("name the one"), fields={"a": [b"1"], "b": [b"2"]})])
    assert (answer.status, b"name the one" in answer.body) == (400, True)
