"""An author's hooks, called one by one: what each failure becomes, and whom it costs."""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import pytest

from slotwise.worker import BadRequest, BatchHandler, Cost, Headers, ModelFault, Request, Settings, SlotError
from slotwise.worker.answer import Answer, CheckedHeaders, Refusal
from slotwise.worker.batch import Row
from slotwise.worker.hooks import Hooks
from slotwise.worker.outputs import WrongCount

ONE = Request(b"1", id="one")


class Plain(BatchHandler):
    """Each test replaces one of its hooks."""

    engine: Any = None

    def load(self, model_dir: Any, settings: Settings) -> Any:
        raise NotImplementedError

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [float(body)]

    def predict(self, inputs: Any) -> Any:
        return 2 * np.asarray(inputs)


def hooks(max_response_bytes: int = 1000, **replaced: Any) -> Hooks:
    handler = Plain()
    handler.settings = Settings(batch_size=8)
    handler.__dict__.update(replaced)
    return Hooks(handler, max_response_bytes)


def fails(error: BaseException) -> Any:
    def hook(*args: Any) -> Any:
        raise error

    return hook


def told(error: Any) -> tuple[int, str]:
    return (error.status if isinstance(error, Refusal) else error.code), error.message


def test_which_hooks_are_an_authors_own() -> None:
    ours = hooks()
    assert (ours.estimates, ours.groups_are_authors, ours.collate_is_authors, ours.respond_is_authors) == (False,) * 4
    assert (ours.way, ours.known_good) == ("", None)
    for name, flag in (
        ("cost", "estimates"),
        ("groups", "groups_are_authors"),
        ("collate", "collate_is_authors"),
        ("respond", "respond_is_authors"),
    ):
        theirs = hooks(**{name: fails(ValueError())})
        flags = {
            key: getattr(theirs, key) for key in ("estimates", "groups_are_authors", "collate_is_authors", "respond_is_authors")
        }
        assert flags == {key: key == flag for key in flags}
        assert getattr(Hooks(type("Own", (Plain,), {name: fails(ValueError())})(), 9), flag)


def test_an_estimate_is_of_all_bodies_together_or_none() -> None:
    priced = hooks(cost=lambda body, headers: Cost(len(body), len(body)))
    assert priced.cost(Request(b"123")) == Cost(3, 3)
    assert priced.cost(Request(b"123", fields={"a": [b"1", b"22"], "b": [b"4444"]})) == Cost(7, 4)
    assert priced.cost(Request(b"123", fields={"a": []})) == Cost(3, 3)
    by_header = hooks(cost=lambda body, headers: Cost(float(headers["x-pages"]), len(body)))
    assert by_header.cost(Request(b"12", Headers({"X-Pages": "7"}))) == Cost(7, 2)
    assert hooks(cost=fails(ValueError())).cost(ONE) is None
    assert hooks(cost=lambda body, headers: "dear").cost(ONE) is None
    refused = hooks(cost=fails(BadRequest("mine")))
    assert told(refused.cost(ONE)) == (400, "mine")
    assert told(refused.cost(Request(b"", fields={"a": [b"1"]}))) == (400, "mine")
    assert refused.cost(Request(b"", fields={"a": [b"1", b"2"]})) is None, "the others may be good"


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (ValueError("secret"), (400, "the body could not be decoded")),
        (SystemExit(), (400, "the body could not be decoded")),
        (BadRequest("mine"), (400, "mine")),
        (MemoryError(), (507, "the body does not fit into memory once decoded")),
    ],
)
def test_what_a_decode_that_fails_is_answered(error: BaseException, wanted: tuple[int, str]) -> None:
    assert told(hooks(decode=fails(error)).decode(ONE)) == wanted


def test_a_decode_gives_a_list_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert hooks().decode(ONE) == [1.0]
    assert told(hooks(decode=lambda body, headers: (1,)).decode(ONE)) == (500, "the handler's decode did not return a list")
    late = Request(b"1", deadline_s=999.9)
    assert told(hooks().decode(late)) == (504, "the deadline had passed when the request was read")
    in_time = Request(b"1", deadline_s=1030.0)
    monkeypatch.setattr(time, "time", lambda: 4600.0)  # the clock is set forward by an hour
    assert hooks().decode(in_time) == [1.0]
    assert told(hooks().decode(Request(b"1", deadline_s=1030.0)))[0] == 504


def test_items_are_owned_and_one_that_cannot_be_is_refused() -> None:
    item = [1]
    decoded = hooks(decode=lambda body, headers: [item, BadRequest("bad"), (x for x in item)]).decode(ONE)
    assert isinstance(decoded, list)
    item.append(2)
    assert decoded[0] == [1]
    assert told(decoded[1]) == (400, "bad")
    assert told(decoded[2]) == (500, "what the handler decoded cannot be copied")


