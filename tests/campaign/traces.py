"""Timed traces of several requests at once, at a host of our own: what one request does to the next.

After GRIEF (arXiv 2605.11202): what is made up is no single request, but which requests come when. A case is one trace:
valid and bad requests over several protocols, streams, clients that leave, deadlines, and an operator, each at a time. It is
one of a few hand-made traces after some mutations: calls added, left out, moved, squeezed together, repeated. What must hold:
each answer is the one that its request gets alone; nobody waits without an end; nothing is open at rest. A trace that breaks
something is sent again three times, and the failure says how often it broke again. Other than there, nothing is learnt from
the server while a trace runs, so that a case follows from its seed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import httpx

from slotwise.client.management import ManagementClient
from slotwise.frontend import process as gateway_process
from slotwise.server.lifecycle import ServerRecord
from tests.backends.streaming_models import STEPS, streaming_archive
from tests.campaign.cases import Case, Part
from tests.campaign.own_server import own_home, started
from tests.campaign.tally import Tally
from tests.server.conftest import build_handler

WORKERS = 2
SETTINGS = {"batch_size": 4, "max_batch_delay": 5, "initial_workers": WORKERS, "response_timeout": 20}
MOST_CALLS, LENGTH_MS, MOST_KILLS = 40, 1500, 2
PATIENCE_S, REST_S, REPLAYS = 30.0, 20.0, 3
TEXTS = ("plain", "plain", "plain", "bad", "slow", "boom", "kill")
EVENTS = {"accept": "text/event-stream"}
POISON = (660, 10)  # at its seventh token the engine raises, for everybody in the step


@dataclass(frozen=True)
class Call:
    """One call of a trace. at_ms: when. how: the protocol, `sums`, `stream`, or what an operator does (`default`, `scale`).

    texts: what the model gets. version: the model's; empty for the default. deadline_ms: from its start on; 0 for none.
    leaves_ms: when its client hangs up; 0 for never. numbers: of `sums` and `stream` the first number and the tokens.
    """

    at_ms: int
    how: str
    texts: tuple[str, ...] = ()
    version: str = ""
    deadline_ms: int = 0
    leaves_ms: int = 0
    numbers: tuple[int, int] = (0, 0)
    workers: int = WORKERS


Trace = tuple[Call, ...]


def every(step_ms: int, n: int, how: str, *texts: str, numbers: tuple[int, int] = (0, 0), **more: Any) -> Trace:
    """The same call n times. numbers: of the first one; each next one begins with one more."""
    first, tokens = numbers
    return tuple(Call(step_ms * i, how, texts, numbers=(first + i, tokens) if tokens else (0, 0), **more) for i in range(n))


BASES: tuple[Trace, ...] = (
    every(0, 8, "predict", "plain"),
    (*every(10, 8, "predict", "plain"), Call(15, "predict", ("boom",)), Call(35, "predict", ("kill",))),
    (*every(5, 3, "v1", "plain", "bad", "plain"), *every(6, 3, "v2", "plain", "bad", "plain"), Call(7, "v1", ("boom",))),
    (*every(20, 6, "stream", numbers=(0, 12)), Call(30, "stream", numbers=(50, 40), leaves_ms=20)),
    (Call(0, "stream", numbers=(1, 30)), Call(5, "sums", numbers=POISON), *every(5, 6, "sums", numbers=(0, 5))),
    (*every(15, 12, "predict", "plain"), Call(40, "default", version="2.0"), Call(90, "default", version="1.0")),
    (*every(15, 6, "predict", "slow", deadline_ms=60), *every(9, 9, "predict", "plain")),
    (*every(1, 6, "predict", "slow", leaves_ms=20), *every(8, 6, "v2", "plain", version="2.0")),
    (*every(25, 10, "predict", "plain"), Call(50, "scale", workers=1), Call(150, "scale", workers=2)),
)


def made(draw: Random) -> Trace:
    """One of the hand-made traces, changed."""
    calls = list(draw.choice(BASES)) + (list(draw.choice(BASES)) if draw.random() < 0.4 else [])
    for _ in range(draw.randint(1, 6)):
        change = draw.randrange(6)
        i = draw.randrange(len(calls))
        if change == 0:
            calls.append(_any_call(draw))
        elif change == 1 and len(calls) > 2:
            calls.pop(i)
        elif change == 2:
            calls[i] = replace(calls[i], at_ms=draw.randrange(LENGTH_MS))
        elif change == 3:  # all of them at once
            at_ms = draw.randrange(200)
            calls = [replace(call, at_ms=at_ms if draw.random() < 0.8 else call.at_ms) for call in calls]
        elif change == 4:
            calls += [calls[i]] * draw.randint(1, 6)
        else:
            calls[i] = replace(calls[i], leaves_ms=draw.choice((0, 1, 10, 120)), deadline_ms=draw.choice((0, 1, 30, 300)))
    return _without_many_kills(calls[:MOST_CALLS])


def _any_call(draw: Random) -> Call:
    at_ms, how = draw.randrange(LENGTH_MS), draw.choice(("predict", "v1", "v2", "sums", "stream"))
    if how in ("sums", "stream"):
        return Call(at_ms, how, numbers=draw.choice((POISON, (draw.randrange(100), draw.randint(1, 40)))))
    texts = tuple(draw.choice(TEXTS) for _ in range(1 if how == "predict" else draw.randint(1, 5)))
    return Call(at_ms, how, texts, draw.choice(("", "1.0", "2.0")))


def _without_many_kills(calls: list[Call]) -> Trace:
    """A model whose workers die again and again is started more and more slowly; that is another part's."""
    kept: list[Call] = []
    for call in calls:
        kills = "kill" in call.texts
        if not kills or sum("kill" in one.texts for one in kept) < MOST_KILLS:
            kept.append(call)
    return tuple(kept)


