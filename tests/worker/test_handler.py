"""Start, stages, deadlines, dead engines: what the properties do not say."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from typing import Any

import numpy as np
import pytest

from slotwise.worker import BadRequest, BatchHandler, Cost, Headers, Request, Settings
from slotwise.worker.hooks import Hooks
from tests.worker.toy import POISON, Clock, Doubler, Toy, ask, begin, request, shown, started


def test_a_dead_engine_answers_503_and_says_that_the_worker_should_end() -> None:
    handler = started()
    handler.broken = True
    answers = ask(handler, [[1], b"no", [2]])
    assert [answer.code for answer in answers] == [200, 400, 200]  # the toy shows record errors in place
    assert [shown(answer)[1] for answer in (answers[0], answers[2])] == [[503], [503]]
    assert handler.pipeline.dead
    handler.calls.clear()
    assert shown(ask(handler, [[3]])[0])[1] == [503], "until it is gone, it answers at once"
    assert handler.calls == []


def test_what_was_decided_before_the_engine_died_is_answered() -> None:
    class Dying(Toy):
        max_rows = 1

        def predict(self, inputs: Any) -> Any:
            self.broken = self.broken or bool(inputs[0] == 2)
            return super().predict(inputs)

    assert [shown(answer)[1] for answer in ask(started(Dying()), [[1], [2], [3]])] == [[3.0], [503], [503]]


def test_an_answer_that_the_server_would_not_let_through_costs_its_sender_only() -> None:
    handler = started(max_response_bytes=60)
    answers = ask(handler, [[1], list(range(100)), [3]])
    assert [answer.code for answer in answers] == [200, 500, 200]


def test_a_row_that_fails_does_not_end_the_worker() -> None:
    handler = started()
    ask(handler, [[POISON]])
    assert not handler.pipeline.dead


def test_a_deadline_that_passed_costs_its_sender_only() -> None:
    handler = started()
    past, future = str((time.time() - 1) * 1000), str((time.time() + 60) * 1000)
    answers = ask(handler, [[1], [2]], {0: {"X-Deadline-Ms": past}, 1: {"x-deadline-ms": future}})
    assert [answer.code for answer in answers] == [504, 200]
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


def test_after_half_of_the_response_timeout_the_undecided_get_503(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    class Slow(Toy):
        max_rows = 1

        def predict(self, inputs: Any) -> Any:
            clock.now += 15
            return super().predict(inputs)

    handler = started(Slow(Settings(batch_size=8, response_timeout_s=60.0)))
    values = [shown(answer)[1] for answer in ask(handler, [[i] for i in range(8)])]
    assert values == [[1.0], [3.0], *[[503]] * 6]


def test_warm_up_runs_every_prepared_size_and_a_failing_one_stops_the_start() -> None:
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

    handler = begin(Small(), Settings(batch_size=8, padding="static"))
    assert list(dict.fromkeys(sizes)) == [1, 8, 4, 2], "one and eight rows show how the outputs are read"
    assert handler.pipeline.isolation.ceiling.rows == 4
    sizes.clear()
    handler.pipeline.isolation.prepare(handler.pipeline.hooks.good_row, runs=2)
    assert sizes == [8, 4, 4, 2, 2, 1, 1], "for an engine that specialises in its first runs"

    class Broken(Small):
        def load(self, model_dir: Any, settings: Settings) -> Any:
            return lambda inputs: np.full(len(inputs), np.nan)

    with pytest.raises(ValueError, match="warm-up"):
        begin(Broken(), Settings(batch_size=8))


def test_decoding_in_threads_keeps_the_order() -> None:
    class Sleepy(Toy):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            time.sleep(0.02 / (1 + len(body)))
            return super().decode(body, headers)

    sent = [[1] * n for n in (5, 1, 4, 2, 3)]
    handler = started(Sleepy(Settings(batch_size=8, decode_threads=4)))
    assert [len(answer.value) for answer in ask(handler, sent)] == [5, 1, 4, 2, 3]


def test_an_empty_batch_is_answered_with_nothing() -> None:
    assert started().pipeline.answer([]) == []


def test_read_sees_what_decode_does_not() -> None:
    class Named(Doubler):
        def read(self, request: Any) -> list[Any]:
            return [np.float32(value) for value in request.fields["x"]]

    from tests.worker.toy import request

    handler = begin(Named(), Settings())
    batch = handler.pipeline.run([request(0, b"", fields={"x": [b"1", b"2"]}), request(1, b"7")])
    assert [answer.body[:4] for answer in batch.answers] == [b"[2.0", b'{"er']


def test_several_parts_of_one_name_are_an_item_each_with_errors_in_place() -> None:
    from slotwise.worker import BadRequest
    from tests.worker.toy import request

    class Strict(Doubler):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            if body == b"no":
                raise BadRequest("no number")
            return super().decode(body, headers)

    handler = begin(Strict(), Settings())
    batch = handler.pipeline.run([request(0, b"1", more=[b"no", b"3"]), request(1, b"5")])
    assert batch.answers[0].body == b'[2.0, {"error": {"code": 400, "message": "no number"}}, 6.0]'
    assert batch.answers[1].body == b"10.0"


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_a_model_may_have_several_outputs(kind: str) -> None:
    class Two(Doubler):
        def predict(self, inputs: Any) -> Any:
            both = {"double": 2 * inputs, "square": np.stack([inputs, inputs**2], axis=1)}
            return both if kind == "dict" else tuple(both.values())

    answers = ask(begin(Two(), Settings(batch_size=4)), [b"1", b"nan", b"3", b"no"])
    assert [answer.code for answer in answers] == [200, 500, 200, 400]
    wanted = {"double": 6.0, "square": [3.0, 9.0]}
    assert answers[2].value == (wanted if kind == "dict" else list(wanted.values()))


@pytest.mark.parametrize("outputs", [{"a": np.zeros(2), "b": np.zeros(3)}, (np.zeros(2), np.zeros(1)), {}, (), 3, None])
def test_outputs_whose_rows_nobody_can_count_are_an_error_for_all(outputs: Any) -> None:
    class Odd(Doubler):
        def predict(self, inputs: Any) -> Any:
            return outputs

    assert [answer.code for answer in ask(begin(Odd(), Settings(batch_size=4)), [b"1", b"2", b"x"])] == [500, 500, 400]


def test_every_warning_names_the_request_that_it_is_about(caplog: pytest.LogCaptureFixture) -> None:
    class Mute(Toy):
        def respond(self, request: Any, results: list[Any]) -> tuple[Any, str]:
            if results == [7.0]:
                raise RuntimeError("mute")
            return super().respond(request, results)

        def encode(self, output: Any, item: Any) -> Any:
            return 1 / 0 if item[0] == 5 else super().encode(output, item)

    with caplog.at_level(logging.INFO, logger="slotwise"):
        ask(started(Mute()), [[1], b"no", [POISON], [5], [3], [4]])
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert said
    about = {identity for record in said for identity in ("id-1", "id-2", "id-3", "id-4") if identity in record.getMessage()}
    assert about == {"id-1", "id-2", "id-3", "id-4"}
    assert all("id-" in record.getMessage() for record in said)
    assert any(record.levelno == logging.INFO and "id-1: 400" in record.getMessage() for record in caplog.records)


def test_an_authors_own_metrics_have_names_that_prometheus_accepts() -> None:
    handler = started()
    handler.metrics.count("cache hits/é")
    handler.metrics.time("2nd-stage", 3)
    handler.metrics.count("never", float("nan"))
    handler.metrics.count("never", "text")  # type: ignore[arg-type]
    taken = handler.metrics.take()
    assert [(m.name, m.value, m.unit) for m in taken] == [("cache_hits__", 1.0, ""), ("_2nd_stage", 3.0, "ms")]
    assert handler.metrics.take() == []


def test_a_model_that_reuses_its_memory_gives_everybody_their_own_answer() -> None:
    class Reusing(Toy):
        max_rows = 2

        def double(self, inputs: Any) -> Any:
            buffer = self.__dict__.setdefault("buffer", np.zeros((2, 1)))
            np.multiply(inputs, 10, out=buffer[: len(inputs)])
            return buffer[: len(inputs)]

    answers = ask(started(Reusing()), [[i] for i in range(5)])
    assert [shown(answer) for answer in answers] == [(200, [10.0 * i]) for i in range(5)]


def test_many_decoders_that_do_not_end_cost_the_quick_ones_nothing() -> None:
    ended = threading.Event()

    class Waiting(Toy):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            if body == b"[0, 0]":  # longer than a quick one, so it is started later
                ended.wait(120)
            return super().decode(body, headers)

    handler = started(Waiting(Settings(batch_size=64, response_timeout_s=16)))
    answers = ask(handler, [[1], *[[0, 0]] * 40, [2]])
    ended.set()
    assert [shown(answers[i]) for i in (0, 41)] == [(200, [3.0]), (200, [5.0])]
    assert {answer.code for answer in answers[1:41]} == {503}


def test_a_handler_that_is_called_like_its_base_has_its_cost() -> None:
    named = type("BatchHandler", (Toy,), {"cost": lambda self, body, headers: Cost(1e9)})
    for handler, estimates in ((Toy(), False), (named(), True), (type("Mine", (named,), {})(), True)):
        assert Hooks(handler, 1 << 20).estimates is estimates


def test_an_interrupt_while_a_request_is_decoded_is_no_answer() -> None:
    class Interrupted(Toy):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Hooks(Interrupted(), 1 << 20).decode(Request(b"[1]"))


def test_what_no_time_is_left_to_encode_is_503_and_what_was_encoded_before_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    class Slow(Toy):
        def encode(self, output: Any, item: Any) -> Any:
            clock.now += 20
            return super().encode(output, item)

    def answers(*bodies: Any) -> list[Any]:
        return ask(started(Slow(Settings(batch_size=8, response_timeout_s=60.0))), bodies)

    assert [shown(answer) for answer in answers([1], [2], [3], [])] == [(200, [3.0]), (200, [5.0]), (503, None), (200, [])]
    first, *late = answers([1], [2, 3, 4, 5])
    assert shown(first) == (200, [3.0])
    assert [answer.code for answer in late] == [503]


def test_what_no_time_is_left_to_look_at_is_503_and_what_was_refused_before_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)

    class Slow(Toy):
        def cost(self, body: bytes, headers: Headers) -> Cost | None:
            clock.now += 10
            return None

    handler = started(Slow(Settings(batch_size=8, response_timeout_s=60.0)))
    requests = [request(i, [i]) for i in range(3)]
    requests.append(request(3, [3], refused=BadRequest("a bad deadline")))
    statuses = [answer.status for answer in handler.pipeline.run(requests).answers]
    assert statuses == [200, 200, 503, 400]


def test_a_model_may_refuse_a_row_itself() -> None:
    class Refusing(Toy):
        def predict(self, inputs: Any) -> Any:
            return [BadRequest("not this one") if output[0] == 15 else output for output in super().predict(inputs)]

    answers = [shown(answer) for answer in ask(started(Refusing()), [[1], [7, 2], [3]])]
    assert answers == [(200, [3.0]), (200, [400, 5.0]), (200, [7.0])]


def test_what_a_hook_keeps_of_a_request_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    class Keeps(Doubler):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            self.length = len(body)
            return super().decode(body, headers)

        def encode(self, output: Any, item: Any) -> Any:
            return [float(output), self.length]

    class Counts(Doubler):
        def load(self, model_dir: Any, settings: Settings) -> Any:
            self.labels, self.decoded = {"a": [1]}, 0
            return super().load(model_dir, settings)

        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            self.decoded += 1
            return super().decode(body, headers)

        def encode(self, output: Any, item: Any) -> Any:
            return [float(output), self.labels["a"], self.settings.model.get("name")]

    with caplog.at_level(logging.WARNING):
        begin(Counts(), Settings(batch_size=4, proof_s=0))
        assert "seems to be of a request" not in caplog.text
        begin(Keeps(), Settings(batch_size=4, proof_s=0))
        assert "what a hook leaves in length seems to be of a request" in caplog.text


class LeavesItsMean(Doubler):
    """What `predict` leaves, `encode` reads: of a batch, or of the row that came last. A body may have several rows."""

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [np.float32(number) for number in json.loads(body)]

    def predict(self, inputs: Any) -> Any:
        self.mean = float(inputs.mean())
        return super().predict(inputs)

    def encode(self, output: Any, item: Any) -> Any:
        return [float(output), self.mean]


class LeavesItsLength(LeavesItsMean):
    """What `decode` leaves, `encode` reads."""

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        self.length = len(body)
        return super().decode(body, headers)

    def predict(self, inputs: Any) -> Any:
        return Doubler.predict(self, inputs)

    def encode(self, output: Any, item: Any) -> Any:
        return [float(output), self.length]


@pytest.mark.parametrize("kind", [LeavesItsMean, LeavesItsLength])
def test_what_a_hook_leaves_for_a_later_one_is_of_its_own_row(kind: type[Doubler], caplog: pytest.LogCaptureFixture) -> None:
    requests, settings = [[7], [1, 100, 2], [300], "no list", [5]], Settings(batch_size=8, proof_s=0)
    alone = [shown(ask(begin(kind(), settings), [one])[0]) for one in requests]
    together = ask(begin(kind(), settings), requests)
    assert [shown(answer) for answer in together] == alone
    assert [code for code, _ in alone] == [200, 200, 200, 400, 200]
    assert "so requests run one after the other" in caplog.text
    if kind is LeavesItsMean:
        assert together[1].value == [[2.0, 1.0], [200.0, 100.0], [4.0, 2.0]]
        assert together[0].batch.tally.rows == 6


class Draws(Doubler):
    """Its answers are drawn, of one seed."""

    def predict(self, inputs: Any) -> Any:
        random.seed(0)
        return [float(row) + random.random() for row in inputs]


def test_numbers_of_a_seed_that_predict_sets_are_those_of_a_row_alone() -> None:
    bodies = [b"1", b"2", b"3"]
    alone = [ask(begin(Draws(), Settings(batch_size=4, proof_s=0)), [body])[0].value for body in bodies]
    together = ask(begin(Draws(), Settings(batch_size=4, proof_s=0)), bodies)
    assert all(type(value) is float for value in alone)
    assert [answer.value for answer in together] == alone