def test_groups_get_copies() -> None:
    rows = [Row(0, [1]), Row(1, [2])]

    def groups(items: list[Any]) -> Any:
        for item in items:
            item.append(9)
        return [[1], [0]]

    assert hooks(groups=groups).groups(rows) == [[1], [0]]
    assert [row.item for row in rows] == [[1], [2]]
    assert hooks().groups(rows) == [[0, 1]]


def test_the_way_is_learned_at_two_sizes_and_kept() -> None:
    sizes: list[int] = []

    def predict(inputs: Any) -> Any:
        sizes.append(len(inputs))
        return 2 * np.asarray(inputs)

    one = hooks(predict=predict)
    rows = [Row(0, np.ones(1)), Row(1, np.zeros(1))]
    one.attempt(rows[:1], 1)
    assert (one.way, sizes) == ("", [1])
    one.attempt(rows, 3)
    assert (one.way, sizes) == ("rows", [1, 1, 3, 3])
    one.attempt(rows, 3)
    assert sizes == [1, 1, 3, 3, 3]
    assert [(row.error, float(row.output[0])) for row in rows] == [(None, 2.0), (None, 0.0)]  # type: ignore[index]
    with pytest.raises(WrongCount) as caught:
        hooks(predict=lambda inputs: [1]).attempt(rows, 2)
    assert str(caught.value) == "uncountable outputs for 2 rows"


def test_one_row_alone_is_read_as_it_is_among_others() -> None:
    place = np.zeros((2, 1))

    def predict(inputs: Any) -> Any:
        place[: len(inputs)] = 2 * np.asarray(inputs)
        return tuple(place[: len(inputs)])

    one = hooks(predict=predict)
    row = Row(0, np.ones(1))
    one.attempt([row], 1)
    assert (one.way, row.error, np.asarray(row.output).tolist()) == ("rows", None, [2.0])
    alone = hooks(predict=lambda inputs: predict(inputs) if len(inputs) == 1 else fails(ValueError())())
    alone.attempt([row], 1)
    assert (alone.way, row.error) == ("", None)


def test_a_collate_of_an_authors_gets_what_was_decoded_each_time() -> None:
    seen: list[Any] = []

    def collate(items: list[Any]) -> Any:
        seen.append([list(item) for item in items])
        for item in items:
            item.append(9)
        return np.array([[item[0]] for item in items])

    one = hooks(collate=collate)
    rows = [Row(0, [1]), Row(1, [2])]
    one.attempt(rows[:1], 1)
    for _ in range(2):
        one.attempt(rows, 3)
    assert seen == [[[1]], [[1]], [[1], [1], [1]], [[1], [2], [2]], [[1], [2], [2]]]
    assert one.known_good == [1]


@pytest.mark.parametrize("item", [{"x": 10}, [{"x": 10}], np.array({"x": 10}, object)])
def test_what_our_collate_does_not_copy_the_model_gets_as_it_was_decoded_each_time(item: Any) -> None:
    """numpy makes an array of dicts, which holds the dicts themselves: a second try and padding would find them changed."""

    def predict(inputs: Any) -> Any:
        for one in inputs.flat:
            one["x"] *= 2
        return [one["x"] for one in inputs.flat]

    one = hooks(predict=predict)
    rows = [Row(0, item), Row(1, copy.deepcopy(item))]
    for size in (2, 8, 8):
        one.attempt(rows, size)
        assert [row.output for row in rows] == [20, 20]


def test_an_item_that_ran_shows_later_whether_the_model_lives() -> None:
    broken: list[int] = []

    def predict(inputs: Any) -> Any:
        if broken:
            raise RuntimeError
        return 2 * np.asarray(inputs)

    one = hooks(predict=predict)
    assert one.alive(1), "nobody knows better"
    assert one.good_row() is None
    one.attempt([Row(0, np.array([np.nan]))], 1)
    assert one.known_good is None
    one.attempt([Row(0, np.array([3.0])), Row(1, np.array([4.0]))], 2)
    assert one.known_good == np.array([3.0])
    assert one.alive(1)
    broken.append(1)
    assert not one.alive(1)
    example = hooks(example=lambda: np.ones(1), predict=lambda inputs: [1, 2, 3])
    row = example.good_row()
    assert row is not None
    assert (row.owner, row.item) == (0, np.ones(1))
    assert example.alive(1), "a wrong number of outputs, but it runs"
    assert not hooks(example=lambda: np.ones(1), predict=lambda inputs: inputs * np.array(np.nan)).alive(1)
    assert not hooks(example=fails(ValueError())).alive(1)
    with pytest.raises(KeyboardInterrupt):
        hooks(example=fails(KeyboardInterrupt())).alive(1)


@pytest.mark.parametrize("hook", ["cost", "decode", "encode", "response_headers", "respond"])
def test_the_operator_may_interrupt_every_hook(hook: str) -> None:
    one = hooks(**{hook: fails(KeyboardInterrupt())})
    calls: dict[str, Any] = {
        "cost": lambda: one.cost(ONE),
        "decode": lambda: one.decode(ONE),
        "encode": lambda: one.encode(Row(0, 1), ONE, True),
        "response_headers": one.headers,
        "respond": lambda: one.answer(ONE, [1], CheckedHeaders()),
    }
    with pytest.raises(KeyboardInterrupt):
        calls[hook]()


