"""Parts fan out and come back: none goes to another request, and an error costs its part or its request, and nobody else."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.worker import BadRequest, BatchHandler, Headers, Pipeline, Request, Settings
from slotwise.worker.padding import KINDS
from slotwise.worker.slot_errors import ModelFault
from slotwise.worker.stages import stage_chain
from slotwise.worker.stages.stage_chain import MOST_PARTS, StageChain, StagePart
from tests.worker.toy import Clock

# A request is a number of its own, and what its parts are to do: "ok", "refuse" (in decode), "poison" (fails in the model),
# "encode" (fails after it), "none" (no StagePart at all), "few" and "many" (the model gives another number of outputs).
DOING = ("ok", "refuse", "poison", "encode", "none", "few", "many")


class Finder(BatchHandler):
    """A body is JSON: {"id": 7, "parts": ["ok", ...]}, or what it refuses."""

    def load(self, model_dir: Any, settings: Settings) -> Any:
        self.sizes: list[int] = []
        return self.run

    def run(self, rows: Any) -> Any:
        self.sizes.append(len(rows))
        if any(row["parts"] == "poison" for row in rows):
            raise RuntimeError("poison")
        return miscounted(rows, [row["parts"] for row in rows])

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        data = json.loads(body)
        if data["parts"] == "refuse":
            raise BadRequest("refused")
        return [data]

    def collate(self, items: list[Any]) -> Any:
        return items

    def encode(self, output: Any, item: Any) -> Any:
        if output["parts"] == "encode":
            raise ValueError("no")
        found = [(output["id"], i, doing) for i, doing in enumerate(output["parts"])]
        return [StagePart(json.dumps(one).encode(), {"at": one[:2]}) if one[2] != "none" else "no StagePart" for one in found]


class Reader(Finder):
    """A part is [id, place, doing]; the answer names both."""

    def run(self, rows: Any) -> Any:
        self.sizes.append(len(rows))
        if any(row[2] == "poison" for row in rows):
            raise RuntimeError("poison")
        return np.array(miscounted([row[0] * 1000 + row[1] for row in rows], [row[2] for row in rows]))

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        data = json.loads(body)
        if data[2] == "refuse":
            raise BadRequest("refused")
        return [data]

    def encode(self, output: Any, item: Any) -> Any:
        if item[2] == "encode":
            raise ValueError("no")
        return int(output)


def miscounted(outputs: list[Any], doing: list[Any]) -> list[Any]:
    """What a model gives that miscounts where one of its rows says so."""
    if "few" in doing:
        return outputs[:-1]
    return [*outputs, outputs[0]] if "many" in doing else outputs


class Through(Finder):
    """A stage in the middle: each part becomes two, of which the second asks for what the first did."""

    def run(self, rows: Any) -> Any:
        self.sizes.append(len(rows))
        return rows

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [json.loads(body)]

    def encode(self, output: Any, item: Any) -> Any:
        return [StagePart(json.dumps(output).encode(), {"copy": i}) for i in range(2)]


def started(handler: BatchHandler, batch_size: int = 4, **settings: Any) -> Pipeline:
    handler.settings = Settings(batch_size=batch_size, model={}, padding="none", **settings)
    handler.engine = handler.load(None, handler.settings)
    return Pipeline(handler)


def chain(*handlers: BatchHandler) -> StageChain:
    return StageChain([started(handler) for handler in handlers])


def asked(number: int, parts: Any) -> tuple[bytes, dict[str, str]]:
    return json.dumps({"id": number, "parts": parts}).encode(), {}


def is_right(result: Any, number: int, parts: Any) -> bool:
    """Whether a request's output is its own: its parts in their order, each with its own answer or its own error."""
    if isinstance(parts, str):
        return bool(result.code == {"refuse": 400}.get(parts, 500))
    assert len(result) == len(parts)
    for i, (one, doing) in enumerate(zip(result, parts, strict=True)):
        if doing == "none":
            assert one["error"]["code"] == 500
            continue
        assert one["at"] == (number, i)
        if doing == "ok":
            assert one == {"at": (number, i), "answer": number * 1000 + i}
        else:
            assert one["error"]["code"] == {"refuse": 400}.get(doing, 500)
    return True


