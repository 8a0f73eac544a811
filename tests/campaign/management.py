"""TorchServe's documented management API, call by call, on TorchServe as installed and as `slotwise serve` starts it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from slotwise.profiles.ports import Ports
from tests.campaign.cases import Case, Part
from tests.campaign.management_calls import CALLS, NO_WORKERS, STORE, Call
from tests.campaign.own_server import CHOSEN, own_home, started
from tests.campaign.tally import Tally
from tests.server.conftest import build_handler
from tests.support.answer_shapes import covers, shape
from tests.support.deployments import TORCHSERVE, deployed

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Api:
    """One server's management API. folder: where it writes key_file.json. ports: where else it listens."""

    url: str
    folder: Path
    store: Path
    ports: Ports

    def ask(self, call: Call) -> tuple[int, Any]:
        """The status, and the body as JSON (its text where it is none)."""
        params = {key: value.replace(STORE, str(self.store)) for key, value in call.params.items()}
        headers = {}
        if call.token:
            keys = json.loads((self.folder / "key_file.json").read_text("utf-8"))
            headers["authorization"] = f"Bearer {keys[call.token]['key']}"
        reply = httpx.request(
            call.method, self.url + call.path, params=params, headers=headers, timeout=TIMEOUT_S, trust_env=False
        )
        try:
            return reply.status_code, reply.json()
        except ValueError:
            return reply.status_code, reply.text

    def clear(self) -> None:
        """Leave `faults` 1.0 with one worker, the default version, and nothing else."""
        self.ask(Call("POST", "/models", {"url": "faults.mar", **NO_WORKERS}))
        self.ask(Call("PUT", "/models/faults/1.0/set-default"))
        for other in ("spare", "another", "faults/2.0"):
            self.ask(Call("DELETE", f"/models/{other}"))
        self.ask(Call("PUT", "/models/faults", {"min_worker": "1", "max_worker": "1", "synchronous": "true"}))


@contextlib.contextmanager
def start(work: Path, scale: float) -> Iterator[Case]:
    """Give what tries one call on both servers."""
    store = work / "store"
    for name, version in (("faults", "1.0"), ("faults", "2.0"), ("spare", "1.0")):
        build_handler(name, store, work, version=version)
    with installed(work / "installed", store) as theirs, served(work / "served", store) as ours:
        yield lambda i, draw, tally: try_call(CALLS[i], theirs, ours, i, tally)


def try_call(call: Call, theirs: Api, ours: Api, i: int, tally: Tally) -> None:
    """One call; where ours is answered otherwise there must be a reason."""
    answers = []
    for api in (theirs, ours):
        api.clear()
        for one in call.before:
            api.ask(one)
        tally.requests += 1
        answers.append(api.ask(call))
    (their_status, their_body), (our_status, our_body) = answers
    reason = call.otherwise or (call.own if CHOSEN.kind == "slotwise" else "")
    tally.refused += our_status >= 400
    if our_status >= 500 and their_status < 500:
        tally.fail(i, "unplanned", f"{call}: {our_status} {str(our_body)[:150]}, installed {their_status}")
    elif not (reason or (their_status == our_status and _as_good(shape(their_body), shape(our_body)))):
        both = f"installed {their_status} {str(their_body)[:150]}, served {our_status} {str(our_body)[:150]}"
        tally.fail(i, "wrong", f"{call}: {both}")


def _as_good(theirs: Any, ours: Any) -> bool:
    """Whether ours has the same shape; our own host may say more of a model."""
    return covers(theirs, ours) if CHOSEN.kind == "slotwise" else bool(theirs == ours)


@contextlib.contextmanager
def served(home: Path, store: Path) -> Iterator[Api]:
    """The server as `slotwise serve` starts it."""
    with own_home(home):
        record = started(CHOSEN.kind, store)
        yield Api(record.management_url, record.state_dir, store, record.ports)


@contextlib.contextmanager
def installed(folder: Path, store: Path) -> Iterator[Api]:
    """TorchServe by its own command: nothing but ports, and the model API, which is off unless it is asked for."""
    with deployed(TORCHSERVE, folder, store) as deployment:
        yield Api(deployment.management, folder, store, deployment.ports)


PART = Part(
    "management",
    f"{len(CALLS)} calls of TorchServe's management API, as installed and as `slotwise serve` starts it",
    len(CALLS),
    start,
    900.0,
    scaled=False,
)
