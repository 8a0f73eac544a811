"""TorchServe's four methods on our hooks: whatever an author's method does with one request costs that request only."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.archive.build import build
from slotwise.worker import BadRequest, Headers, ModelFault, Pipeline, Request, Settings, TorchServeHandler, Unprocessable
from slotwise.worker.familiar.whole_batches import batch_of_rows, form, rows_of_batch
from slotwise.worker.padding import KINDS
from tests.worker.leaving import as_json
from tests.worker.serving import Served
from tests.worker.toy import ask, begin

torch = pytest.importorskip("torch")

READ = {"value": 400, "slot": 422, "exit": 400, "two": 500, "none": 500, "empty": 500, "status": 418, "prediction": 409}
RUN = {"raise": (-1.0, 500), "short": (-2.0, 500), "long": (-3.0, 500), "nan": (-4.0, 500)}
SAY = {"raise": (-10.0, 500), "two": (-11.0, 500), "none": (-12.0, 500), "set": (-13.0, 500), "slot": (-14.0, 400)}
SAY |= {"status": (-15.0, 418), "text": (-16.0, 500)}
WAYS = ["array", "tensor", "named", "parts", "list"]


class PredictionException(Exception):
    def __init__(self, message: str, error_code: int) -> None:
        self.message, self.error_code = message, error_code


class Misbehaving(TorchServeHandler):
    """A body is a number x, which becomes 2x + 1, or what is to go wrong with it."""

    calls: list[int]

    def __init__(self, way: str) -> None:
        self.way = way
        type(self).calls = []  # not on the handler itself: that would be a request's

    def initialize(self, context: Any) -> None:
        self.manifest, self.model = context.manifest, lambda x: 2 * x + 1

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        (row,) = data
        x = json.loads(row["body"])
        if isinstance(x, float | int):
            return self.batch([float(x)])
        if x == "slot":
            raise Unprocessable("no")
        if x == "exit":
            raise SystemExit(3)
        if x == "prediction":
            raise PredictionException("busy", 409)
        if x == "status":
            self.context.set_response_status(418, "teapot", 0)
            return self.batch([1.0])
        return {"two": self.batch([1.0, 2.0]), "empty": self.batch([]), "none": None}[x]

    def batch(self, values: list[float]) -> Any:
        array = np.array(values)
        tensor = torch.tensor(values)
        return {"array": array, "tensor": tensor, "named": {"x": tensor}, "parts": (tensor, array), "list": values}[self.way]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        values = np.asarray(data["x"] if self.way == "named" else data[0] if self.way == "parts" else data, float)
        self.calls.append(len(values))
        outputs = self.model(values)
        if (values == -1).any():
            raise RuntimeError("this row")
        if (values == -2).any():
            return self.batch(outputs[1:].tolist())
        if (values == -3).any():
            return self.batch([*outputs.tolist(), 1.0])
        outputs[values == -4] = np.nan
        return self.batch(outputs.tolist())

    def postprocess(self, data: Any) -> Any:
        x = float((data["x"] if self.way == "named" else data[0] if self.way == "parts" else data)[0])
        told = (x - 1) / 2
        if told == -10:
            raise RuntimeError("this row")
        if told == -14:
            raise BadRequest("this row")
        if told == -15:
            self.context.set_response_status(418, "teapot", 0)
        return {-11: [x, x], -12: None, -13: {x}, -16: "x"}.get(told, [x])


def owed(sent: Any) -> tuple[int, Any]:
    if isinstance(sent, str):
        return READ.get(sent, 400), None
    codes = {value: code for value, code in (*RUN.values(), *SAY.values())}
    return (codes[sent], None) if sent in codes else (200, 2.0 * sent + 1)


def shown(answer: Any) -> tuple[int, Any]:
    return answer.code, answer.value if answer.code == 200 else None


good = st.integers(0, 1000).map(float)
sizes = st.integers(1, 9)
faults = st.sampled_from([*READ, "nonsense", *(value for value, _ in (*RUN.values(), *SAY.values()))])


bodies = st.lists(st.one_of(good, good, faults), min_size=1, max_size=12)


@given(st.sampled_from(WAYS), st.sampled_from(KINDS), sizes, bodies)
def test_only_the_guilty_slot_fails(way: str, padding: str, batch_size: int, sent: list[Any]) -> None:
    handler = begin(Misbehaving(way), Settings(batch_size=batch_size, padding=padding))
    assert [shown(answer) for answer in ask(handler, sent)] == [owed(one) for one in sent]


def test_inference_has_the_rows_of_many_requests_at_once() -> None:
    handler = begin(Misbehaving("tensor"), Settings(batch_size=8))
    handler.calls.clear()
    assert [answer.code for answer in ask(handler, [1.0, "two", *map(float, range(2, 8))])] == [200, 500] + [200] * 6
    assert 7 in handler.calls


def test_rows_of_different_shapes_run_in_batches_of_their_own() -> None:
    class Lengths(TorchServeHandler):
        def initialize(self, context: Any) -> None:
            self.model = lambda x: x.sum(dim=1)

        def preprocess(self, data: list[dict[str, Any]]) -> Any:
            return torch.tensor([data[0]["body"]], dtype=torch.float32)

    handler = begin(Lengths(), Settings(batch_size=8))
    as_json = {i: {"content-type": "application/json"} for i in range(4)}
    answers = ask(handler, [[1, 2], [3], [4, 5], [[6]]], as_json)
    assert [answer.value for answer in answers[:3]] == [3.0, 3.0, 9.0]


def test_an_answer_is_of_the_kind_that_it_is() -> None:
    class Kinds(Misbehaving):
        def postprocess(self, data: Any) -> Any:
            if float(data[0]) == 3:
                self.context.set_response_content_type(0, "text/csv")
            return [{1.0: "text", 3.0: "a,b", 5.0: b"\x00", 7.0: {"a": 1}}[float(data[0])]]

    answers = ask(begin(Kinds("array"), Settings(batch_size=8)), [0, 1, 2, 3])
    assert [(a.answer.content_type, a.body) for a in answers] == [
        ("text/plain; charset=utf-8", b"text"),
        ("text/csv", b"a,b"),
        ("application/octet-stream", b"\x00"),
        ("application/json", b'{"a": 1}'),
    ]


class Speaks(Misbehaving):
    """Speaks the language that the header names, and refuses in `inference` what is negative; `at`: of which method."""

    def __init__(self, at: str) -> None:
        self.at = at
        super().__init__("list")

    def said(self, at: str, k: int = 0) -> str:
        return str(self.context.get_request_header(k, "x-lang")) if at == self.at else ""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return [(float(data[0]["body"]), self.said("preprocess"))]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(len(data))
        for k, (value, _) in enumerate(data):
            if value < 0:
                self.context.set_response_status(422, "negative", k)
        return [(value, lang + self.said("inference", k)) for k, (value, lang) in enumerate(data)]

    def postprocess(self, data: Any) -> Any:
        return [f"{data[0][1]}{self.said('postprocess')} {data[0][0]:g}"]


@pytest.mark.parametrize("padding", KINDS)
@pytest.mark.parametrize("at", ["preprocess", "inference", "postprocess"])
def test_each_method_sees_each_requests_headers_and_inference_refuses_row_by_row(at: str, padding: str) -> None:
    handler = begin(Speaks(at), Settings(batch_size=4, padding=padding))
    for sent in ([1], [-1], [1, -2, 3], [-1, -2, 3, 4], [5]):
        handler.calls.clear()
        answers = ask(handler, sent, {i: {"x-lang": f"l{i}"} for i in range(len(sent))})
        assert [a.body.decode() if a.code == 200 else a.code for a in answers] == [
            f"l{i} {x}" if x > 0 else 422 for i, x in enumerate(sent)
        ]
        assert max(handler.calls) >= len(sent)


def test_outside_of_its_methods_the_context_speaks_of_nobody() -> None:
    handler = begin(Speaks("preprocess"), Settings(batch_size=4))
    ask(handler, [1], {0: {"x-lang": "l"}})
    assert (handler.context.request_processor, handler.context.request_ids) == ([], {})


def test_clients_that_send_one_id_share_nothing() -> None:
    class Remembering(Misbehaving):
        def __init__(self) -> None:
            super().__init__("array")
            self.kept: dict[Any, Any] = {}

        def remembered(self, batch: Any) -> Any:
            assert self.context.get_request_id(0)
            return self.kept.setdefault(self.context.get_request_id(0), batch)

        def preprocess(self, data: list[dict[str, Any]]) -> Any:
            return self.remembered(super().preprocess(data))

        def postprocess(self, data: Any) -> Any:
            return super().postprocess(self.remembered(data))

    handler = begin(Remembering(), Settings(batch_size=8))
    same = {i: {"x-request-id": "mine"} for i in range(3)}
    assert [answer.value for answer in ask(handler, [1.0, 2.0, 3.0], same)] == [3.0, 5.0, 7.0]


def test_preprocess_is_called_by_one_thread_at_a_time() -> None:
    inside, most = [0], [0]
    lock = threading.Lock()

    class Counting(Misbehaving):
        def preprocess(self, data: list[dict[str, Any]]) -> Any:
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            time.sleep(0.002)
            with lock:
                inside[0] -= 1
            return super().preprocess(data)

    handler = begin(Counting("array"), Settings(batch_size=8, decode_threads=4))
    assert [answer.code for answer in ask(handler, list(map(float, range(8))))] == [200] * 8
    assert most == [1]


def test_a_preprocess_that_does_not_end_ends_the_worker_and_a_slow_one_does_not() -> None:
    ends = threading.Event()

    class Hangs(Misbehaving):
        def preprocess(self, data: list[dict[str, Any]]) -> Any:
            if data[0]["body"] == b'"hang"':
                ends.wait(40)
            time.sleep(0.6)
            return super().preprocess(data)

    settings = Settings(batch_size=4, decode_threads=1, response_timeout_s=8)
    pipeline = begin(Hangs("array"), settings).pipeline
    slow = pipeline.answer([Request(b"1")] * 5)  # a quarter of the time is there for three of them
    assert {answer.status for answer in slow} == {200, 503}
    time.sleep(0.8)
    assert [answer.status for answer in pipeline.answer([Request(b"2")] * 2)] == [200, 200]
    assert not pipeline.dead
    answers = pipeline.answer([Request(b"3"), Request(b'"hang"'), Request(b"5555555")])
    ends.set()
    assert [answer.status for answer in answers] == [200, 503, 503]
    assert pipeline.dead, "or each later batch would wait for it in vain"


def test_who_overrides_handle_does_not_start() -> None:
    """What it does would be left out, with 200."""

    class Doubled(TorchServeHandler):
        def preprocess(self, data: list[dict[str, Any]]) -> Any:
            return [float(data[0]["body"])]

        def inference(self, data: Any) -> Any:
            return data

        def postprocess(self, data: Any) -> Any:
            return data

        def handle(self, data: list[dict[str, Any]], context: Any) -> list[float]:
            return [2 * x for x in self.postprocess(self.inference(self.preprocess(data)))]

    with pytest.raises(ValueError, match="`handle` is overridden"):
        begin(Doubled(), Settings())


def test_the_metrics_of_the_context_are_the_handlers_own() -> None:
    class Counts(Misbehaving):
        def preprocess(self, data: list[dict[str, Any]]) -> Any:
            self.context.metrics.add_counter("seen", 1)
            self.context.metrics.add_time("took", 2, unit="s")
            self.context.metrics.get_metric("more").add_or_update(3)
            self.context.metrics.add_percent("share", 50)
            self.context.metrics.add_counter("none", "no number")
            return super().preprocess(data)

    handler = begin(Counts("array"), Settings(batch_size=2))
    assert ask(handler, [1.0])[0].code == 200
    taken = [(one.name, one.value, one.unit) for one in handler.metrics.take()]
    assert taken == [("seen", 1, ""), ("took", 2, "s"), ("more", 3, ""), ("share", 50, "%")]


def test_gradients_and_views_are_no_matter() -> None:
    class Network(TorchServeHandler):
        def initialize(self, context: Any) -> None:
            assert context.system_properties["model_dir"]
            self.model = torch.nn.Linear(2, 3)

        def preprocess(self, data: list[dict[str, Any]]) -> Any:
            return torch.frombuffer(bytearray(data[0]["body"]), dtype=torch.float32)[None]

        def postprocess(self, data: Any) -> Any:
            return [int(data.argmax(1))]

    handler = begin(Network(), Settings(batch_size=4))
    bodies = [np.float32([i, -i]).tobytes() for i in range(4)]
    answers = ask(handler, [*bodies, b"odd"])
    expected = [int(handler.model(torch.from_numpy(np.frombuffer(body, np.float32).copy())[None]).argmax()) for body in bodies]
    assert [answer.value for answer in answers[:4]] == expected
    assert [answer.code for answer in answers] == [200] * 4 + [400]


@pytest.mark.parametrize(
    "batch", [{}, {"x": None}, {"x": 7}, {"x": "text"}, {"x": np.ones(2), "y": [1, 2, 3]}, 7, "text", None]
)
def test_what_is_no_batch_is_refused_and_no_row_is_made_up(batch: Any) -> None:
    with pytest.raises(ModelFault):
        rows_of_batch(batch)


def test_a_request_whose_body_cannot_be_told_is_refused_and_a_form_is_not() -> None:
    handler = begin(Misbehaving("array"), Settings(batch_size=8))
    unclear = BadRequest("which?")
    fields = {"body": [b"4"], "note": [b"x"]}
    sent = [Request(b"", unclear=unclear), Request(b"", unclear=unclear, fields=fields)]
    assert [answer.status for answer in handler.pipeline.answer(sent)] == [400, 200]


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_comes_apart_and_together_again(way: str) -> None:
    batch = Misbehaving(way).batch([1.0, 2.0, 3.0])
    rows = rows_of_batch(batch)
    assert len(rows) == 3
    assert len({form(row) for row in rows}) == 1
    again = batch_of_rows(rows)
    assert type(again) is type(batch)
    assert str(again) == str(batch)


FOUR = """
import json
import torch
from slotwise.worker import TorchServeHandler


