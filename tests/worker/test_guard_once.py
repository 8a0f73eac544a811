"""A stranger's handler that must not be asked twice: alone, once, and each piece is the request's that it was sent for."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ts.handler_utils import utils
from ts.protocol import otf_message_handler

from slotwise.worker.guard.held_metrics import HeldMetrics
from slotwise.worker.guard.intermediate import NOT_NOW, Gone, Intermediate
from slotwise.worker.guard.once import Once
from slotwise.worker.guard.owned import Owned
from tests.worker.strangers import ask


def notes() -> Any:
    """Lists where a call that fails may leave something: nobody puts back what is a logger's."""
    kept: Any = logging.Logger("notes")
    kept.kept, kept.asked, kept.ended, kept.rows, kept.ids = [], [], [], [], []
    return kept


class Theirs:
    """What the body says, word by word: pieces, and what goes wrong."""

    def __init__(self, pieces: Intermediate) -> None:
        self.send, self.notes = pieces.send, notes()

    kept = property(lambda self: self.notes.kept)
    asked = property(lambda self: self.notes.asked)
    ended = property(lambda self: self.notes.ended)

    def __call__(self, data: Any, context: Any) -> list[Any]:
        self.asked.append([bytes(row["body"]) for row in data])
        for word in self.asked[-1][0].decode().split():
            if word == "fail":
                raise ValueError("json")
            if word == "exit":
                raise SystemExit
            if word == "old":  # for the request before this one
                self.send(["old"], self.kept[-1], "", 200, context)
            elif word == "thread":
                thread = threading.Thread(target=self._quietly, args=(context,))
                thread.start()
                thread.join()
            elif word == "swallow":
                self._quietly(context, object())
            elif word == "status":
                context.set_response_status(418, "", 0)
            else:
                self.send([word], context.request_ids, "", 200, context)
        self.kept.append(dict(context.request_ids) | {"of": len(self.kept)})
        self.ended.append(1)
        return ["."]

    def _quietly(self, context: Any, piece: Any = "stray") -> None:
        with contextlib.suppress(Exception):
            self.send([piece], context.request_ids, "", 200, context)


def once(**terms: Any) -> tuple[Once, Theirs]:
    pieces = Intermediate()
    theirs = Theirs(pieces)
    return Once(theirs, HeldMetrics(), pieces=pieces, together=False, **terms), theirs


GOOD, BAD = ["a", "b", "c", "status"], ["fail", "exit", "old", "thread", "swallow"]
bodies = st.lists(st.lists(st.sampled_from(GOOD + BAD), max_size=4).map(" ".join), min_size=1, max_size=6)


@given(bodies)
def test_each_gets_its_own_pieces_in_one_or_its_own_error(sent: list[str]) -> None:
    guarded, theirs = once()
    slots = ask(guarded, [body.encode() for body in sent])
    assert theirs.asked == [[body.encode()] for body in sent]  # alone, in order, once
    for body, slot in zip(sent, slots, strict=True):
        if set(body.split()) & set(BAD):
            assert slot.status in (400, 500)
            assert b"stray" not in slot.body
        else:
            assert slot.body.decode() == "".join(word for word in body.split() if word != "status") + "."
            assert slot.status == (418 if "status" in body else 200)


def test_pieces_go_to_who_waits_for_them_and_the_rest_is_the_answer() -> None:
    guarded, _ = once()
    came: list[bytes] = []

    def take(piece: Owned) -> bool:
        came.append(piece.body)
        return True

    guarded.on_piece = take
    assert ask(guarded, [b"a b c"])[0].body == b"."
    assert came == [b"a", b"b", b"c"]


def test_one_whose_client_has_gone_runs_to_its_end() -> None:
    """It may keep what it clears only there, and the next request would find that."""
    guarded, theirs = once()

    def gone(piece: Owned) -> bool:
        raise Gone

    guarded.on_piece = gone
    ask(guarded, [b"a b"])
    assert len(theirs.ended) == 1
    guarded.on_piece = None
    assert ask(guarded, [b"a b"])[0].body == b"ab."


@pytest.mark.parametrize("word", ["old", "swallow", "long"])
def test_one_whose_piece_cannot_be_sent_runs_to_its_end(word: str) -> None:
    guarded, theirs = once(max_response_bytes=3)
    slots = ask(guarded, [b"a", f"a {word} b".encode(), b"c"])
    assert [(slot.status, slot.body) for slot in slots[::2]] == [(200, b"a."), (200, b"c.")]
    assert (slots[1].status, len(theirs.ended)) == (500, 3)


def test_one_that_fails_after_a_piece_that_could_not_be_sent_is_answered_for_the_piece() -> None:
    guarded, _ = once()
    (slot,) = ask(guarded, [b"a swallow fail"])
    assert (slot.status, b"cannot be sent" in slot.body) == (500, True)


def test_pieces_outside_of_a_call_go_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    guarded, theirs = once()
    theirs.send(["stray"], {0: "id-0"}, "", 200, None)
    assert caplog.messages == [NOT_NOW]
    assert ask(guarded, [b"a"])[0].body == b"a."


