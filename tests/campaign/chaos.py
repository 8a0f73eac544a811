"""Processes that die or stop, files that vanish or tear, a full disk, a wrong clock, a network that drops, while clients ask.

A gateway before TorchServe, MMS and our own host, two workers each; then Ray, whose workers and node are killed. After each
round the clients get right answers again; none of them was lost but those of a round in which nobody was there to answer, and
none was answered wrong.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from slotwise.console import say
from tests.campaign.cases import Case, Part
from tests.campaign.chaos_events import RAY, ROUNDS
from tests.campaign.chaos_place import PATIENCE_S, Stage
from tests.campaign.killers_place import archive_in
from tests.campaign.tally import Tally

BETWEEN = 100  # right answers after a round
TRIED_S = 1.0  # by then what a dead worker had in hand has gone alone; were its worker killed just then, it would be blamed


@contextlib.contextmanager
def start(work: Path, scale: float) -> Iterator[Case]:
    """Give what tries one round."""
    stage = Stage(work, archive_in(work))
    try:
        yield lambda i, draw, tally: try_round(stage, i, draw, tally)
    finally:
        stage.close()


def try_round(stage: Stage, i: int, draw: Random, tally: Tally) -> None:
    """One event, then right answers again; the events take turns."""
    kind, event = ROUNDS[i % len(ROUNDS)]
    if kind == RAY and importlib.util.find_spec("ray") is None:
        tally.measured.setdefault("left_out", {})[RAY] = "not installed"
        say(f"chaos: LEFT OUT: Ray, which is not installed: {event.what}")
        return
    place, storm = stage.at(kind), stage.storm
    assert storm is not None
    if event.needs in stage.lacks:
        left_out = tally.measured.setdefault("left_out", {})
        if event.what not in left_out:
            left_out[event.what] = stage.lacks[event.needs]
            say(f"chaos: LEFT OUT: {event.what}: {left_out[event.what]}")
        return
    storm.wait_for(1, PATIENCE_S)
    right, lost = storm.right, len(storm.lost)
    try:
        event.happen(place, draw)
        storm.wait_for(BETWEEN, PATIENCE_S)
        place.whole_again()
        time.sleep(TRIED_S)
    except AssertionError as error:
        tally.fail(i, "hangs", f"{kind}: {event.what}: {error}")
    tally.restarts += event.restarts
    missing = storm.lost[lost:]
    planned = [one for one in missing if one.startswith(event.planned)] if event.planned else []
    tally.refused += len(planned)
    tally.requests += storm.right - right + len(missing)
    tally.innocents += storm.right - right + len(missing) - len(planned)
    for one in missing:
        if one not in planned:
            tally.fail(i, "wrong" if one.startswith("200 ") else "lost", f"{kind}: {event.what}: {one}")


PART = Part(
    "chaos",
    "processes, files, disk, clock and network break under 16 clients, before TorchServe, MMS, our own host and Ray",
    200,
    start,
    900.0,
    least=len(ROUNDS),
)
