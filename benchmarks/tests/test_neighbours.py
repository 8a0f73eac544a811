"""The hostile-neighbour benchmark: its judging finds what a server does wrong, and two real servers are tried."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.comparison import misbehaving
from benchmarks.neighbours import innocents as judging
from benchmarks.neighbours.innocents import CLIENTS, Innocents, Outcome, answer_in, body_of, figures, judge, quiet, values_of
from benchmarks.neighbours.neighbours import Aim, Neighbour
from benchmarks.pages.neighbours import TABLES, cell, draw
from benchmarks.tests.odd_server import serving

ROOT = Path(__file__).resolve().parents[2]
Answer = Callable[[list[int]], tuple[int, bytes, float]]  # values to status, body, seconds


def right(values: list[int]) -> tuple[int, bytes, float]:
    return 200, json.dumps(misbehaving.answer_alone(values, call_s=0)).encode(), 0.0


def doing(answer: Answer) -> Callable[[Any, asyncio.StreamWriter], Awaitable[bool]]:
    """What a server does whose answers these are; status 0: it hangs up."""

    async def answered(request: Any, writer: asyncio.StreamWriter) -> bool:
        status, body, seconds = answer(request["values"])
        await asyncio.sleep(seconds)
        if status:
            writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        return bool(status)

    return answered


def asked(answer: Answer, seconds: float = 0.3) -> dict[str, Any]:
    async def whole() -> dict[str, Any]:
        async with serving(doing(answer)) as target:
            clients = Innocents(target, lambda body: target.request(body, "application/json"))
            await quiet(clients, seconds)
            return figures(clients.outcomes, 0.1, clients.outcomes[-1].ended_s)

    return asyncio.run(whole())


def kinds(row: dict[str, Any]) -> set[str]:
    return {kind for kind in ("right", "lost", "refused", "wrong") if row[kind]}


def test_a_good_server_is_found_good() -> None:
    row = asked(right)
    assert kinds(row) == {"right"}
    assert (row["sent"], row["well_s"], row["texts"]) == (row["right"], 0.0, [])


def test_an_answer_of_somebody_else_is_wrong() -> None:
    before: list[list[int]] = [values_of(17)]

    def mixed_up(values: list[int]) -> tuple[int, bytes, float]:
        before.append(values)
        return right(before[-2])

    row = asked(mixed_up)
    assert kinds(row) == {"wrong"}
    assert row["texts"] == [judging.SWAPPED]
    assert row["swapped"] == row["wrong"]


def test_one_bit_is_wrong() -> None:
    status, body, _ = right(values_of(1))
    answer = json.loads(body)
    answer["probabilities"][2] += 2**-20
    assert judge(status, body, json.loads(body))[0] == "right"
    assert judge(status, json.dumps(answer).encode(), json.loads(body))[0] == "wrong"
    assert judge(200, b"Worker died.", json.loads(body))[0] == "wrong"


def test_503_is_refused_where_it_says_later_and_lost_where_the_batch_failed() -> None:
    words = {b"no worker to serve": "refused", b"Prediction failed": "lost", b"number of batch response mismatched": "lost"}
    assert {text: judge(503, b'{"message": "%s"}' % text, {})[0] for text in words} == words


def test_a_broken_connection_and_an_error_are_lost_and_429_is_refused() -> None:
    turns = iter(range(10**6))

    def broken(values: list[int]) -> tuple[int, bytes, float]:
        return [(0, b"", 0.0), (500, b"Worker died.", 0.0), (429, b"later", 0.0), (503, b"later", 0.0)][next(turns) % 4]

    row = asked(broken)
    assert kinds(row) == {"lost", "refused"}
    assert row["lost"] + row["refused"] == row["sent"]


def test_who_waits_for_ever_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "PATIENCE_S", 0.2)
    row = asked(lambda values: (200, b"", 60.0), 0.1)
    assert kinds(row) == {"lost"}
    assert "no answer within" in row["texts"][0]


def outcomes(*rows: tuple[float, float, str]) -> list[Outcome]:
    return [Outcome(*row) for row in rows]


def test_well_is_after_the_last_that_was_not_right_or_late() -> None:
    good = [(10 + i / 10, 10.05 + i / 10, "right") for i in range(CLIENTS)]
    assert judging.well_s(outcomes(*good), 0.1, 5.0) == 0.0
    assert judging.well_s(outcomes((6.0, 7.5, "lost"), *good), 0.1, 5.0) == 2.5
    assert judging.well_s(outcomes((5.0, 9.0, "right"), *good), 0.1, 5.0) == 4.0  # late
    assert judging.well_s(outcomes((3.0, 4.0, "lost"), *good), 0.1, 5.0) == 0.0  # before the neighbour's end
    assert judging.well_s(outcomes(*good, (12.0, 13.0, "wrong")), 0.1, 5.0) is None


def test_a_delay_shows() -> None:
    rows = [figures(outcomes(*((0.0, wait_s, "right") for _ in range(200)))) for wait_s in (0.01, 0.5)]
    assert [row["p99_ms"] for row in rows] == [10.0, 500.0]


def test_every_innocent_asks_for_something_else_at_the_same_loudness() -> None:
    bodies = {body_of(values_of(number)) for number in range(20_000)}
    assert len(bodies) == 20_000
    assert {max(map(abs, values_of(number))) for number in range(500)} == {100}


def test_answers_of_both_protocols_are_read() -> None:
    answer = misbehaving.answer_alone(values_of(3), call_s=0)
    v2 = {"outputs": [{"name": name.upper(), "data": data} for name, data in answer.items()]}
    assert answer_in(json.dumps(answer).encode()) == answer_in(json.dumps(v2).encode()) == answer
    assert answer_in(b"no json") is None
    assert answer_in(b'{"error": 1}') is None


def test_the_same_row_has_the_same_bits_in_every_batch_until_a_loud_one_comes() -> None:
    rows = [[*values_of(number), 0.0] for number in range(8)]
    for network in (misbehaving.plain, misbehaving.quantised):
        together = misbehaving.predict(rows, network, 0)
        assert all((misbehaving.predict([row], network, 0)[0] == out).all() for row, out in zip(rows, together, strict=True))
    loud = misbehaving.predict([*rows, [999_999] * misbehaving.WIDTH + [0.0]], misbehaving.quantised, 0)
    assert misbehaving.encode(loud[0]) != misbehaving.answer_alone(values_of(0), misbehaving.quantised, 0)


def test_a_neighbour_acts_until_it_is_stopped() -> None:
    async def whole() -> dict[str, int]:
        async with serving(doing(lambda values: (400, b"", 0.0))) as target:
            body = target.request(b'{"values": []}', "application/json")
            neighbour = Neighbour("a bad item", Aim(target.address, "/", {"cut": body}))
            await asyncio.to_thread(neighbour.start)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(neighbour.stop)
            return neighbour.seen

    seen = asyncio.run(whole())
    assert set(seen) == {"400"}


def test_the_page_shows_each_cell(tmp_path: Path) -> None:
    row = {
        "sent": 100,
        "right": 90,
        "lost": 9,
        "refused": 0,
        "wrong": 1,
        "swapped": 1,
        "p99_ms": 50.0,
        "quiet_p99_ms": 20.0,
        "well_s": 3.2,
    }
    row |= {"neighbour": {"400": 7}, "texts": []}
    whole = {**row, "right": 100, "lost": 0, "wrong": 0, "well_s": 0.0}
    assert cell(row) == "9% lost, 1% wrong, well after 3 s"
    assert cell({**whole, "p99_ms": 2040.0}) == "p99 2.0 s"
    assert cell({**row, "well_s": None}) == "9% lost, 1% wrong, not well again"
    assert cell({**whole, "neighbour": {"hidden answered": 3}}) == "3 answered twice"
    assert cell(whole) == "all right"
    used = {"processes": 2, "batch_size": 8, "delay_ms": 10, "packages": ["mosec==1"]}
    part = {"rows": {"a flood": row, "a loud row": {"why": "no batch"}}, "settings": used, "remedies": "none", "load": [1, 2]}
    found = {"neighbours": ["a flood", "a loud row"], "parts": {"Mosec": {**part, "commit": "abcdefgh"}}}
    shown = {"neighbours": {**found, "left_out": {"Triton": "not here"}, "plan": {"limit_s": 30}}}
    assert "| Mosec | 9% lost, 1% wrong, well after 3 s | - |" in TABLES["neighbours.overview"](shown)
    assert "| Mosec | 100 | 9 | 0 | 1 | 1 | 20 | 50 | 3.2 | 7 x 400 |" in TABLES["neighbours.details"](shown)
    assert "* Triton is left out: not here" in TABLES["neighbours.settings"](shown)
    draw(found, tmp_path / "picture.svg")
    assert "Mosec" in (tmp_path / "picture.svg").read_text("utf-8")


def test_the_smoke_run_of_two_servers(tmp_path: Path) -> None:
    """Our own host and TorchServe: a bad item costs ours nobody; TorchServe's handler answers for its batch as one."""
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.neighbours", "--quick", "--only", "ours, own host", "TorchServe"]
    command += ["--neighbours", "a bad item", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = {name: part["rows"]["a bad item"] for name, part in json.loads(file.read_text("utf-8"))["parts"].items()}
    assert rows["ours, own host"]["lost"] == rows["ours, own host"]["wrong"] == 0
    assert rows["TorchServe"]["lost"] > 0
