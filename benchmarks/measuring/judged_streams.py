"""Clients of one streaming server, all of whose pieces are compared with what their requests get alone.

What becomes of a stream: right; lost (an error, or nothing in time, before a piece); cut short (some of its pieces, and then
the end, whether its client was told or not); wrong (another piece at its place). A closed loop: each client reads its stream
to the end before it asks again.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from slotwise.bench.http_connection import Target
from slotwise.bench.load import percentile
from slotwise.bench.stream_load import TimedExchange

CLIENTS, SHORTEST, LONGEST = 32, 4, 64
PATIENCE_S = 15.0
WARM_UP_S = 1.0
ONE_IN = 8
JUNK, ODD = "junk", "odd JSON"
CONTENT_TYPE = "application/json"
MOST_WORDS = 6


class Asked(NamedTuple):
    """One request. do: "" of an innocent one, JUNK, ODD, or what its handler is to fail at."""

    text: str
    tokens: int
    do: str = ""

    def body(self) -> bytes:
        """The same for every server."""
        record = {"id": "1", "text": self.text, "tokens": self.tokens}
        data = {"payload": {"fromLang": "en", "toLang": "fr", "records": [{**record, **({"do": self.do} if self.do else {})}]}}
        if self.do == ODD:
            return b'{"payload": 7}'
        whole = json.dumps(data).encode()
        return whole[: len(whole) // 2] if self.do == JUNK else whole


class Piece(NamedTuple):
    """A piece, and when it came."""

    text: str
    at_s: float


class Came(NamedTuple):
    """What came of an answer. ended: whether it says that it is whole. error: what it says else."""

    pieces: Sequence[Piece]
    ended: bool
    error: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a request. kind: right, lost, cut short or wrong. what: what its client was told, or nothing."""

    do: str
    kind: str
    what: str
    began_s: float
    ended_s: float
    times_s: Sequence[float] = ()