class TracePlace:
    """A host of our own with two versions of one model, and one that decodes in steps."""

    def __init__(self, record: ServerRecord, url: str) -> None:
        self.record, self.url, self.sent = record, url, 0
        self.killers = 0
        self.batched = 0  # answers from a batch of several

    def whole(self) -> None:
        """As it was: every worker there, version 1.0 the default."""
        with ManagementClient(self.record) as client:
            client.set_default("traced", "1.0")
            client.scale("traced", WORKERS, version="1.0")
            for version in ("1.0", "2.0"):
                client.wait_ready("traced", WORKERS, version=version)
            client.wait_ready("sums", WORKERS)

    def run(self, trace: Trace) -> tuple[int, list[tuple[str, str]]]:
        """Send the trace. How many innocents it had, and what broke: what of (tests/campaign/tally.py), and how."""
        return asyncio.run(self._run(trace))

    async def _run(self, trace: Trace) -> tuple[int, list[tuple[str, str]]]:
        began = time.monotonic()
        async with contextlib.AsyncExitStack() as clients:
            mine = await clients.enter_async_context(self._client("127.0.0.1"))
            calling = []
            for call in trace:  # who ends a worker is shut out for a while: each time another one does
                self.killers += (kills := "kill" in call.texts)
                address = f"127.1.{self.killers // 250}.{self.killers % 250 + 1}"
                client = await clients.enter_async_context(self._client(address)) if kills else mine
                calling.append(self._called(client, call, began))
            broken = [each for one in await asyncio.gather(*calling) for each in one]
        innocents = sum(map(_innocent, trace))
        if left := self._open_at_rest():
            broken.append(("leaks", f"{left:g} requests are open at rest"))
        return innocents, broken

    def _client(self, address: str) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        transport = httpx.AsyncHTTPTransport(verify=False, local_address=address, limits=limits)
        return httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S, transport=transport)

    async def _called(self, client: httpx.AsyncClient, call: Call, began: float) -> list[tuple[str, str]]:
        await asyncio.sleep(max(0.0, began + call.at_ms / 1000 - time.monotonic()))
        task = asyncio.ensure_future(self._sent(client, call))
        try:
            return await asyncio.wait_for(task, call.leaves_ms / 1000 if call.leaves_ms else PATIENCE_S)
        except TimeoutError:
            return [] if call.leaves_ms else [("hangs", f"no answer within {PATIENCE_S:g} s: {call}")]
        except httpx.HTTPError as error:
            return [("lost", f"{type(error).__name__}: {call}")]

    async def _sent(self, client: httpx.AsyncClient, call: Call) -> list[tuple[str, str]]:
        if call.how in ("default", "scale"):
            return await asyncio.to_thread(self._operated, call)
        if call.how in ("sums", "stream"):
            return await _summed(client, call)
        texts = [f"{text} {(number := self._number())} {'x' * (number % 7 * 999)}" for text in call.texts]
        path = "/predictions/traced" + (f"/{call.version}" if call.version else "")
        headers = {"x-deadline-ms": str(int(time.time() * 1000) + call.deadline_ms)} if call.deadline_ms else {}
        if call.how == "predict":
            answer = await client.post(path, content=texts[0].encode(), headers=headers)
            said = [answer.json()] if answer.status_code == 200 else []
        elif call.how == "v1":
            instances = [{"b64": base64.b64encode(text.encode()).decode()} for text in texts]
            answer = await client.post("/v1/models/traced:predict", json={"instances": instances}, headers=headers)
            said = answer.json()["predictions"] if answer.status_code == 200 else []
        else:
            path = "/v2/models/traced" + (f"/versions/{call.version}" if call.version else "") + "/infer"
            inputs = [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}]
            answer = await client.post(path, json={"inputs": inputs}, headers=headers)
            said = _v2_rows(answer.json(), len(texts)) if answer.status_code == 200 else []
        self.batched += int(answer.headers.get("x-batch-size", 0)) > 1
        return _judged(call, texts, answer, said)

    def _number(self) -> int:
        self.sent += 1
        return self.sent

    def _operated(self, call: Call) -> list[tuple[str, str]]:
        with ManagementClient(self.record) as client:
            if call.how == "default":
                client.set_default("traced", call.version or "2.0")
            else:
                client.scale("traced", call.workers, version="1.0")
        return []

    def _open_at_rest(self) -> float:
        """The requests without an outcome, once nobody asks any more."""
        until = time.monotonic() + REST_S
        while (left := self._open_requests()) and time.monotonic() < until:
            time.sleep(0.05)
        return left

    def _open_requests(self) -> float:
        lines = httpx.get(f"{self.record.metrics_url}/metrics", timeout=PATIENCE_S).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("slotwise_host_open_requests{"))


