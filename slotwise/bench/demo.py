"""Send 32 requests at once, 29 digits and 3 bad bodies, and show who got what, in which batch and slot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from slotwise.bench.bodies import RequestBody, bad_http_bodies, examples
from slotwise.bench.http_connection import Connection, HttpReply, Target, run
from slotwise.console import table
from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.server.record import ServerRecord

REQUESTS = 32
BAD_AT = (5, 14, 23)
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class DemoRequest:
    """One request. sent: the digit, or what is wrong with the body. got: the label, or the error's message.

    right: whether it got what it should.
    """

    number: int
    sent: str
    bad: bool
    status: int
    got: str
    batch: str
    slot: int | None
    right: bool


@dataclass(frozen=True)
class DemoResult:
    """All requests of one demo, with what they got."""

    requests: tuple[DemoRequest, ...]

    @property
    def kept(self) -> bool:
        """Whether every good request got its own answer and every bad one an error of its own."""
        return all(request.right for request in self.requests)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        good = [request for request in self.requests if not request.bad]
        bad = [request for request in self.requests if request.bad]
        right = sum(request.right for request in good)
        refused = sum(request.right for request in bad)
        batches_of_bad = {request.batch for request in bad} - {""}
        batch_mates = [request for request in good if request.batch in batches_of_bad]
        kept = sum(request.right for request in batch_mates)
        return (
            f"{right} of {len(good)} digits answered right, {refused} of {len(bad)} bad requests refused; "
            f"{kept} of the {len(batch_mates)} that shared a batch with a bad one lost nothing"
        )

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"kept": self.kept, "verdict": self.verdict, "requests": [asdict(request) for request in self.requests]}


def play(record: ServerRecord, model: str = "digits") -> DemoResult:
    """Send the requests together and judge every answer. Raises SlotwiseError where `model` answers no digit at all."""
    target = Target.of(record, model)
    sent = bodies(examples("digits"))
    result = judged(sent, run(_ask(target, sent)))
    _need_digits(model, result)
    return result


def _need_digits(model: str, result: DemoResult) -> None:
    """Raise SlotwiseError where nothing is shown by judging: no good request was answered with a digit."""
    good = [request for request in result.requests if not request.bad]
    digits = {request.sent for request in good}
    if any(request.status == 200 and request.got in digits for request in good):
        return
    if all(request.status == 404 for request in good):
        raise SlotwiseError(f"no model {model} is served there", "`slotwise register digits` adds it; --model names another")
    first = good[0]
    raise SlotwiseError(
        f"{model} does not read digits: it answered one with {first.status}, {first.got!r:.100}", "--model names one that does"
    )


def bodies(digits: Sequence[RequestBody]) -> list[RequestBody]:
    """29 digits, and at BAD_AT a bad body each. A digit's file is named by its label."""
    bad = dict(zip(BAD_AT, bad_http_bodies(digits[0]), strict=False))
    return [bad.get(i, digits[i % len(digits)]) for i in range(REQUESTS)]


async def _ask(target: Target, sent: Sequence[RequestBody]) -> list[HttpReply]:
    connections = [Connection(target) for _ in sent]
    replies = [c.ask(target.request(b.data, b.content_type)) for c, b in zip(connections, sent, strict=True)]
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return list(await asyncio.gather(*replies))
    except TimeoutError as error:
        raise SlotwiseError(
            f"{target.url} did not answer within {TIMEOUT_S:.0f} s", "see `slotwise describe digits`"
        ) from error
    except OSError as error:
        raise SlotwiseError(f"{target.url} does not answer: {error}", "`slotwise serve digits` starts a server") from error
    finally:
        for connection in connections:
            connection.close()


def judged(sent: Sequence[RequestBody], replies: Sequence[HttpReply]) -> DemoResult:
    """Judge every answer by what it should be."""
    batches = named_batches(replies)
    requests = []
    for i, (body, reply) in enumerate(zip(sent, replies, strict=True)):
        label = body.name.partition(".")[0]
        got = _label_or_message(reply)
        said = reply.headers.get("x-batch-slot", "")
        slot = int(said) if said.isdecimal() else None
        refused_in_its_slot = 400 <= reply.status < 500 and slot is not None
        right = refused_in_its_slot if body.bad else got == label
        requests.append(DemoRequest(i, label, body.bad, reply.status, got, batches[i], slot, right))
    return DemoResult(tuple(requests))


def named_batches(replies: Sequence[HttpReply]) -> list[str]:
    """A letter for every batch. Answers of one batch carry the same size and the same times, and no slot twice."""
    batches: list[tuple[tuple[str | None, ...], set[str]]] = []  # what its answers have in common, and their slots
    names = []
    for reply in replies:
        key = tuple(reply.headers.get(name) for name in ("x-batch-size", "x-decode-ms", "x-inference-ms"))
        slot = reply.headers.get("x-batch-slot")
        if slot is None:
            names.append("")
            continue
        at = next((i for i, (known, slots) in enumerate(batches) if known == key and slot not in slots), len(batches))
        if at == len(batches):
            batches.append((key, set()))
        batches[at][1].add(slot)
        names.append(f"{chr(ord('A') + at)} of {key[0]}")
    return names


def _label_or_message(reply: HttpReply) -> str:
    try:
        answer = json.loads(reply.body)
        return str(answer["label"] if reply.status == 200 else answer["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return reply.body[:80].decode("utf-8", "replace")


def render(result: DemoResult) -> list[Any]:
    """The table and the verdict."""
    columns = ["#", "sent", "status", "got", "batch", "slot", ""]
    rows = [
        [
            request.number,
            request.sent,
            request.status,
            request.got,
            request.batch,
            _slot(request),
            _mark(request),
        ]
        for request in result.requests
    ]
    return [table("32 requests at once", columns, rows), result.verdict]


def _slot(request: DemoRequest) -> str:
    return "" if request.slot is None else str(request.slot)


def _mark(request: DemoRequest) -> str:
    if not request.right:
        return "WRONG"
    return "refused" if request.bad else "right"
