"""Nobody finds a second request in a first one's body. The gateway is a process; the server behind it is a stand-in."""

from __future__ import annotations

import hashlib

import pytest

from .live import LiveFront
from .smuggling import FAMILIES, Case, tried


@pytest.mark.parametrize("family", FAMILIES)
def test_there_is_one_answer_or_none(live_front: LiveFront, family: str) -> None:
    pauses_s = [0.0, 0.005] if family == "heads" else [0.0]
    tries = [(case, pause_s) for case in FAMILIES[family]() for pause_s in pauses_s]
    faults = [fault for case, pause_s in tries if (fault := wrong(live_front, case, pause_s))]
    assert not faults, "\n".join(faults)


def wrong(front: LiveFront, case: Case, pause_s: float) -> str:
    """What is wrong with its answer; "" where nothing is."""
    seen = front.server.seen
    seen.clear()
    found = tried(front.address, case, pause_s=pause_s)
    bodies = [request.body for request in seen]
    refused = found.statuses in ([400], [413]) and not seen
    answered = len(found.statuses) == 2 and found.last and len(bodies) == 1 and bodies[0] in case.bodies
    whole = answered and hashlib.sha256(bodies[0]).hexdigest().encode() in found.answers
    return "" if found.ended and (refused or whole) else f"{case.name}: {found.statuses}, {bodies} at the server"