class KeptExchange(TimedExchange):
    """A connection that keeps what came before it broke."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.kept: list[bytes] = []

    def on_body(self, part: bytes) -> None:
        super().on_body(part)
        self.kept.append(part)


def came(body: bytes, marks: Sequence[tuple[int, float]], *, events: bool) -> Came:
    """The pieces of a body. marks: bytes until then, and the time. events: server-sent ones; else each line is an object.

    Lines without events have no end of their own: where the body ends, they do.
    """
    pieces, at, marked = list[Piece](), 0, iter(marks)
    upto, now, kind = 0, 0.0, ""
    *lines, rest = body.split(b"\n")
    for line in lines:
        at += len(line) + 1
        while upto < at:
            upto, now = next(marked)
        if events and line.startswith(b"event: "):
            kind = line[7:].decode()
        said = line.removeprefix(b"data: ") if events else line
        if not said.strip() or (events and said == line):
            continue
        text = _text_in(said)
        if kind == "end":
            return Came(pieces, True)
        if kind or text is None:
            return Came(pieces, False, _error_in(body[at - len(line) - 1 :], said))
        pieces.append(Piece(text, now))
    return Came(pieces, not events and not rest.strip(), f"{rest[:80]!r}" if rest.strip() else "")


def _text_in(line: bytes) -> str | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found.get("text") if isinstance(found, dict) else None


def _error_in(rest: bytes, said: bytes) -> str:
    """What an error says that begins so: its code, where it is JSON that has one."""
    for text in (said, rest):
        try:
            found = json.loads(text)
            return f"an error {found.get('error', found)['code']}"
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return f"an error {said[:60]!r}"


def judge(status: int, answer: Came, due: Sequence[str]) -> tuple[str, str]:
    """What an answer is, and what it told its client."""
    texts = [piece.text for piece in answer.pieces]
    told = answer.error if status == 200 else f"{status}"
    if status != 200 and not texts:
        return "lost", told
    if texts == due and answer.ended:
        return "right", ""
    if texts != due[: len(texts)]:
        return "wrong", told or "nothing: a good end"
    return ("cut short" if texts else "lost"), told or "nothing: a good end"


class StreamClients:
    """Clients of one server for a while. alone(text, tokens): the pieces that are due. do: what one request in eight is."""

    def __init__(
        self, target: Target, texts: Sequence[str], alone: Callable[[str, int], Sequence[str]], do: str = "", seed: int = 0
    ) -> None:
        self.target, self.texts, self.alone, self.do, self.seed = target, texts, alone, do, seed
        self.events = target.headers.get("accept") == "text/event-stream"
        self.outcomes: list[Outcome] = []
        self.patience_s = PATIENCE_S
        self.asked = 0

    async def run(self, seconds: float) -> None:
        """Ask for so many seconds, and wait for the last answers."""
        self.began = time.perf_counter()
        await asyncio.gather(*(self._client(text, number, seconds) for number, text in enumerate(self.texts)))

    async def _client(self, text: str, number: int, seconds: float) -> None:
        draw, exchange = random.Random(1000 * self.seed + number), None
        while time.perf_counter() - self.began < seconds:
            self.asked += 1
            guilty = self.do and self.asked % ONE_IN == 0
            tokens = draw.randint(SHORTEST, LONGEST)
            asked = Asked(text, max(tokens, 2 * SHORTEST), self.do) if guilty else Asked(text, tokens)
            if exchange is None or not exchange.usable:
                exchange = await self._connected()
            if exchange is None or not await self._one(exchange, asked):
                exchange = None
                await asyncio.sleep(0.05)  # do not ask a server that is gone a thousand times a second
        if exchange is not None:
            exchange.close()

    async def _connected(self) -> KeptExchange | None:
        began_s = time.perf_counter() - self.began
        try:
            async with asyncio.timeout(self.patience_s):
                _, exchange = await asyncio.get_running_loop().create_connection(KeptExchange, *self.target.address)
                return exchange
        except OSError:
            self.outcomes.append(Outcome("", "lost", "no connection", began_s, time.perf_counter() - self.began))
            return None

    async def _one(self, exchange: KeptExchange, asked: Asked) -> bool:
        """One request; whether its connection is still good."""
        began, status, broken = time.perf_counter(), 200, ""
        exchange.marks, exchange.kept = [], []
        try:
            async with asyncio.timeout(self.patience_s):
                status, _, _ = await exchange.ask(self.target.request(asked.body(), CONTENT_TYPE))
        except TimeoutError:
            broken = f"nothing more in {self.patience_s:g} s"
        except OSError:
            broken = "the connection broke"
        answer = came(b"".join(exchange.kept), exchange.marks, events=self.events)
        if broken:
            answer = Came(answer.pieces, False, answer.error or broken)
        kind, what = judge(status, answer, list(self.alone(asked.text, asked.tokens)))
        now, times = time.perf_counter() - self.began, [piece.at_s - self.began for piece in answer.pieces]
        self.outcomes.append(Outcome(asked.do, kind, what, began - self.began, now, times))
        return not broken


def summary(outcomes: Sequence[Outcome], from_s: float, to_s: float) -> dict[str, Any]:
    """The numbers of what happened in this time: of all innocents what became of them, of right streams how they came.

    A piece counts where it came in this time and its stream was right in the end.
    """
    innocent = [one for one in outcomes if not one.do]
    right = [one for one in innocent if one.kind == "right"]
    times = [at for one in right for at in one.times_s if from_s <= at < to_s]
    first = sorted(1000 * (one.times_s[0] - one.began_s) for one in right if one.times_s and one.began_s >= from_s)
    gaps = sorted(1000 * (b - a) for one in right for a, b in pairwise(one.times_s) if from_s <= b < to_s)
    whole = sorted(1000 * (one.ended_s - one.began_s) for one in right if one.began_s >= from_s)
    waits = {"first": first, "gap": gaps, "whole": whole}
    counts = Counter(one.kind for one in innocent)
    return {
        "pieces_s": len(times) / (to_s - from_s),
        "streams_s": sum(from_s <= one.ended_s < to_s for one in right) / (to_s - from_s),
        **{f"{name}_p{p}_ms": percentile(values, p) for name, values in waits.items() for p in (50, 99)},
        "innocent": len(innocent),
        **{kind.replace(" ", "_"): counts[kind] for kind in ("right", "lost", "cut short", "wrong")},
        "told": dict(Counter(f"{one.kind}: {one.what}" for one in innocent if one.kind != "right").most_common(MOST_WORDS)),
        "poisoned": len(outcomes) - len(innocent),
        "poisoned_told": dict(Counter(f"{one.kind}: {one.what}" for one in outcomes if one.do).most_common(MOST_WORDS)),
    }