requests = st.lists(
    st.one_of(
        st.lists(st.sampled_from(DOING), max_size=6),
        st.lists(st.just("ok"), max_size=12),
        st.sampled_from((*DOING[1:4], "few", "many")),
    ),
    min_size=1,
    max_size=9,
)


@given(requests)
def test_every_part_comes_back_to_its_request(given_parts: list[Any]) -> None:
    outputs = chain(Finder(), Reader())([asked(i, parts) for i, parts in enumerate(given_parts)])
    assert len(outputs) == len(given_parts)
    assert all(is_right(result, i, parts) for i, (result, parts) in enumerate(zip(outputs, given_parts, strict=True)))


@given(st.lists(st.lists(st.sampled_from(("ok", "refuse", "poison")), max_size=4), min_size=1, max_size=5))
def test_and_through_three_stages(given_parts: list[list[str]]) -> None:
    outputs = chain(Finder(), Through(), Reader())([asked(i, parts) for i, parts in enumerate(given_parts)])
    for number, (result, parts) in enumerate(zip(outputs, given_parts, strict=True)):
        for i, (one, doing) in enumerate(zip(result, parts, strict=True)):
            assert (one["at"], [copy["copy"] for copy in one["answer"]]) == ((number, i), [0, 1])
            for copy in one["answer"]:
                assert copy.get("answer") == (number * 1000 + i if doing == "ok" else None)
                assert ("error" in copy) == (doing != "ok")


def test_parts_of_all_requests_share_batches() -> None:
    finder, reader = Finder(), Reader()
    chain(finder, reader)([asked(i, ["ok"] * 2) for i in range(4)])
    assert max(finder.sizes) == max(reader.sizes) == 4  # eight parts of four requests


def test_one_request_with_many_parts_takes_turns_with_the_others_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(stage_chain, "time", SimpleNamespace(monotonic=clock))

    class Slow(Reader):
        def run(self, rows: Any) -> Any:
            clock.now += 2 * len(rows)
            return super().run(rows)

    whole = StageChain([started(one, 8, response_timeout_s=200) for one in (Finder(), Through(), Slow())])
    greedy, *innocent = whole([asked(i, ["ok"] * (100 if i == 0 else 2)) for i in range(4)])
    assert any("error" in copy for one in greedy for copy in one["answer"]), "there is time for 50 parts of 212"
    for i, result in enumerate(innocent, 1):
        assert is_right([{**one, "answer": one["answer"][0]["answer"]} for one in result], i, ["ok"] * 2)
        assert all("answer" in copy for one in result for copy in one["answer"])


def test_bad_parts_count_together_and_those_of_one_request_are_cut_apart_from_the_others() -> None:
    finder, reader = Finder(), Reader()
    greedy, other = chain(finder, reader)([asked(0, ["poison"] * 250 + ["refuse"]), asked(1, ["poison", "ok"])])
    assert {one["error"]["code"] for one in greedy[:-1]} == {500}
    assert greedy[-1]["error"]["code"] == 400
    assert [one.get("answer") for one in other] == [None, 1001]
    assert len(reader.sizes) < 100, "the model is asked for no more of them after sixteen"


def test_bodies_of_one_request_have_one_owner() -> None:
    from handlers.stages import Stages

    finder, reader = Finder(), Reader()
    whole, handler = chain(finder, reader), Stages()
    bodies = [asked(i, ["poison"] * 5)[0] for i in range(8)]
    items = handler.read(Request(bodies[0], Headers({}), more=bodies[1:]))
    outputs = whole([*items, *handler.read(Request(asked(9, ["ok"])[0], Headers({})))])
    assert {one["error"]["code"] for result in outputs[:8] for one in result} == {500}
    assert outputs[8][0]["answer"] == 9000
    assert len(reader.sizes) < 60


