"""A replica's connection to the front: the replica calls, both prove that they know the same secret, and batches follow.

    front -> replica    a nonce, a line
    replica -> front    JSON, a line: model, version, runs, replica, nonce and the proof of all of it
    front -> replica    its proof, a line; then frames (slotwise.worker.hosts.frames) in both directions

`runs` names the archive and how its batches are formed: a replica of another registration of that version gets no request.
The secret itself is never sent. Who cannot prove it gets no request, and no replica asks it for one. The front may say START
again: then its text has how many requests each replica has now, for who scales. A replica that is to go says so with a BEAT.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slotwise.errors import SlotwiseError
from slotwise.worker.hosts import frames
from slotwise.worker.hosts.framed import BEAT_S, FramedHost, HostLink
from slotwise.worker.hosts.frames import BrokenFrame, Frame
from slotwise.worker.hosts.local import Answered
from slotwise.worker.request import Request

logger = logging.getLogger("ray.serve")

LEAVING = 2  # a flag of BEAT
LONGEST_LINE = 4096
AGAIN_S = 0.5  # before the front is called again
PROVE_S = 10.0
FRONT, REPLICA = "front", "replica"
ABOUT = ("model", "version", "runs", "replica")  # what a replica says of itself, and proves


@dataclass(frozen=True)
class FrontAddress:
    """Where a front hears replicas, and the secret of both."""

    host: str
    port: int
    secret: str


class Child(Protocol):
    """What answers batches for a replica."""

    def answer_batch(self, requests: Sequence[Request]) -> Answered:
        """Exactly one answer a request, in order. Raises SlotwiseError where its process has died."""

    def alone(self) -> None:
        """The front has gone in the middle of a batch: end whatever runs."""

    @property
    def gone(self) -> bool:
        """Whether its process is."""


def nonce() -> str:
    """Something that was never said before."""
    return secrets.token_hex(16)


def proof(secret: str, side: str, *said: str) -> str:
    """What shows that a side knows the secret, for this conversation alone."""
    return hmac.new(secret.encode(), "\n".join((side, *said)).encode(), hashlib.sha256).hexdigest()


def proves(given: object, secret: str, side: str, *said: str) -> bool:
    """Whether that is its proof."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(), proof(secret, side, *said).encode())


class FrontLink:
    """Calls the front, again and again, and answers its batches, in a thread.

    find(): where the front is; None where nobody knows. about: ABOUT. facts: what it runs on.
    asked: how many requests the front says that this replica has, those that wait for it counted.
    """

    def __init__(
        self, find: Callable[[], FrontAddress | None], about: Mapping[str, str], facts: Mapping[str, Any], child: Child
    ) -> None:
        self.find, self.about, self.facts, self.child = find, about, facts, child
        self.asked = 0.0
        self.leaving = threading.Event()
        self.link: HostLink | None = None
        self.thread = threading.Thread(target=self._run, name="slotwise-front", daemon=True)
        self.thread.start()

    def leave(self, patience_s: float) -> None:
        """Take no other batch: returns once the front has had its answers, or after so long."""
        self.leaving.set()
        link = self.link
        if link is not None:
            with contextlib.suppress(OSError):
                link.send([Frame(frames.BEAT, flags=LEAVING)])
            self.thread.join(patience_s)

    def _run(self) -> None:
        while not self.leaving.is_set() and not self.child.gone:
            try:
                if (address := self.find()) is not None:
                    self._call(address)
            except (OSError, ValueError) as error:
                logger.info("the front cannot be reached: %s", error)
            except Exception:
                logger.exception("the link to the front broke")
            self.asked = 0.0
            self.leaving.wait(AGAIN_S)

    def _call(self, address: FrontAddress) -> None:
        with socket.create_connection((address.host, address.port), timeout=PROVE_S) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._prove(sock, address.secret)
            sock.settimeout(None)
            self.link = HostLink(sock)
            host = ReplicaHost(self.link, self)
            try:
                host.serve()
            finally:
                self.link = None
                host.over.set()

    def _prove(self, sock: socket.socket, secret: str) -> None:
        """Raises ValueError where the other end is not the front, or does not want us."""
        theirs, ours = read_line(sock), nonce()
        said = [theirs, ours, *(self.about[key] for key in ABOUT)]
        line = {**self.about, "nonce": ours, "proof": proof(secret, REPLICA, *said)}
        sock.sendall(json.dumps(line).encode() + b"\n")
        if not proves(read_line(sock), secret, FRONT, *said):
            raise ValueError("it is not the front, or does not know this archive")


class ReplicaHost(FramedHost):
    """Answers the front's batches with the replica's child."""

    def __init__(self, link: HostLink, front: FrontLink) -> None:
        super().__init__(link)
        self.front, self.over, self.answering = front, threading.Event(), False
        self.local = _ByChild(self, front)

    def _start(self, frame: Frame) -> None:
        wanted = frame.json()
        if "asked" in wanted:
            self.front.asked = float(wanted["asked"])
            return
        if wanted.get("version") != frames.VERSION:
            raise BrokenFrame(f"the front speaks version {wanted.get('version')} of the frames")
        threading.Thread(target=self._beat, name="slotwise-beat", daemon=True).start()
        self.link.send([frames.of_json(frames.STARTED, {**self.front.facts, "version": frames.VERSION})])
        if self.front.leaving.is_set():
            self.link.send([Frame(frames.BEAT, flags=LEAVING)])

    def _beat(self) -> None:  # type: ignore[override]  # it ends no process
        while not self.over.wait(BEAT_S):
            try:
                self.link.send([Frame(frames.BEAT)])
            except OSError:
                if self.answering:  # it was given up: the front does not wait for it any more
                    self.front.child.alone()
                return


class _ByChild:
    """The replica's child as what FramedHost asks (Answerer)."""

    def __init__(self, host: ReplicaHost, front: FrontLink) -> None:
        self.host, self.front = host, front
        self.started = dict(front.facts)

    @property
    def dead(self) -> bool:
        return self.front.child.gone

    def run(self, requests: Sequence[Request]) -> Answered:
        self.host.answering = True
        try:
            return self.front.child.answer_batch(requests)
        except SlotwiseError as error:  # the front sends them to somebody else
            raise ConnectionAbortedError(str(error)) from error
        finally:
            self.host.answering = False

    def between(self) -> None:
        """Nothing: the child does it."""

    def take_metrics(self) -> list[list[Any]]:
        """None: the replica gives them to Ray."""
        return []


def read_line(sock: socket.socket) -> str:
    """One line; what comes behind it stays where it is. Raises ValueError where there is none."""
    line, until = b"", time.monotonic() + PROVE_S
    while not line.endswith(b"\n"):
        seen = sock.recv(LONGEST_LINE, socket.MSG_PEEK)
        if not seen or len(line) + len(seen) > 2 * LONGEST_LINE or time.monotonic() > until:
            raise ValueError("the other end says nothing that can be understood")
        line += sock.recv(seen.find(b"\n") + 1 or len(seen))
    return line[:-1].decode("ascii", "replace")