def _innocent(call: Call) -> bool:
    """Whether it must be answered: nothing that it asks for fails, and its client waits."""
    fails = call.numbers == POISON or {"bad", "boom", "kill"} & {*call.texts}
    return call.how not in ("default", "scale") and not (fails or call.deadline_ms or call.leaves_ms)


def _judged(call: Call, texts: list[str], answer: httpx.Response, said: list[Any]) -> list[tuple[str, str]]:
    """What is wrong with the answer to these texts."""
    about = f"{answer.status_code} {answer.text[:120]!r}: {call}"
    if answer.status_code != 200:
        planned = {504, 500} if call.deadline_ms else {500}
        if _innocent(call):
            return [("lost", about)]
        return [("unplanned", about)] if answer.status_code >= 500 and answer.status_code not in planned else []
    if len(said) != len(texts):
        return [("wrong", about)]
    return [("wrong", about) for text, one in zip(texts, said, strict=True) if not _right(call, text, one)]


def _right(call: Call, text: str, one: Any) -> bool:
    begins = text.partition(" ")[0]
    if begins in ("bad", "boom", "kill"):
        return not isinstance(one, dict) or "said" not in one
    if not isinstance(one, dict) or "said" not in one:
        return bool(call.deadline_ms)
    versions = (call.version,) if call.version and call.how != "v1" else ("1.0", "2.0")
    return bool(one["said"] == text and one["version"] in versions)


