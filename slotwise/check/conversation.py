"""Ask one worker, remember what each body is answered alone, and judge the answers of a batch by that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slotwise.bench.bodies import RequestBody
from slotwise.check.example_variants import variants
from slotwise.check.worker_process import CheckedWorker, WorkerFault
from slotwise.check.worker_protocol import SlotAnswer
from slotwise.worker.separability.agree import TOLERANCE, agree

DISTINCT = 6  # bodies with different answers; more are not needed


class PromiseBroken(Exception):
    """A promise does not hold; the message says what was seen."""


class PromiseUntested(Exception):
    """A promise could not be put to the test; the message says what is missing."""


class Conversation:
    """One worker, started when it is needed, and again after a batch killed it.

    good: the bodies that are answered with 200. alone[i]: the answer to good[i] in a batch of its own; about[i]: its content
    type and headers. varying: the names of headers that are not the same each time. distinct: the numbers of good bodies of
    which no two have the same answer. bad: the bodies that are refused. tolerance: see separability/agree.py.
    """

    def __init__(
        self, start: Callable[[], CheckedWorker], examples: list[RequestBody], batch_size: int, tolerance: float = TOLERANCE
    ) -> None:
        self.start, self.examples, self.batch_size, self.tolerance = start, examples, batch_size, tolerance
        self.worker: CheckedWorker | None = None
        self.good: list[RequestBody] = []
        self.alone: list[Any] = []
        self.about: list[dict[str, str]] = []
        self.varying: set[str] = set()
        self.distinct: list[int] = []
        self.bad: list[RequestBody] = []

    def ask(self, batch: Sequence[RequestBody]) -> list[SlotAnswer]:
        """Send one batch. Raises PromiseBroken where the worker does not give one answer a request."""
        if self.worker is None:
            self.worker = self.start()
        try:
            answers = self.worker.predict(batch)
        except WorkerFault as fault:
            if fault.ended:
                self.restart()
            raise PromiseBroken(f"{self._batch(batch)}: {fault}") from fault
        if len(answers) != len(batch):
            raise PromiseBroken(f"{self._batch(batch)}: {len(answers)} answers came back")
        return answers

    def restart(self) -> None:
        """End the worker; the next batch starts a fresh one."""
        if self.worker is not None:
            self.worker.close()
        self.worker = None

    def same(self, value: Any, number: int) -> bool:
        """Whether this is the answer that good body gets alone."""
        return agree(value, self.alone[number], self.tolerance)

    def difference(self, answer: SlotAnswer, number: int) -> tuple[str, str] | None:
        """What this answer says, and what that good body is told alone, where that is something else."""
        if not self.same(answer.value(), number):
            return short(answer), str(self.alone[number])[:80]
        about, alone = _about(answer), self.about[number]
        for name in sorted({name for name, _ in about.items() ^ alone.items()} - self.varying):
            return f"{name} {about.get(name, '')[:80]!r}", f"{name} {alone.get(name, '')[:80]!r}"
        return None

    def learn(self, body: RequestBody) -> bool:
        """Send `body` alone and remember its answer. False where it is refused."""
        answer = self.ask([body])[0]
        if answer.code != 200:
            return False
        value = answer.value()
        if not any(self.same(value, i) for i in self.distinct):
            self.distinct.append(len(self.good))
        self.good.append(body)
        self.alone.append(value)
        about = _about(answer)
        if len(about) > 1:
            self.varying |= {name for name, _ in about.items() ^ _about(self.ask([body])[0]).items()}
        self.about.append(about)
        return True

    def learn_steady(self, body: RequestBody) -> None:
        """As `learn`, of a body that is answered and gets the same each time."""
        first, again = self.ask([body])[0], self.ask([body])[0]
        if agree(first.value(), again.value(), 0.0):
            self.learn(body)

    def learn_variants(self) -> None:
        """Vary the examples until there are enough bodies with different answers."""
        for example in self.examples:
            for body in variants(example):
                if len(self.distinct) >= DISTINCT:
                    return
                self.learn(body)

    def mixed(self, n: int, first: int = 0) -> list[int]:
        """The numbers of n good bodies: the distinct ones first, then the others, then all again. first: where to begin."""
        others = [number for number in range(len(self.good)) if number not in self.distinct]
        pool = self.distinct + others
        return [pool[(first + i) % len(pool)] for i in range(n)]

    def expect(self, batch: Sequence[int | RequestBody]) -> None:
        """Send a batch of good bodies (by number) and bad ones. Raises PromiseBroken unless each gets its answer or refusal."""
        sent = [self.good[entry] if isinstance(entry, int) else entry for entry in batch]
        answers = self.ask(sent)
        for slot, (entry, answer) in enumerate(zip(batch, answers, strict=True)):
            if isinstance(entry, int):
                self._judge(sent, slot, entry, answer)
            elif answer.code < 400:
                whose = self._whose(sent, slot, answer)
                raise PromiseBroken(f"{self._batch(sent)}: slot {slot}, {entry.name}, got {answer.code} {short(answer)}{whose}")
        self._refuse_swapped(sent, list(zip(batch, answers, strict=True)))

    def need_distinct(self) -> None:
        """Raise PromiseUntested unless two good bodies are answered differently."""
        if len(self.distinct) < 2:
            raise PromiseUntested(
                "all examples get the same answer, so rows in wrong places cannot be noticed: add other examples"
            )

    def _judge(self, sent: Sequence[RequestBody], slot: int, number: int, answer: SlotAnswer) -> None:
        where = f"{self._batch(sent)}: slot {slot}, {self.good[number].name},"
        if answer.code != 200:
            raise PromiseBroken(f"{where} got {answer.code} {short(answer)}; alone it is answered")
        if found := self.difference(answer, number):
            got, alone = found
            raise PromiseBroken(f"{where} got {got}{self._whose(sent, slot, answer)}; alone it gets {alone}")

    def _refuse_swapped(self, sent: Sequence[RequestBody], batch: Sequence[tuple[int | RequestBody, SlotAnswer]]) -> None:
        """Raise PromiseBroken where two slots got, to the last digit, what others in their batch are told alone.

        Small numbers all lie within the tolerance, so that near answers do not say whose they are.
        """
        swapped = [
            (slot, entry, answer, other)
            for slot, (entry, answer) in enumerate(batch)
            if isinstance(entry, int) and not agree(value := answer.value(), self.alone[entry], 0.0)
            for other, (theirs, _) in enumerate(batch)
            if isinstance(theirs, int) and agree(value, self.alone[theirs], 0.0)
        ]
        if len({slot for slot, *_ in swapped}) > 1:
            slot, number, answer, other = swapped[0]
            raise PromiseBroken(
                f"{self._batch(sent)}: slot {slot}, {self.good[number].name}, got {short(answer)}, "
                f"the answer of slot {other}; alone it gets {str(self.alone[number])[:80]}"
            )

    def _whose(self, sent: Sequence[RequestBody], slot: int, answer: SlotAnswer) -> str:
        """Which other slot this answer belongs to, for the message; nothing where no slot fits."""
        for other, body in enumerate(sent):
            if other != slot and body in self.good and not self.difference(answer, self.good.index(body)):
                return f", the answer of slot {other}"
        return ""

    def _batch(self, sent: Sequence[RequestBody]) -> str:
        poisoned = [f"{body.name} in slot {slot}" for slot, body in enumerate(sent) if body in self.bad]
        if len(sent) == 1:
            return f"{sent[0].name} alone"
        if len(poisoned) == len(sent):
            return f"a batch of {len(sent)} bad bodies"
        return f"a batch of {len(sent)}" + (f" ({', '.join(poisoned[:2])})" if poisoned else "")


def _about(answer: SlotAnswer) -> dict[str, str]:
    return {"content-type": answer.content_type} | answer.kept_headers()


def short(answer: SlotAnswer) -> str:
    """The beginning of its body, in one line."""
    text = " ".join(answer.body.decode("utf-8", "replace").split())
    return text if len(text) <= 80 else text[:77] + "..."
