"""Streams beside other servers': each harm is seen as what it is, and the loop that peers are given does its part."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from benchmarks.comparison.step_model import StepModel
from benchmarks.comparison.stream_systems import SYSTEMS
from benchmarks.measuring import streams_beside, unread
from benchmarks.measuring.judged_streams import JUNK, ODD, Asked, Outcome, StreamClients, came, judge, summary
from benchmarks.pages.streams import TABLES
from benchmarks.tests.odd_server import serving
from slotwise.worker import End, Next, StepEngine

Answer = tuple[int, list[bytes], bool]  # status, chunks, whether it comes to its end; status 0: nothing for a while
RIGHT = [b'{"text": "a"}\n', b'{"text": "b"}\n']


def marked(*chunks: bytes) -> tuple[bytes, list[tuple[int, float]]]:
    body, marks = b"", []
    for i, chunk in enumerate(chunks):
        body += chunk
        marks.append((len(body), float(i)))
    return body, marks


EVENTS = [b'data: {"text": "a"}\n', b'\ndata: {"text": "b"}\n\n', b'event: end\ndata: {"pieces": 2}\n\n']


@pytest.mark.parametrize(
    ("status", "chunks", "events", "kind"),
    [
        (200, RIGHT, False, "right"),
        (200, EVENTS, True, "right"),
        (200, RIGHT[:1], False, "cut short"),
        (200, EVENTS[:2], True, "cut short"),
        (200, [EVENTS[0], b'\nevent: error\ndata: {"error": {}}\n\n'], True, "cut short"),
        (200, [*RIGHT[:1], b'{\n  "code": 503\n}\n'], False, "cut short"),
        (200, [*RIGHT, RIGHT[0]], False, "wrong"),
        (200, RIGHT[1:], False, "wrong"),
        (200, [b"\n"], False, "lost"),
        (503, [b'{\n  "code": 503\n}\n'], False, "lost"),
    ],
)
def test_an_answer_is_what_it_is(status: int, chunks: Sequence[bytes], events: bool, kind: str) -> None:
    body, marks = marked(*chunks)
    assert judge(status, came(body, marks, events=events), ["a", "b"])[0] == kind


def test_an_error_is_told_by_its_code() -> None:
    for chunk, events in ((b'event: error\ndata: {"error": {"code": 500}}\n\n', True), (b'{\n  "code": 503\n}\n', False)):
        assert came(*marked(chunk), events=events).error.split()[-1] in ("500", "503")
    assert came(*marked(b"oh\n"), events=False).error == "an error b'oh'"


def test_a_piece_came_with_its_last_byte() -> None:
    body, marks = marked(b'{"text": "a"}\n{"tex', b't": "b"}\n')
    assert came(body, marks, events=False).pieces == [("a", 0.0), ("b", 1.0)]


def test_poison_is_in_the_body() -> None:
    assert json.loads(Asked("x", 5, "step").body())["payload"]["records"][0]["do"] == "step"
    assert "payload" in json.loads(Asked("x", 5, ODD).body())
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(Asked("x", 5, JUNK).body())


def doing(answer: Callable[[Any], Answer]) -> Callable[[Any, asyncio.StreamWriter], Awaitable[bool]]:
    """What a server does whose answers these are."""

    async def answered(request: Any, writer: asyncio.StreamWriter) -> bool:
        (record,) = request["payload"]["records"]
        status, chunks, ends = answer(record)
        if not status:
            await asyncio.sleep(1)
        writer.write(b"HTTP/1.1 %d x\r\nTransfer-Encoding: chunked\r\n\r\n" % status)
        for chunk in chunks:
            writer.write(b"%x\r\n" % len(chunk) + chunk + b"\r\n")
            await asyncio.sleep(0.002)
        if ends:
            writer.write(b"0\r\n\r\n")
        return ends

    return answered


def lines(record: Any, count: int) -> list[bytes]:
    return [(json.dumps({"text": f"{record['text']}{i}"}) + "\n").encode() for i in range(count)]


def due(text: str, tokens: int) -> list[str]:
    return [f"{text}{i}" for i in range(tokens)]


def asked(answer: Callable[[Any], Answer], do: str = "", patience_s: float = 0.3) -> dict[str, Any]:
    async def whole() -> dict[str, Any]:
        async with serving(doing(answer)) as target:
            clients = StreamClients(target, ["first", "second"], due, do)
            clients.patience_s = patience_s
            await clients.run(0.6)
            return summary(clients.outcomes, 0.0, 0.6)

    return asyncio.run(whole())


def test_innocents_of_a_good_server_lose_nothing() -> None:
    found = asked(lambda record: (200, lines(record, record["tokens"]), True), "step", patience_s=30.0)
    assert found["innocent"] == found["right"] > 0
    assert found["poisoned"] > 0
    assert found["pieces_s"] > 0
    assert 0 < found["gap_p50_ms"] <= found["gap_p99_ms"]
    assert found["told"] == {}


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        (lambda record: (200, lines(record, 2), True), "cut_short", "cut short: nothing: a good end"),
        (lambda record: (200, lines(record, 2), False), "cut_short", "cut short: the connection broke"),
        (lambda record: (503, [b"Prediction failed\n"], True), "lost", "lost: 503"),
        (lambda record: (200, lines({"text": "another"}, 4), True), "wrong", "wrong: nothing: a good end"),
        (lambda record: (0, [], False), "lost", "lost: nothing more in 0.3 s"),
    ],
)
def test_each_harm_is_counted(answer: Callable[[Any], Answer], kind: str, told: str) -> None:
    found = asked(answer)
    assert found[kind] == found["innocent"] > 0
    assert told in found["told"]


class Counting(StepEngine):
    slots = 4

    def prefill_all(self, slots: Sequence[int], items: Sequence[int]) -> list[int]:
        if any(item < 0 for item in items):
            raise RuntimeError("the network cannot read this")
        return list(items)

    def step(self, rows: Sequence[Any]) -> list[int]:
        return [row.token for row in rows]


class Downwards:
    """An author whose answer to n is n, n - 1, ... 1."""

    def advance(self, state: Any, output: int) -> Next | End:
        return End(str(output)) if output == 1 else Next(int(output) - 1, str(output))


def model(*, careful: bool) -> StepModel:
    made = object.__new__(StepModel)
    made.engine, made.handler, made.careful, made.streams = Counting(), Downwards(), careful, {}
    return made


def test_the_loop_of_peers_lets_streams_join_and_leave() -> None:
    loop = model(careful=False)
    said = [loop.turn({"a": 2}), loop.turn({"b": 3}), loop.turn({}), loop.turn({})]
    assert [[(each.key, each.text, each.ended) for each in told] for told in said] == [
        [("a", "2", False)],
        [("b", "3", False), ("a", "1", True)],
        [("b", "2", False)],
        [("b", "1", True)],
    ]
    assert loop.room == 4


def test_a_careful_author_loses_only_the_guilty_prefill() -> None:
    with pytest.raises(RuntimeError):
        model(careful=False).turn({"a": 2, "bad": -1})
    told = model(careful=True).turn({"a": 2, "bad": -1})
    assert [(each.key, each.failed) for each in told] == [("a", False), ("bad", True)]


PIECES = [f"c1-{number};....".encode() for number in range(unread.PIECES)]


@pytest.mark.parametrize(
    ("status", "pieces", "ended", "kind"),
    [
        (200, PIECES, True, "right"),
        (200, PIECES, False, "cut short"),
        (200, PIECES[:9], True, "cut short"),
        (503, [], True, "lost"),
        (0, [], False, "lost"),
        (200, [*PIECES[:9], *PIECES[10:]], True, "wrong"),
        (200, [b"c2-0;", *PIECES[1:]], True, "wrong"),
        (200, [*PIECES, PIECES[0]], True, "wrong"),
    ],
)
def test_beside_who_does_not_read_each_piece_tells_whose_it_is(
    status: int, pieces: Sequence[bytes], ended: bool, kind: str
) -> None:
    assert unread.judge(status, b"".join(pieces), b"c1", ended=ended) == kind


def test_a_server_that_never_gets_well_is_shown_so() -> None:
    row = {"system": "a", "beside": unread.UNREAD, "right": 0, "lost": 8, "cut_short": 0, "wrong": 0, "streams_s": 0.0}
    row |= {"whole_p50_ms": None, "well_after_s": None, "memory_mib": 1.1}
    well = {**row, "beside": unread.NOBODY, "right": 8, "lost": 0, "streams_s": 2.0, "whole_p50_ms": 350.0, "well_after_s": 0.0}
    lines = TABLES["unread.rows"]({"unread": {"rows": [row, well]}}).splitlines()[2:]
    assert lines == [
        f"| a | {unread.UNREAD} | 0 | - | 8 | 0 | 0 | 8 | no | 1.1 |",
        "| a | nobody | 2 | 350 | 0 | 0 | 0 | 8 | at once | 1.1 |",
    ]


def test_the_tables_say_what_was_lost() -> None:
    ends = {"do": "", "began_s": 0.1, "ended_s": 0.9}
    outcomes = [Outcome(kind="right", what="", times_s=[0.2, 0.5], **ends), Outcome(kind="cut short", what="nothing", **ends)]
    spent = {"front": 0.1, "workers": 0.5, "client": 0.1}
    found = {**summary(outcomes, 0.0, 1.0), "shares": spent, "cpu_ms": spent}
    readings = {("t", 32): {name: [streams_beside._reading(found)] * 2 for name in ("ours", "LitServe")}}
    bad = {"system": "LitServe", "poison": "a", **streams_beside._sum([found]), "pieces_s": 3.0, "first_p99_ms": 4.0}
    used = {"processes": 1, "threads": 1, "batch_size": 32, "delay_ms": 2, "front": "", "packages": ["litserve==1"]}
    measured = {"rows": streams_beside._rows(readings), "poisoned": [{**bad, "not_well": 1}], "settings": {"LitServe": used}}
    shown = {
        name: render({"streams_beside": measured}) for name, render in TABLES.items() if name.startswith("streams_beside.")
    }
    assert "| LitServe | 2 | 2 2 | 1 (1 to 1) | 1 (1 to 1) | 100 (100 to 100) |" in shown["streams_beside.rows"]
    assert "| LitServe | 1 cut short, not well again (1 times) of 2 |" in shown["streams_beside.lost"]
    assert "1 x cut short: nothing" in shown["streams_beside.told"]
    assert "| litserve==1 | 0.1 | 0.5 | 0.1 |" in shown["streams_beside.settings"]
    assert [name for name, system in SYSTEMS.items() if system.speed][:2] == ["ours", "LitServe"]