def test_who_was_not_begun_in_half_of_the_response_timeout_is_503() -> None:
    now, asked = [0.0], list[bytes]()

    def theirs(data: Any, context: Any) -> list[Any]:
        asked.append(data[0]["body"])
        now[0] += 10.0
        return ["."]

    guarded = Once(theirs, HeldMetrics(), pieces=Intermediate(), response_timeout_s=60.0, clock=lambda: now[0])
    bodies = [b"a", b"b", b"c", b"d", b"e"]
    assert [slot.status for slot in ask(guarded, bodies)] == [200, 200, 200, 503, 503]
    assert asked == bodies[:3]


def test_an_answer_that_grows_too_long_is_an_error() -> None:
    guarded, _ = once(max_response_bytes=3)
    assert [slot.status for slot in ask(guarded, [b"a b", b"a b c"])] == [200, 500]


def test_it_takes_the_place_of_the_servers_function(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (utils, otf_message_handler):
        monkeypatch.setattr(module, "send_intermediate_predict_response", None)
    pieces = Intermediate()
    pieces.install()
    assert utils.send_intermediate_predict_response == otf_message_handler.send_intermediate_predict_response == pieces.send


class Steps:
    """Called until its criterion stops it: what the body says, a word a call."""

    def __init__(self) -> None:
        self.notes = notes()

    rows = property(lambda self: self.notes.rows)
    ids = property(lambda self: self.notes.ids)

    def __call__(self, data: Any, context: Any) -> list[Any]:
        context.cache = cache = getattr(context, "cache", {})
        (identity,) = context.request_ids.values()
        (row,) = data
        self.rows.append(row)
        self.ids.append(identity)
        if identity not in cache:
            cache[identity] = bytes(row["body"]).decode().split()
        words = cache[identity]
        word = words.pop(0)
        if word == "fail":
            raise ValueError("json")
        if word == "exit":
            raise SystemExit
        if word == "status":
            context.set_response_status(418, "", 0)
        if identity not in self.ids[:-1]:
            context.set_response_header(0, "x-first", word)
        context.stopping_criteria = [] if word == "unset" else [lambda answer: None if word == "none" else not words]
        return [word]


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "c", "fail", "exit", "status", "none"]), min_size=1, max_size=4), min_size=1)
)
def test_one_that_is_called_until_it_stops_gives_each_its_own(sent: list[list[str]]) -> None:
    pieces, theirs = Intermediate(), Steps()
    guarded = Once(theirs, HeldMetrics(), pieces=pieces, steps=True, together=False)
    slots = ask(guarded, [" ".join(words).encode() for words in sent])
    for words, slot in zip(sent, slots, strict=True):
        bad = [word for word in words if word in ("fail", "exit", "status", "none")]
        if not bad:
            assert (slot.status, slot.body.decode()) == (200, "".join(words))
            assert slot.headers["x-first"] == words[0]
        else:
            assert slot.status in {"fail": (400, 500), "status": (418,)}.get(bad[0], (500,))
    assert len(set(theirs.ids)) == len(sent)  # its own ids, whatever the clients'
    assert [bool(row) for row in theirs.rows].count(True) == len(sent)  # the row comes once


def test_one_that_forgets_its_criterion_in_the_middle_has_no_end() -> None:
    guarded = Once(Steps(), HeldMetrics(), pieces=Intermediate(), steps=True, together=False)
    slots = ask(guarded, [b"unset b", b"a unset b"])
    assert [(slot.status, slot.body) for slot in slots[:1]] == [(200, b"unset")]
    assert slots[1].status == 500


def test_an_answer_without_an_end_is_an_error() -> None:
    class Endless(Steps):
        def __call__(self, data: Any, context: Any) -> list[Any]:
            context.stopping_criteria = [lambda answer: False]
            return ["a"]

    guarded = Once(Endless(), HeldMetrics(), pieces=Intermediate(), steps=True, together=False, max_response_bytes=1000)
    assert [slot.status for slot in ask(guarded, [b"x", b"y"])] == [500, 500]


class Tokens:
    """Sends the tokens of a body, which it gathers on `self`; clears them at its own end."""

    def __init__(self, pieces: Intermediate) -> None:
        self.pieces, self.tokens = pieces, list[str]()

    def handle(self, data: Any, context: Any) -> list[str]:
        for word in data[0]["body"].decode().split():
            if word == "fail":
                raise ValueError
            self.tokens.append(word)
        answer, self.tokens = " ".join(self.tokens), []
        return [answer]


def test_what_one_that_failed_has_left_is_in_nobodys_answer_but_of_a_sequence() -> None:
    for sequence, wanted in ((False, b"b c"), (True, b"secret b c")):
        pieces = Intermediate()
        guarded = Once(Tokens(pieces).handle, HeldMetrics(), pieces=pieces, sequence=sequence, together=False)
        first, second = ask(guarded, [b"secret fail", b"b c"])
        assert (first.status, second.body) == (500, wanted)