def _v2_rows(content: Any, n: int) -> list[Any]:
    """A record's answer, or None where it is an error."""
    errors = json.loads(content.get("parameters", {}).get("errors", "{}"))
    outputs = {each["name"]: each["data"] for each in content["outputs"]}
    rows = [json.loads(row) if isinstance(row, str) and row.startswith("{") else row for row in next(iter(outputs.values()))]
    if {"said", "version"} <= outputs.keys():
        rows = [{"said": said, "version": version} for said, version in zip(outputs["said"], outputs["version"], strict=True)]
    return [None if str(i) in errors else row for i, row in enumerate(rows)]


async def _summed(client: httpx.AsyncClient, call: Call) -> list[tuple[str, str]]:
    first, tokens = call.numbers
    headers = EVENTS if call.how == "stream" else {"accept": "text/plain"}
    answer = await client.post("/predictions/sums", content=f"{first} {tokens}", headers=headers)
    about = f"{answer.status_code} {answer.text[:200]!r}: {call}"
    if call.numbers == POISON:
        ended = "event: error" in answer.text or answer.status_code == 500
        return [] if ended else [("wrong", about)]
    if answer.status_code != 200:
        return [("lost", about)] if _innocent(call) else []
    pieces = answer.text.split()
    if call.how == "stream":
        if "event: error" in answer.text:
            return [("lost", about)] if _innocent(call) else []
        texts = [json.loads(line[6:]).get("text") for line in answer.text.splitlines() if line.startswith("data: ")]
        pieces = [text.strip() for text in texts if text is not None]
    sums = [piece.partition("/")[0] for piece in pieces]
    return [] if sums == [str(first + k) for k in range(tokens)] else [("wrong", about)]


def try_trace(place: TracePlace, i: int, draw: Random, tally: Tally) -> None:
    """One trace; one that breaks something three times more."""
    trace = made(draw)
    innocents, broken = place.run(trace)
    tally.requests += len(trace)
    tally.innocents += innocents
    tally.measured["answers from batches of several"] = place.batched
    place.whole()
    if broken:
        again = 0
        for _ in range(REPLAYS):
            again += bool(place.run(trace)[1])
            place.whole()
        for kind, what in broken:
            tally.fail(i, kind, f"again in {again} of {REPLAYS}: {what}")


@contextlib.contextmanager
def start(work: Path, scale: float) -> Iterator[Case]:
    """Give what tries one trace."""
    store = work / "store"
    archives = [build_handler("traced", work / v / "store", work, handler="traced", version=v) for v in ("1.0", "2.0")]
    streaming_archive(work, "sums", STEPS, store)
    for version, archive in zip(("1.0", "2.0"), archives, strict=True):
        archive.rename(store / f"traced-{version}.mar")
    with own_home(work / "home"):
        record = started("slotwise", store)
        with ManagementClient(record) as client:
            for name in ("traced-1.0", "traced-2.0", "sums"):
                client.register(f"{name}.mar", **SETTINGS)
        options = ["--port", "0", "--translation-port", "-1", "--grpc-port", "-1", "--drain-delay-s", "0"]
        options += ["--max-queued", str(MOST_CALLS)]  # all may come in one moment on a busy machine
        front = gateway_process.start_detached("default", options)
        try:
            place = TracePlace(record, front.url)
            place.whole()
            yield lambda i, draw, tally: try_trace(place, i, draw, tally)
        finally:
            gateway_process.stop()


PART = Part("traces", "timed traces of requests at a host of our own, each answer compared with its answer alone", 2000, start)
