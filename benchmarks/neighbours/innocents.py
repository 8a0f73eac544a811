"""Clients that ask well while a neighbour does not, every answer compared with the answer alone; and what became of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.comparison.misbehaving import answer_alone, plain
from slotwise.bench.http_connection import Connection, HttpReply, Target
from slotwise.client.http_exchange import HttpExchange
from tests.campaign.hostile import p99

CLIENTS = 16
ADDRESS = "127.0.1.{}"  # each client's own, so that a server which shares its places fairly can tell them apart
PAUSE_S = 0.02  # between an answer and the next request
KEPT = 5  # requests on one connection: new clients come all the time
PATIENCE_S = 15.0  # of a client: three times the servers' own timeouts
LATE_S = 1.0  # beyond the quiet p99: not well yet
SETTLED_S = 2.0  # so long everything must be well
LOOK_S = 0.1
REFUSED = (429, 503)
FAILED = (b"Prediction failed", b"number of batch response mismatched")  # with 503: TorchServe's words for a batch that failed
MOST_TEXTS = 3
NEAR = 64  # requests before and after one, whose answers are looked for in its own
SWAPPED = "200, and the answer to another client's request"
Network = Callable[[Any], Any]


@dataclass(frozen=True)
class Outcome:
    """What became of one request. kind: right, refused, lost or wrong. what: words for one that is not right."""

    sent_s: float
    ended_s: float
    kind: str
    what: str = ""

    @property
    def wait_s(self) -> float:
        """Until its end, whichever it was."""
        return self.ended_s - self.sent_s


def values_of(number: int) -> list[int]:
    """Eight whole numbers, others for each number below 39,601. The largest is always 100: all are equally loud."""
    first, second = number % 199 - 99, number // 199 % 199 - 99
    return [first, second, number % 83, -second, first // 2, number % 7, 5, 100]


def body_of(values: Sequence[int], do: str = "") -> bytes:
    """The body that asks for it. do: what is to go wrong (misbehaving.py)."""
    return json.dumps({"values": list(values), **({"do": do} if do else {})}).encode()


def answer_in(data: bytes) -> Mapping[str, Any] | None:
    """The labels and probabilities in an answer, whichever server's; None where there are none."""
    try:
        found = json.loads(data)
        if isinstance(found, list):  # BentoML's, of the one file that was sent
            (found,) = found
        if "outputs" in found:  # the Open Inference Protocol
            found = {output["name"].lower(): output["data"] for output in found["outputs"]}
        return {key: found[key] for key in ("labels", "probabilities")}
    except (ValueError, KeyError, TypeError):
        return None


def judge(status: int, data: bytes, due: Mapping[str, Any]) -> tuple[str, str]:
    """The kind of an answer, and words where it is not right."""
    if status == 200:
        right = answer_in(data) == due
        return ("right", "") if right else ("wrong", f"200 {data[:120]!r}")
    refused = status in REFUSED and not any(words in data for words in FAILED)
    return "refused" if refused else "lost", f"{status} {data[:120]!r}"


class Client(Connection):
    """One client with an address of its own, and its connection: kept for a few requests, made anew where it broke."""

    def __init__(self, target: Target, number: int) -> None:
        super().__init__(target)
        self.own = (ADDRESS.format(number + 1), 0)
        self._asked = 0

    async def ask(self, request: bytes) -> HttpReply:
        """See Connection."""
        if self._asked % KEPT == 0:
            self.close()
        self._asked += 1
        return await super().ask(request)

    async def connected(self) -> HttpExchange:
        """See Connection."""
        loop = asyncio.get_running_loop()
        _, exchange = await loop.create_connection(HttpExchange, *self.address, local_addr=self.own)
        return exchange


