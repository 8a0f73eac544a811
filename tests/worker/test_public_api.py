"""Handlers written for an earlier release run unchanged: nothing that they may rely on is gone or works otherwise."""

from __future__ import annotations

import re
from pathlib import Path

from tests.worker import public_api

RELEASED = Path(__file__).with_name("public_api.txt")
OVERRIDDEN = "slotwise.worker.BatchHandler."  # the pipeline calls these, so a further argument would break a handler's own


def parts(line: str) -> tuple[str, list[str]]:
    """A line without what its signature takes, and the arguments one by one."""
    head, _, rest = line.partition("(")
    inside, _, tail = rest.rpartition(")")
    return head + tail, re.split(r", (?![^(]*\))", inside) if inside else []


def extends(old: str, new: str) -> bool:
    """Whether every call that fits the old line fits the new one: arguments were added behind the others, with defaults."""
    if old == new or "(" not in old or old.startswith(OVERRIDDEN):
        return old == new
    (name, before), (other, after) = parts(old), parts(new)
    return name == other and after[: len(before)] == before and all("=" in arg or arg == "*" for arg in after[len(before) :])


def test_what_was_released_is_as_it_was() -> None:
    today = public_api.lines()
    gone = [line for line in RELEASED.read_text("utf-8").splitlines() if not any(extends(line, new) for new in today)]
    assert gone == [], "a handler of an earlier release may rely on it"


def test_only_what_breaks_nobody_is_an_extension() -> None:
    assert extends("m.f(a, b=(1, 2))", "m.f(a, b=(1, 2), *, c=3)")
    assert not extends("m.f(a, b=1)", "m.f(a, b=2)")
    assert not extends("m.f(a)", "m.f(a, b)")
    assert not extends("m.f(a)", "m.f(b)")
    assert not extends(f"{OVERRIDDEN}encode(self, output, item)", f"{OVERRIDDEN}encode(self, output, item, request=None)")