def test_what_encode_gives_is_owned_unless_it_is_the_last() -> None:
    result = [1]
    one = hooks(encode=lambda output, item: result)
    assert one.encode(Row(0, 1), ONE, True) is result
    own = one.encode(Row(0, 1), ONE, False)
    assert own == [1]
    assert own is not result
    seen: list[Any] = []
    row = Row(0, "item")
    row.ran("output")
    hooks(encode=lambda output, item: seen.append((output, item))).encode(row, ONE, True)
    assert seen == [("output", "item")]


def test_what_an_encode_that_fails_is_answered() -> None:
    wrong = (500, "the model's output could not be encoded")
    assert told(hooks(encode=fails(ValueError("secret"))).encode(Row(0, 1), ONE, True)) == wrong
    assert told(hooks(encode=fails(SystemExit())).encode(Row(0, 1), ONE, True)) == wrong
    assert told(hooks(encode=fails(BadRequest("mine"))).encode(Row(0, 1), ONE, True)) == (400, "mine")
    assert told(hooks(encode=lambda output, item: BadRequest("mine")).encode(Row(0, 1), ONE, True)) == (400, "mine")
    assert told(hooks(encode=lambda output, item: (x for x in [1])).encode(Row(0, 1), ONE, False)) == wrong


def test_headers_or_why_there_are_none() -> None:
    assert hooks(response_headers=lambda: {"a": 1}).headers() == {"a": "1"}
    assert told(hooks(response_headers=fails(ValueError("secret"))).headers()) == (500, "the handler's response headers failed")
    assert told(hooks(response_headers=fails(BadRequest("mine"))).headers()) == (500, "the handler's response headers failed")
    assert told(hooks(response_headers=lambda: 7).headers()) == (500, "the handler's response headers are not a mapping")


def test_an_answer_or_why_there_is_none() -> None:
    headers = CheckedHeaders({"a": "b"})
    respond = lambda request, results: (results, None)  # noqa: E731
    assert hooks(respond=respond).answer(ONE, [1], headers) == Answer(200, "application/json", b"[1]", headers)
    assert told(hooks(respond=fails(ValueError("secret"))).answer(ONE, [1], headers)) == (
        500,
        "the answer could not be encoded",
    )
    assert told(hooks(respond=fails(SystemExit())).answer(ONE, [1], headers)) == (500, "the answer could not be encoded")
    assert told(hooks(respond=fails(BadRequest("mine"))).answer(ONE, [1], headers)) == (400, "mine")
    text = lambda request, results: (b"x" * 9, "text/plain")  # noqa: E731
    assert isinstance(hooks(9, respond=text).answer(ONE, [1], headers), Answer)
    large = hooks(8, respond=text).answer(ONE, [1], headers)
    assert told(large) == (500, "the answer has 9 bytes, but the server sends at most 8")


def test_a_result_that_is_not_json_is_an_error_in_its_place_and_leaves_the_others_as_they_were() -> None:
    def respond(request: Request, results: list[Any]) -> Any:
        shown = [result.body() if isinstance(result, SlotError) else list(result) for result in results]
        for result in results:
            if isinstance(result, list):
                result.append("changed")
        return shown, None

    refused = Refusal.of(ModelFault("mine"))
    answer = hooks(respond=respond).answer(ONE, [[1], [object], refused], CheckedHeaders())
    assert isinstance(answer, SlotError) or b"changed" not in answer.body
    answer = hooks(respond=respond).answer(ONE, [[1], [float("nan")], refused], CheckedHeaders())
    assert isinstance(answer, Answer)
    wrong = b'{"error": {"code": 500, "message": "the model\'s output could not be encoded"}}'
    assert answer.body == b"[[1], " + wrong + b', {"error": {"code": 500, "message": "mine"}}]'
    answer = hooks(respond=respond).answer(ONE, [[1], [float("nan")]], CheckedHeaders())
    assert isinstance(answer, Answer)
    assert answer.body == b"[[1], " + wrong + b"]"


def test_an_only_result_is_as_it_was_where_it_is_answered_again() -> None:
    def respond(request: Request, results: list[Any]) -> Any:
        results[0]["n"] *= 10
        if results[0]["n"] < 100:
            raise ValueError
        return results[0], None

    assert isinstance(hooks(respond=respond).answer(ONE, [{"n": 5}], CheckedHeaders()), SlotError)


def test_an_engine_without_a_release_frees_nothing() -> None:
    freed: list[int] = []
    hooks().release()
    hooks(engine=type("Engine", (), {"release": 7})()).release()
    hooks(engine=type("Engine", (), {"release": lambda self: freed.append(1)})()).release()
    assert freed == [1]