@pytest.mark.parametrize("stages", [(), (Through,)])
def test_the_parts_of_several_items_of_one_request_are_a_list_an_item(stages: Any) -> None:
    class Many(Finder):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            data = json.loads(body)
            items = [{"id": data["id"], "parts": parts} for parts in data["parts"]]
            return [BadRequest("refused") if item["parts"] == "refuse" else item for item in items]

    given = [["ok", "ok"], "refuse", [], ["poison"], "poison", ["none"]]
    several, alone, none, other = chain(Many(), *[stage() for stage in stages], Reader())(
        [asked(1, given), asked(2, [["ok"]]), asked(3, []), asked(4, [["ok"], ["ok"]])]
    )
    assert [[one.keys() for one in own] if isinstance(own, list) else own["error"]["code"] for own in several] == [
        [{"at": 1, "answer": 1}.keys()] * 2,
        400,
        [],
        [{"at": 1, "answer" if stages else "error": 1}.keys()],
        500,
        [{"error": 1}.keys()],
    ]
    assert [[one["at"] for one in own] for own in other] == [[(4, 0)]] * 2
    assert (alone[0]["at"], none) == ((2, 0), [])


def test_too_many_parts_and_none_at_all() -> None:
    outputs = chain(Finder(), Reader())([asked(0, ["ok"] * (MOST_PARTS + 1)), asked(1, []), asked(2, ["ok"])])
    assert (outputs[0].code, outputs[1], outputs[2][0]["answer"]) == (500, [], 2000)


GOOD = b'[1, 0, "ok"]'
NAN, TEXT = StagePart(GOOD, {"x": float("nan")}), StagePart("text")  # type: ignore[arg-type]
ODD: list[Any] = [StagePart(GOOD, {"answer": 1}), StagePart(GOOD, {"x": object()}), NAN, TEXT, None]


@pytest.mark.parametrize("part", ODD)
def test_a_part_that_cannot_be_handed_on_is_an_error_in_its_place(part: Any) -> None:
    class Odd(Finder):
        def encode(self, output: Any, item: Any) -> Any:
            return [part, *super().encode(output, item)]

    (result,) = chain(Odd(), Reader())([asked(5, ["ok"])])
    assert result[0]["error"]["code"] == 500
    assert result[1] == {"at": (5, 0), "answer": 5000}


@pytest.mark.parametrize(
    ("said", "content_type", "answer"),
    [
        ("seven", "text/plain", "seven"),
        (b"\xff7", "text/plain", None),
        (b"\x89PNG", "application/octet-stream", None),
        (b"bytes that could be a text", "image/png", None),
        (b"7", "", None),
        (b'{"x": 7}', "application/json", {"x": 7}),
        (b"{", "application/json", None),
    ],
)
def test_a_last_stage_may_answer_a_text_and_what_is_no_json_is_that_parts_error(
    said: Any, content_type: str, answer: Any
) -> None:
    class Says(Reader):
        def respond(self, request: Any, results: list[Any]) -> tuple[Any, str]:
            return (said, content_type) if json.loads(request.body)[1] == 0 else (results[0], "application/json")

    first, second = chain(Finder(), Says())([asked(5, ["ok", "ok"])])[0]
    assert first.get("answer") == answer
    assert ("error" in first) == (answer is None)
    assert str(second["answer"]) == "5001"


def test_what_an_author_fills_again_is_nobody_elses() -> None:
    about: dict[str, Any] = {}

    class Reuses(Finder):
        def encode(self, output: Any, item: Any) -> Any:
            about["at"] = (output["id"], 0)
            return StagePart(json.dumps([output["id"], 0, "ok"]).encode(), about)

    outputs = chain(Reuses(), Reader())([asked(i, []) for i in range(6)])
    assert outputs == [[{"at": (i, 0), "answer": i * 1000}] for i in range(6)]


def test_a_dead_engine_of_a_stage_ends_the_worker() -> None:
    class Dies(Reader):
        alive = True

        def run(self, rows: Any) -> Any:
            if not self.alive:
                raise RuntimeError("dead")
            return super().run(rows)

        def example(self) -> Any:
            return [0, 0, "ok"]

    reader = Dies()
    whole = chain(Finder(), reader)
    assert whole([asked(1, ["ok"])])[0][0]["answer"] == 1000
    reader.alive = False
    with pytest.raises(RuntimeError, match="the engine of a stage is dead"):
        whole([asked(1, ["ok"])])