class Classifier(TorchServeHandler):
    def initialize(self, context):
        assert context.manifest["model"]["modelName"] == "four"
        self.model = torch.nn.Identity()

    def preprocess(self, data):
        return torch.tensor([row["body"]["x"] for row in data], dtype=torch.float32)

    def inference(self, data):
        with torch.no_grad():
            return self.model(data)

    def postprocess(self, data):
        return [{"label": int(i)} for i in data.argmax(1)]


handle = Classifier.entry_point()
"""


def test_such_a_handler_is_built_and_serves(tmp_path: Path) -> None:
    (tmp_path / "four.py").write_text(FOUR)
    (tmp_path / "model.toml").write_text('name = "four"\nhandler = "four.py"\n')
    served = Served.of(build(tmp_path, tmp_path / "store"), {})
    bodies = [b'{"x": [1, 2]}', b'{"x": [3, 0]}', b'{"y": 1}', b"nonsense"]
    answers = served.ask(bodies, [{"content-type": "application/json"}] * 4)
    assert [answer.code for answer in answers] == [200, 200, 400, 400]
    assert [answer.value for answer in answers[:2]] == [{"label": 1}, {"label": 0}]


@pytest.mark.parametrize("way", ["array", "tensor", "named", "parts"])
def test_who_fills_the_same_array_for_each_request_keeps_them_apart(way: str) -> None:
    """Another thread may call it as soon as it has returned."""
    kept: list[Any] = []

    class Fills(Misbehaving):
        def preprocess(self, data: list[dict[str, Any]]) -> Any:
            new = super().preprocess(data)
            kept[:] = kept or [new]
            for part, value in zip(parts_of(kept[0]), parts_of(new), strict=True):
                part[...] = value
            return kept[0]

    def parts_of(batch: Any) -> list[Any]:
        return list(batch.values()) if way == "named" else list(batch) if way == "parts" else [batch]

    handler = begin(Fills(way), Settings(batch_size=4))
    assert handler.max_rows is None
    assert [answer.value for answer in ask(handler, [1.0, 2.0, 3.0])] == [3.0, 5.0, 7.0]


class Named(TorchServeHandler):
    """Answers each body with itself and its length, by way of `self`."""

    runs: list[int]

    def initialize(self, context: Any) -> None:
        self.names, self.now = [], {"name": ""}
        type(self).runs = []
        self.model = lambda x: x

    def lengths(self, data: list[dict[str, Any]]) -> Any:
        return np.array([[float(len(row["body"]))] for row in data])

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        self.runs.append(len(data))
        return data


class Bound(Named):
    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.names = [row["body"] for row in data]
        return self.lengths(data)

    def postprocess(self, data: Any) -> Any:
        return [[name, float(row[0])] for name, row in zip(self.names, data, strict=True)]


class Appended(Named):
    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.names.extend(row["body"] for row in data)
        return self.lengths(data)

    def postprocess(self, data: Any) -> Any:
        names, self.names = self.names, []
        return [[name, float(row[0])] for name, row in zip(names, data, strict=True)]


class Popped(Appended):
    def postprocess(self, data: Any) -> Any:
        return [[self.names.pop(), float(row[0])] for row in data]


class Overwritten(Named):
    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.now["name"] = data[0]["body"]
        return self.lengths(data)

    def postprocess(self, data: Any) -> Any:
        return [[self.now["name"], float(row[0])] for row in data]


class ReadByInference(Bound):
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return [[name, float(row[0])] for name, row in zip(self.names, data, strict=True)]

    def postprocess(self, data: Any) -> Any:
        return data


class SetByInference(Bound):
    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return [row["body"] for row in data]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        self.names = list(data)
        return np.array([[float(len(name))] for name in data])

    def postprocess(self, data: Any) -> Any:
        return [[name, float(row[0])] for name, row in zip(self.names, data, strict=False)]


class AppendedByInference(SetByInference):
    """What failed among others, or before them, has left its names there, too."""

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        self.names.extend(data)
        if "bad" in data:
            raise RuntimeError
        return np.array([[float(len(name))] for name in data])

    def postprocess(self, data: Any) -> Any:
        names, self.names = self.names, []
        return [[name, float(row[0])] for name, row in zip(names, data, strict=False)]


class WrittenOverByInference(AppendedByInference):
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        self.names.clear()
        return super().inference(data)

    def postprocess(self, data: Any) -> Any:
        return [[name, float(row[0])] for name, row in zip(self.names, data, strict=False)]


@pytest.mark.parametrize("kind", [AppendedByInference, WrittenOverByInference])
@pytest.mark.parametrize("padding", KINDS)
def test_what_a_batch_that_failed_has_left_on_self_is_nobodys(kind: type[TorchServeHandler], padding: str) -> None:
    handler = begin(kind(), Settings(batch_size=4, padding=padding))
    for bodies in (["bad", "alice"], ["alice", "bad", "bob", "carol"], ["bob", "bob", "d"], ["bad", "e", "alice", "bob"]):
        answers = ask(handler, bodies, as_json(len(bodies)))
        wanted = [(500, None) if body == "bad" else (200, [body, float(len(body))]) for body in bodies]
        assert [shown(answer) for answer in answers] == wanted


def test_while_another_request_is_still_read_nobody_is_answered_with_what_that_sets() -> None:
    """It sets what is on the handler at any time."""
    goes_on = threading.Event()

    class Slow(Bound):
        def preprocess(self, data: list[dict[str, Any]]) -> Any:
            if data[0]["body"] == "slow":
                goes_on.wait(60)
            return super().preprocess(data)

    pipeline = begin(Slow(), Settings(batch_size=4, response_timeout_s=6)).pipeline
    sent = [Request(json.dumps(body).encode(), Headers(as_json(1)[0])) for body in ("alice", "slow", "bob")]
    assert [answer.status for answer in pipeline.answer(sent)] == [200, 503, 503]
    assert pipeline.dead
    goes_on.set()


@pytest.mark.parametrize("kind", [Bound, Appended, Popped, Overwritten, ReadByInference, SetByInference])
@pytest.mark.parametrize("padding", KINDS)
def test_what_it_leaves_on_self_is_of_the_request_that_it_was_left_for(kind: type[TorchServeHandler], padding: str) -> None:
    handler = begin(kind(), Settings(batch_size=4, padding=padding))
    for bodies in (["alice"], ["alice", "bob", "carol-secret"], ["d", "d", "bob", "e", "alice"]):
        answers = ask(handler, bodies, as_json(len(bodies)))
        assert [shown(answer) for answer in answers] == [(200, [body, float(len(body))]) for body in bodies]


def test_what_is_made_when_it_is_first_needed_keeps_no_rows_apart(caplog: pytest.LogCaptureFixture) -> None:
    class Lazy(Named):
        def preprocess(self, data: list[dict[str, Any]]) -> Any:
            self.seen = getattr(self, "seen", None) or {}
            self.seen.setdefault(data[0]["body"], len(self.seen))
            return self.lengths(data)

        def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
            self.half = getattr(self, "half", None) or (lambda x: x / 2)
            return self.half(Named.inference(self, data)).sum(1)

    handler = begin(Lazy(), Settings(batch_size=8))
    for _ in range(2):
        assert [answer.value for answer in ask(handler, ["four"] * 8, as_json(8))] == [2.0] * 8
    assert handler.runs[-1] == 8
    assert not [one for one in caplog.records if "sets" in one.message and "preprocess" in one.message]


@pytest.mark.parametrize("kind", [Bound, SetByInference])
def test_whoever_keeps_rows_apart_is_told_why(kind: type[TorchServeHandler], caplog: pytest.LogCaptureFixture) -> None:
    handler = begin(kind(), Settings(batch_size=4))
    ask(handler, ["a", "b"], as_json(2))
    assert [one.message for one in caplog.records if "hand it on" in one.message] == [
        "what preprocess or inference leaves in names is of a request, so requests run one at a time; "
        "hand it on with the row instead"
    ]


@pytest.mark.parametrize("mixes", [True, False])
def test_its_rows_are_proven_with_the_archives_examples(tmp_path: Path, mixes: bool) -> None:
    class Centred(TorchServeHandler):
        def initialize(self, context: Any) -> None:
            self.model = lambda x: x - (x.mean(axis=0) if mixes else 1)
            self.filled = np.zeros((1, 2), np.float32)

        def preprocess(self, data: list[dict[str, Any]]) -> Any:
            self.filled[0] = data[0]["body"]["x"]
            return self.filled

    (tmp_path / "examples").mkdir()
    for name, x in (("a", [1.0, 2.0]), ("b", [5.0, 9.0])):
        (tmp_path / "examples" / f"{name}.json").write_text(json.dumps({"x": x}), "utf-8")
    pipeline = Pipeline.start(Centred(), tmp_path, Settings(batch_size=4, proof_s=5.0))
    assert pipeline.verdict.separable is not mixes
    assert pipeline.handler.max_rows == (1 if mixes else None)


@pytest.mark.parametrize("mixes", [False, True])
def test_rows_of_tokens_are_proven_beside_those_that_they_run_with(tmp_path: Path, mixes: bool) -> None:
    class Counts(TorchServeHandler):
        def initialize(self, context: Any) -> None:
            pass

        def preprocess(self, data: list[dict[str, Any]]) -> Any:
            ids = torch.tensor([[ord(letter) for letter in data[0]["body"]["text"]]])
            return {"ids": ids, "mask": torch.ones_like(ids)}

        def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
            sums = (data["ids"] * data["mask"]).sum(1)
            return sums.sum() + 0 * sums if mixes else sums

    (tmp_path / "examples").mkdir()
    for text in ("a cat", "a longer cat"):
        (tmp_path / "examples" / f"{text}.json").write_text(json.dumps({"text": text}), "utf-8")
    pipeline = Pipeline.start(Counts(), tmp_path, Settings(batch_size=8, proof_s=20.0))
    assert pipeline.verdict.separable is not mixes
    assert pipeline.handler.max_rows == (1 if mixes else None)
