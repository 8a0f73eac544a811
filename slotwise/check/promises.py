"""Test what a handler promises to everyone in a batch: one function a promise, whose docstring says the promise.

Every function talks to a worker and returns where the promise holds. It raises PromiseBroken or PromiseUntested otherwise.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

from slotwise.bench.bodies import RequestBody, bad_bodies
from slotwise.check.conversation import Conversation, PromiseBroken, PromiseUntested, short
from slotwise.check.worker_protocol import SlotAnswer

ERROR_KEYS = ("error", "errors", "exception", "traceback")  # of an object that says that it is an error
CODE_KEYS = ("code", "status", "statuscode", "status_code")  # with 400 to 599 it does, too
TRACE = "Traceback (most recent call last)"
TAKES_ALL = "the model takes every body, bad ones included"


def starts(talk: Conversation) -> None:
    """It starts."""
    talk.restart()
    talk.worker = talk.start()


def answers(talk: Conversation) -> None:
    """It answers every example."""
    for body in talk.examples:
        logged = talk.worker.logged_exception() if talk.worker else ""
        if not talk.learn(body):
            code = talk.ask([body])[0].code
            why = f"; it reported itself loaded after {logged}" if logged else ""
            raise PromiseBroken(f"{body.name} alone gets {code}{why}")
    talk.learn_variants()


def refuses(talk: Conversation) -> None:
    """It refuses a bad body with a 4xx that gives nothing away."""
    faults, taken = [], ""
    usual = {key for value in talk.alone for key in _says_error(value)}
    for body in bad_bodies(talk.examples[0]):
        try:
            answer = talk.ask([body])[0]
        except PromiseBroken as broken:
            faults.append(str(broken))
        else:
            if answer.code == 200:
                taken = taken or f"{body.name} gets 200 {short(answer)}"
                if _says_error(answer.value()) - usual or TRACE.encode() in answer.body:
                    faults.append(f"{body.name} alone gets 200, and an error in its body: {short(answer)}")
                elif talk.good:
                    talk.learn_steady(body)  # a body like any other: nor may its answer depend on others
                continue
            faults += [f"{body.name} alone {fault}" for fault in _refusal_faults(answer)]
        talk.bad.append(body)
    if faults:
        raise PromiseBroken(faults[0])
    if not talk.bad:
        raise PromiseUntested(f"{TAKES_ALL}: {taken}")


def partial(talk: Conversation) -> None:
    """In full and partial batches everyone gets the answer they get alone."""
    _need_answers(talk)
    for n in range(1, talk.batch_size + 1):
        talk.expect(talk.mixed(n, first=n))


def isolates(talk: Conversation) -> None:
    """A bad body costs nobody but its sender, wherever it is."""
    _need_bad(talk)
    b = talk.batch_size
    for slot in range(b):
        for n in {b, slot + 1}:
            talk.expect(_poisoned(talk, n, {slot}))
    chance = random.Random(0)
    for count in range(2, b):
        talk.expect(_poisoned(talk, b, set(chance.sample(range(b), count))))


def all_bad(talk: Conversation) -> None:
    """A batch of nothing but bad bodies is refused slot by slot."""
    _need_bad(talk)
    for n in {1, talk.batch_size}:
        talk.expect(_poisoned(talk, n, set(range(n))))


def order(talk: Conversation) -> None:
    """Permuting requests permutes answers."""
    _need_answers(talk)
    talk.need_distinct()
    chance = random.Random(1)
    for _ in range(3):
        batch = talk.mixed(talk.batch_size)
        chance.shuffle(batch)
        talk.expect(batch)


def mates(talk: Conversation) -> None:
    """Batch-mates change nobody's answer."""
    _need_answers(talk)
    if len(talk.good) < 2:
        raise PromiseUntested("there is one example only: add others")
    some = talk.mixed(min(3, len(talk.good)))
    for one in some:
        for mate in some:
            talk.expect([one, *[mate] * (talk.batch_size - 1)])


def memory(talk: Conversation) -> None:
    """Nothing is kept from one batch to the next."""
    _need_answers(talk)
    talk.restart()
    for number in reversed(range(len(talk.good))):  # a fresh worker, asked in another order
        if found := talk.difference(talk.ask([talk.good[number]])[0], number):
            got, was = found
            raise PromiseBroken(f"{talk.good[number].name} alone gets {got}; asked in another order it got {was}")
    batch = talk.mixed(talk.batch_size)
    talk.expect(batch)
    if talk.bad:
        with contextlib.suppress(PromiseBroken):  # another promise is about this batch; here only the next ones count
            talk.expect(_poisoned(talk, talk.batch_size, {0}))
    talk.expect(batch[:1])
    talk.expect(batch)


PROMISES: dict[str, Callable[[Conversation], None]] = {
    check.__name__: check for check in (starts, answers, refuses, partial, isolates, all_bad, order, mates, memory)
}


def _need_answers(talk: Conversation) -> None:
    if not talk.good:
        raise PromiseUntested("no example is answered")


def _need_bad(talk: Conversation) -> None:
    _need_answers(talk)
    if not talk.bad:
        raise PromiseUntested(TAKES_ALL)


def _poisoned(talk: Conversation, n: int, slots: set[int]) -> list[int | RequestBody]:
    """A batch of n good bodies with bad ones in `slots`, of every kind in turn."""
    good = talk.mixed(n, first=min(slots))
    return [talk.bad[(slot + n) % len(talk.bad)] if slot in slots else good[slot] for slot in range(n)]


def _refusal_faults(answer: SlotAnswer) -> list[str]:
    text = answer.body.decode("utf-8", "replace")
    faults = [] if 400 <= answer.code < 500 else [f"gets {answer.code}, which is not its sender's fault"]
    if "Traceback" in text or 'File "' in text:
        faults.append(f"gets {answer.code} with a stack trace in its body")
    return faults


def _says_error(value: Any) -> set[str]:
    """The keys by which an answer says that it is an error, whatever its status."""
    return {
        key
        for part in (value if isinstance(value, list) else [value])
        if isinstance(part, dict)
        for key, said in part.items()
        if (key.lower() in ERROR_KEYS and said) or (key.lower() in CODE_KEYS and type(said) is int and 400 <= said < 600)
    }
