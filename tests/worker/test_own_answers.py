"""Nobody's value becomes somebody else's, whatever an author does with what a hook returns and with what it gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.worker import BadRequest, BatchHandler, Headers, ModelFault, Settings, SlotError, Unavailable
from slotwise.worker.answer import CheckedHeaders
from slotwise.worker.batch import NOT_RUN
from slotwise.worker.copies import copied
from slotwise.worker.outputs import on_host
from slotwise.worker.ownership import owned
from slotwise.worker.padding import KINDS
from tests.worker.toy import POISON, Toy, ask, begin, expected, shown, started
from tests.worker.untidy import CONTAINERS, HABITS, REFUSED, Untidy

ONE_TO_FOUR = [[1], [2], [3], [4]]


def narrow(handler: Untidy, rows: int | None) -> Untidy:
    if rows is not None:
        vars(handler)["max_rows"] = rows
    begin(handler, handler.wanted)
    handler.calls.clear()
    return handler


def owed(sent: list[Any], container: str) -> list[Any]:
    """What these requests are to get: what each of them alone gets, and nothing from a container that nobody can read."""
    answers = [expected(None if isinstance(body, bytes) else body) for body in sent]
    if container not in REFUSED:
        return answers
    return [(code, [value if value == 400 else 500 for value in values] if values else values) for code, values in answers]


@pytest.mark.parametrize("container", sorted(CONTAINERS))
def test_a_model_that_fills_its_outputs_again_gives_everybody_their_own(container: str) -> None:
    handler = narrow(Untidy(container, frozenset({"reuse", "example"})), 2)
    assert [shown(answer) for answer in ask(handler, ONE_TO_FOUR)] == owed(ONE_TO_FOUR, container)


bodies = st.lists(
    st.one_of(
        st.lists(st.integers(0, 99), min_size=1, max_size=1),
        st.lists(st.one_of(st.integers(0, 99), st.sampled_from(["bad", POISON])), max_size=4),
        st.sampled_from([b"", b"{"]),
    ),
    min_size=1,
    max_size=9,
)


def try_author(container: str, habits: set[str], kind: str, rows: int | None, batches: list[list[Any]]) -> None:
    handler = Untidy(container, frozenset(habits), padding=kind)
    if container in REFUSED and "example" not in habits:
        return  # it does not start
    narrow(handler, rows)
    for sent in batches:
        assert [shown(answer) for answer in ask(handler, sent)] == owed(sent, container if len(handler.calls) else "array")


authors = st.tuples(
    st.sampled_from(sorted(set(CONTAINERS) - REFUSED)),
    st.sets(st.sampled_from(HABITS)),
    st.sampled_from([kind for kind in KINDS if kind != "fixed"]),
    st.one_of(st.none(), st.integers(1, 4)),
    st.lists(bodies, min_size=1, max_size=2),
)


@settings(max_examples=500, deadline=None)
@given(authors)
def test_whatever_an_author_keeps_and_changes_everybody_gets_their_own(author: Any) -> None:
    try_author(*author)


@pytest.mark.long
@settings(max_examples=10_000, deadline=None)
@given(authors)
def test_ten_thousand_authors(author: Any) -> None:
    try_author(*author)


@pytest.mark.parametrize("container", sorted(REFUSED))
@pytest.mark.parametrize("n", range(1, 5))
def test_outputs_that_nobody_can_read_are_nobodys_answer(container: str, n: int) -> None:
    handler = narrow(Untidy(container, frozenset({"example"})), None)
    for _ in range(2):
        answers = [shown(answer) for answer in ask(handler, ONE_TO_FOUR[:n])]
        alone = [shown(ask(narrow(Untidy(container, frozenset({"example"})), None), [body])[0]) for body in ONE_TO_FOUR[:n]]
        assert all(answer in ((200, [500]), one) for answer, one in zip(answers, alone, strict=True))
    if n > 1:
        assert {code for _, [code] in answers} == {500}
    with pytest.raises((ValueError, ModelFault)):
        narrow(Untidy(container), None)


def test_a_tuple_of_rows_is_read_as_rows() -> None:
    class Split(BatchHandler):
        def load(self, model_dir: Any, settings: Settings) -> Any:
            return tuple

        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            return [np.array([float(x) for x in body.split()])]

    for sizes in ([2], [1, 2], [2, 1, 2], [3, 2]):
        handler = begin(Split(), Settings(batch_size=4))
        for n in sizes:
            answers = ask(handler, [b"1 2", b"30 40", b"5 6"][:n])
            assert [answer.value for answer in answers] == [[1.0, 2.0], [30.0, 40.0], [5.0, 6.0]][:n]


@pytest.mark.parametrize("kind", ["none", "static", "bucketed"])
def test_a_collate_that_changes_its_items_changes_nobodys_answer(kind: str) -> None:
    handler = narrow(Untidy("array", frozenset({"items"}), padding=kind), None)
    sent = [[1], [2, POISON], [3], [4], [5]]
    assert [shown(answer) for answer in ask(handler, sent)] == [expected(body) for body in sent]
    assert [shown(answer) for answer in ask(handler, [[1], [2], [3]])] == [(200, [3.0]), (200, [5.0]), (200, [7.0])]


def test_what_collate_noted_on_an_item_is_there_when_it_is_encoded() -> None:
    class Noting(Toy):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            return [{"x": float(value)} for value in __import__("json").loads(body)]

        def example(self) -> Any:
            return {"x": 0.0}

        def collate(self, items: list[Any]) -> Any:
            for item in items:
                item["noted"] = item.get("noted", 0) + 1
            return np.array([[item["x"]] for item in items])

        def encode(self, output: Any, item: Any) -> Any:
            return [float(output[0]), item["noted"]]

    answers = ask(started(Noting()), [[1], [POISON], [3]])
    assert [answer.value for answer in answers[::2]] == [[[3.0, 1]], [[7.0, 1]]]


def test_an_error_is_written_down_when_it_is_raised() -> None:
    shared = BadRequest("mine")

    class Careless(Toy):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            items = super().decode(body, headers)
            return [shared if isinstance(item, SlotError) else item for item in items]

        def respond(self, request: Any, results: list[Any]) -> tuple[Any, str]:
            for result in results:
                if isinstance(result, SlotError):
                    result.message, result.code = f"about {request.id}", 418
            return super().respond(request, results)

    answers = ask(started(Careless()), [["bad", 1], [2, "bad"], [POISON]])
    errors = [record["error"] for answer in answers for record in answer.value if isinstance(record, dict)]
    assert [error["message"] for error in errors] == ["about id-0", "about id-1", "about id-2"]
    assert (shared.message, shared.code) == ("mine", 400)


def test_no_hook_can_change_the_error_that_all_batches_share() -> None:
    NOT_RUN.error().message = "changed"
    assert NOT_RUN.error().message == "there was no time left to run this row"
    assert isinstance(NOT_RUN.error(), Unavailable)
    with pytest.raises(AttributeError):
        NOT_RUN.status = 200  # type: ignore[misc]
    assert NOT_RUN.answer(CheckedHeaders()).status == 503


def test_an_item_that_cannot_be_copied_is_refused_by_name() -> None:
    class Open(Toy):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            return [iter([1])] if body == b"[1]" else super().decode(body, headers)

    assert [answer.code for answer in ask(started(Open()), [[1], [2]])] == [200, 200]
    assert [shown(answer)[1] for answer in ask(started(Open()), [[1], [2]])] == [[500], [5.0]]


def test_what_nobody_can_change_is_not_copied() -> None:
    for value in ("text", b"bytes", 7, 1.5, None, np.float32(1)):
        assert owned(value) is value
    fixed = np.frombuffer(b"12345678", np.uint8).reshape(2, 4)
    own = owned(fixed)
    fixed.shape = (8,)  # its bytes cannot be changed, but how they are seen can
    assert isinstance(own, np.ndarray)
    assert own.shape == (2, 4)
    assert np.shares_memory(own, fixed)
    array = np.zeros(3)
    array.flags.writeable = False
    copies = owned([array, {"a": [1]}, (array,)])
    assert isinstance(copies, list)
    assert copies[0] is not array


def test_what_is_nested_deeper_than_python_calls_is_copied_as_well() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    copy = owned(deep)
    for _ in range(5000):
        assert copy is not deep
        deep, copy = deep[0], copy[0]  # type: ignore[index]


def test_a_copy_of_what_is_nested_shares_no_part_that_can_be_changed() -> None:
    array = np.zeros(2)
    given = {"list": [{"array": array}, array, "text"], "same": array}
    made = copied(given)
    array += 1
    assert isinstance(made, dict)
    assert made["list"][0]["array"] is made["list"][1] is made["same"], "what was one object is one"
    assert made["same"].tolist() == [0, 0]
    assert made["list"][2] == "text"


def test_a_tensor_is_copied_and_read_as_numbers() -> None:
    torch = pytest.importorskip("torch")
    given = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    own = owned(given)
    with torch.no_grad():
        given += 1
    assert own.tolist() == [1, 1]  # type: ignore[attr-defined]
    read = on_host(own)
    assert isinstance(read, np.ndarray)
    assert (read.dtype, read.tolist()) == (np.float32, [1, 1])
    counted = on_host(torch.arange(2))
    assert isinstance(counted, np.ndarray)
    assert counted.dtype == np.int64
