"""32 digits at once, 3 of them spoiled: who got what, in which batch and slot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from slotwise.bench.bodies import RequestBody, bad_http_bodies, examples
from slotwise.bench.http_connection import Connection, HttpReply, Target, run
from slotwise.client.inference import auth_headers
from slotwise.console import table
from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.server.record import ServerRecord

REQUESTS = 32
BAD_AT = (5, 14, 23)
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class DemoRequest:
    """One request. sent: the digit, or how it was spoiled; got: the label, or the error's message. right: as it should be."""

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
    """What happened to all of them."""

    lines: tuple[DemoRequest, ...]

    @property
    def kept(self) -> bool:
        """Whether every good request got its own answer and every bad one an error of its own."""
        return all(line.right for line in self.lines)

    @property
    def verdict(self) -> str:
        """The whole table in a sentence."""
        good, bad = ([line for line in self.lines if line.bad is kind] for kind in (False, True))
        right, refused = sum(line.right for line in good), sum(line.right for line in bad)
        shared = {line.batch for line in bad} - {""}
        innocent = [line for line in good if line.batch in shared]
        saved = sum(line.right for line in innocent)
        return (
            f"{right} of {len(good)} digits answered right, {refused} of {len(bad)} bad requests refused; "
            f"{saved} of the {len(innocent)} that shared a batch with a bad one lost nothing"
        )

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"kept": self.kept, "verdict": self.verdict, "requests": [asdict(line) for line in self.lines]}


def play(record: ServerRecord, model: str = "digits") -> DemoResult:
    """Send the requests together and judge every answer."""
    target = Target(f"{record.inference_url}/predictions/{model}", auth_headers(record))
    sent = bodies(examples("digits"))
    return judged(sent, run(_ask(target, sent)))


def bodies(digits: Sequence[RequestBody]) -> list[RequestBody]:
    """29 digits, and in between a truncated picture, a text and nothing. A digit's file is named by its label."""
    bad = dict(zip(BAD_AT, bad_http_bodies(digits[0]), strict=False))
    return [bad.get(i, digits[i % len(digits)]) for i in range(REQUESTS)]


async def _ask(target: Target, sent: Sequence[RequestBody]) -> list[HttpReply]:
    connections = [Connection(target) for _ in sent]
    asked = [c.ask(target.request(b.data, b.content_type)) for c, b in zip(connections, sent, strict=True)]
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return list(await asyncio.gather(*asked))
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
    """Every answer beside what it should have been."""
    batches = named_batches(replies)
    lines = []
    for i, (body, reply) in enumerate(zip(sent, replies, strict=True)):
        what = body.name.partition(".")[0]
        said = _said(reply)
        right = 400 <= reply.status < 500 and "x-batch-slot" in reply.headers if body.bad else said == what
        slot = int(reply.headers["x-batch-slot"]) if "x-batch-slot" in reply.headers else None
        lines.append(DemoRequest(i, what, body.bad, reply.status, said, batches[i], slot, right))
    return DemoResult(tuple(lines))


def named_batches(replies: Sequence[HttpReply]) -> list[str]:
    """A letter for every batch. Answers of one batch carry the same size and the same times, and no slot twice."""
    found: list[tuple[tuple[str | None, ...], set[str]]] = []
    names = []
    for reply in replies:
        key = tuple(reply.headers.get(name) for name in ("x-batch-size", "x-decode-ms", "x-inference-ms"))
        slot = reply.headers.get("x-batch-slot")
        if slot is None:
            names.append("")
            continue
        at = next((i for i, (known, slots) in enumerate(found) if known == key and slot not in slots), len(found))
        if at == len(found):
            found.append((key, set()))
        found[at][1].add(slot)
        names.append(f"{chr(ord('A') + at)} of {key[0]}")
    return names


def _said(reply: HttpReply) -> str:
    try:
        answer = json.loads(reply.body)
        return str(answer["label"] if reply.status == 200 else answer["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return reply.body[:80].decode("utf-8", "replace")


def render(told: DemoResult) -> Any:
    """The table and the verdict."""
    from rich.console import Group  # noqa: PLC0415  slow to import

    columns = ["#", "sent", "status", "got", "batch", "slot", ""]
    rows = [
        [line.number, line.sent, line.status, line.got, line.batch, line.slot if line.slot is not None else "", _mark(line)]
        for line in told.lines
    ]
    return Group(table("32 requests at once", columns, rows), told.verdict)


def _mark(line: DemoRequest) -> str:
    if not line.right:
        return "WRONG"
    return "refused" if line.bad else "right"