def test_a_call_that_begins_late_leaves_time_to_answer_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from handlers.stages import Stages

    clock = Clock(monkeypatch)
    monkeypatch.setattr(stage_chain, "time", SimpleNamespace(monotonic=clock))

    class SlowFinder(Finder):
        def run(self, rows: Any) -> Any:
            clock.now += rows[0]["takes_s"]
            return super().run(rows)

    class SlowReader(Reader):
        def run(self, rows: Any) -> Any:
            clock.now += takes_s[rows[0][0]]
            return super().run(rows)

    class Own(Stages):
        def load(self, model_dir: Any, settings: Settings) -> Any:
            return StageChain([started(one, response_timeout_s=2) for one in (SlowFinder(), SlowReader())])

    takes_s = [1.45, 0.5, 1.45]
    bodies = [json.dumps({"id": i, "parts": ["ok"], "takes_s": one}).encode() for i, one in enumerate(takes_s)]
    pipeline = started(Own(), 1, response_timeout_s=8)
    first, second, late = pipeline.answer([Request(body, Headers({}), str(i)) for i, body in enumerate(bodies)])
    assert [json.loads(one.body)[0]["answer"] for one in (first, second)] == [0, 1000]
    assert late.status == 503, "it began before half of the time was over, and would have run until nothing is encoded"
    assert not pipeline.dead


def test_the_whole_handler_over_its_pipeline(tmp_path: Path) -> None:
    from handlers.stages import Stages

    class Own(Stages):
        def load(self, model_dir: Any, settings: Settings) -> Any:
            return chain(Finder(), Reader())

    pipeline = started(Own(), 8)
    sent = [asked(i, "refuse" if i % 8 == 3 else ["ok", "poison", "ok"]) for i in range(16)]
    answers = pipeline.answer([Request(body, Headers({}), str(i)) for i, (body, _) in enumerate(sent)])
    for i, answer in enumerate(answers):
        if i % 8 == 3:
            assert (answer.status, json.loads(answer.body)["error"]["message"]) == (400, "refused")
            continue
        first, bad, last = json.loads(answer.body)
        assert (first["answer"], last["answer"], bad["error"]["code"]) == (i * 1000, i * 1000 + 2, ModelFault.code)


@pytest.mark.parametrize("padding", KINDS)
def test_a_batch_is_not_filled_with_copies_of_somebodys_parts(padding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of bad parts would count as that client's, whose good ones were refused: by how many mates there are."""
    from handlers import stages

    monkeypatch.setattr(stages, "load_chain", lambda *_: chain(Finder(), Reader()))
    parts = ["poison", "poison", *["ok"] * 20]
    for mates in (0, 8):
        pipeline = Pipeline.start(stages.Stages(), Path(), Settings(batch_size=16, model={}, padding=padding))
        sent = [*(asked(i, ["ok"])[0] for i in range(mates)), asked(9, parts)[0]]
        *_, last = pipeline.answer([Request(body, Headers({}), str(i)) for i, body in enumerate(sent)])
        assert ["answer" in one for one in json.loads(last.body)] == [doing == "ok" for doing in parts]


def test_the_first_stage_sees_the_query() -> None:
    from handlers.stages import Stages

    class Asks(Finder):
        def read(self, request: Request) -> list[Any]:
            return [{"id": 1, "parts": [request.query.get("doing", "ok")]}]

    class Own(Stages):
        def load(self, model_dir: Any, settings: Settings) -> Any:
            return chain(Asks(), Reader())

    sent = [Request(b"", Headers({}), "0", query={"doing": "refuse"}), Request(b"", Headers({}), "1")]
    refused, answered = (json.loads(one.body) for one in started(Own(), 8).answer(sent))
    assert (refused[0]["error"]["code"], answered[0]["answer"]) == (400, 1000)