class Innocents:
    """CLIENTS clients of one server. request: the bytes that ask it for a body. due: what values are answered alone."""

    def __init__(self, target: Target, request: Callable[[bytes], bytes], network: Network = plain) -> None:
        self.target, self.request, self.network = target, request, network
        self.outcomes: list[Outcome] = []
        self.waiting: dict[int, float] = {}  # since when, by number
        self.over = False
        self._numbers = itertools.count(1)

    async def ask(self) -> None:
        """All of them, until `over`; a request that is under way then is waited for."""
        await asyncio.gather(*(self._client(Client(self.target, number)) for number in range(CLIENTS)))

    async def _client(self, client: Client) -> None:
        while not self.over:
            self.outcomes.append(await self._asked(client, next(self._numbers)))
            await asyncio.sleep(PAUSE_S)
        client.close()

    async def _asked(self, client: Client, number: int) -> Outcome:
        values = values_of(number)
        due, sent_s = _alone(values, self.network), time.monotonic()
        self.waiting[number] = sent_s
        try:
            reply = await asyncio.wait_for(client.ask(self.request(body_of(values))), PATIENCE_S)
            kind, what = judge(reply.status, reply.body, due)
            if kind == "wrong" and self._of_another(number, answer_in(reply.body)):
                what = SWAPPED
        except TimeoutError:
            client.close()
            kind, what = "lost", f"no answer within {PATIENCE_S:.0f} s"
        except (OSError, EOFError, ValueError) as error:
            client.close()
            kind, what = "lost", repr(error)
        del self.waiting[number]
        return Outcome(sent_s, time.monotonic(), kind, what)

    def _of_another(self, number: int, answer: Mapping[str, Any] | None) -> bool:
        """Whether this answer to one request is another's."""
        others = (each for each in range(max(1, number - NEAR), number + NEAR) if each != number)
        return any(answer == _alone(values_of(each), self.network) for each in others)

    def well_since(self, since_s: float, quiet_p99_s: float) -> bool:
        """Whether all that ended since then was right and in time, and nobody waits for long."""
        ended = [outcome for outcome in self.outcomes if outcome.ended_s >= since_s]
        stuck = any(time.monotonic() - sent_s > quiet_p99_s + LATE_S for sent_s in self.waiting.values())
        return len(ended) >= CLIENTS and not stuck and not any(is_bad(outcome, quiet_p99_s) for outcome in ended)


def _alone(values: Sequence[int], network: Network) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = answer_alone(values, network, call_s=0)
    return answer


def is_bad(outcome: Outcome, quiet_p99_s: float) -> bool:
    """Whether this one shows that the server is not well."""
    return outcome.kind != "right" or outcome.wait_s > quiet_p99_s + LATE_S


async def quiet(innocents: Innocents, seconds: float) -> None:
    """The innocents alone, so long."""
    asking = asyncio.create_task(innocents.ask())
    await asyncio.sleep(seconds)
    innocents.over = True
    await asking


async def beside(innocents: Innocents, seconds: float, stop: Callable[[], None], limit_s: float, quiet_p99_s: float) -> float:
    """The innocents beside a neighbour that has begun, so long, and until they are well again or limit_s are over.

    stop: ends the neighbour. Returns when that was.
    """
    asking = asyncio.create_task(innocents.ask())
    await asyncio.sleep(seconds)
    await asyncio.to_thread(stop)
    stopped_s = time.monotonic()
    while time.monotonic() < stopped_s + limit_s:
        await asyncio.sleep(LOOK_S)
        if time.monotonic() > stopped_s + SETTLED_S and innocents.well_since(time.monotonic() - SETTLED_S, quiet_p99_s):
            break
    innocents.over = True
    await asking
    return stopped_s


def figures(outcomes: Sequence[Outcome], quiet_p99_s: float | None = None, stopped_s: float = 0.0) -> dict[str, Any]:
    """What became of them, in numbers: of a quiet time, or until the neighbour's end and the server was well.

    p99_ms: of all, however they ended. well_s: from the neighbour's end until the last that was not right or late; None where
    the last of all was.
    """
    well = None if quiet_p99_s is None else well_s(outcomes, quiet_p99_s, stopped_s)
    if well is not None:
        outcomes = [outcome for outcome in outcomes if outcome.sent_s <= stopped_s + well]
    kinds = Counter(outcome.kind for outcome in outcomes)
    row: dict[str, Any] = {"sent": len(outcomes), **{kind: kinds[kind] for kind in ("right", "lost", "refused", "wrong")}}
    row["swapped"] = sum(outcome.what == SWAPPED for outcome in outcomes)
    row["p99_ms"] = round(1000 * p99([outcome.wait_s for outcome in outcomes]), 1)
    row["texts"] = list(itertools.islice(dict.fromkeys(o.what for o in outcomes if o.what), MOST_TEXTS))
    return row if quiet_p99_s is None else {**row, "well_s": well}


def well_s(outcomes: Sequence[Outcome], quiet_p99_s: float, stopped_s: float) -> float | None:
    """Seconds from the neighbour's end until the server was well; None where it was not, as far as it was looked at."""
    bad = [outcome.ended_s for outcome in outcomes if is_bad(outcome, quiet_p99_s)]
    if not bad:
        return 0.0
    after = sum(outcome.ended_s > max(bad) for outcome in outcomes)
    return round(max(0.0, max(bad) - stopped_s), 1) if after >= CLIENTS else None
