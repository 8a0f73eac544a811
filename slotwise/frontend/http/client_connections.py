"""Hold the connections of clients within limits: how many there are, how long they say nothing, how slowly they say it.

Where there are as many as there may be, one that has said nothing for a second makes room: the oldest that never asked
anything, else the one that is idle for longest. Where there is none the new one is refused, and hears why: one that is closed
sooner may have its next request on its way. One look a second at every connection is cheaper than a timer for each request.

One look for those that make room serves whoever comes in the next tenth of a second: refused ones come in thousands and have to
cost little, for those that nobody accepts in time hear nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import resource
import termios
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from slotwise.backends.interface import Refused
from slotwise.frontend.http.client_address import TrustedProxies, one_client
from slotwise.frontend.http.request_head import HeadLimits

log = logging.getLogger("slotwise.gateway")

LOOK_EVERY_S = 1.0
SILENT_S = 1.0  # who says nothing for so long can be missed; before, its request may be on its way
LINGER_S = 2.0  # after a last answer what still comes is read away: a connection closed at once takes the answer along
MOST_REFUSED = 64  # that still hear why
ROOM_EVERY_S = 0.1  # so often is looked for those that may make room
OTHER_FILES = 256  # that the gateway has open besides, its connections to the server among them


@dataclass(frozen=True)
class ConnectionLimits:
    """What clients may do, whatever they ask.

    max_connections: of all clients; max_connections_per_address: of one address, of IPv6 its /64. head_timeout_s: for the first
    byte of a connection, and for a head from its first byte on. min_body_rate: bytes a second that a body brings, and that are
    taken of an answer, each over head_timeout_s; 0: any. max_pipelined: requests that wait behind one that is being answered.
    """

    max_connections: int = 4096
    max_connections_per_address: int = 1024
    head: HeadLimits = field(default_factory=HeadLimits)
    head_timeout_s: float = 10.0
    min_body_rate: int = 1024
    max_pipelined: int = 16


class Pace:
    """How fast something goes on. It began at `since`, of the loop's time; so many bytes were done by then."""

    def __init__(self, since: float, done: int = 0) -> None:
        self.since, self.done = since, done

    def too_slow(self, now: float, done: int, limits: ConnectionLimits) -> bool:
        """Whether fewer bytes than they should were done since the last look that was long enough ago."""
        elapsed_s = now - self.since
        if elapsed_s < limits.head_timeout_s or not limits.min_body_rate:
            return False
        slow = done - self.done < limits.min_body_rate * elapsed_s
        self.since, self.done = now, done
        return slow


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Whether something has come on a connection that this process has not read yet."""
    return _waits(transport, termios.FIONREAD)


def has_unsent(transport: asyncio.BaseTransport) -> bool:
    """Whether something is on its way that the other side has not taken yet."""
    return _waits(transport, termios.TIOCOUTQ)


def aborted(transport: asyncio.Transport) -> bool:
    """Close a connection at once, unless something has come that nobody has read. Returns whether it is closed."""
    if has_unread(transport):
        return False
    transport.abort()
    return True


def _waits(transport: asyncio.BaseTransport, queue: int) -> bool:
    with contextlib.suppress(OSError):
        return any(fcntl.ioctl(transport.get_extra_info("socket").fileno(), queue, bytes(4)))
    return False


class ClientConnection(Protocol):
    """One connection. peer: its address. asked: how many requests it has brought. idle_since: None while one is in hand."""

    peer: str
    asked: int

    @property
    def idle_since(self) -> float | None:
        """A second of the loop's time."""

    def look(self, now: float) -> None:
        """End it where it has taken too long."""

    def drop(self) -> bool:
        """Close it, to make room. Not where something has come that nobody has read yet: that would be lost."""


@dataclass
class SilentConnections:
    """Those of some connections that may make room, with when they became idle; who is missed least comes last.

    again_at: when they are looked for again, by the loop's time.
    """

    found: list[tuple[float, ClientConnection]] = field(default_factory=list)
    again_at: float = 0.0

    def look(self, connections: Iterable[ClientConnection], now: float) -> None:
        """Find them, where that is due."""
        if now >= self.again_at:
            idle = ((one.idle_since, one) for one in connections)
            silent = ((since, one) for since, one in idle if since is not None and since <= now - SILENT_S)
            self.found = sorted(silent, key=lambda found: (found[1].asked > 0, found[0]), reverse=True)
            self.again_at = now + ROOM_EVERY_S


class OpenConnections:
    """The connections that are open. trusted: proxies, whose connections are many clients'."""

    def __init__(self, limits: ConnectionLimits, trusted: TrustedProxies) -> None:
        self.limits, self.trusted = limits, trusted
        self._by_client: defaultdict[str, set[ClientConnection]] = defaultdict(set)
        self._silent: defaultdict[str, SilentConnections] = defaultdict(SilentConnections)  # by client, and of "everybody"
        self._count = 0
        self._refused = set[ClientConnection]()
        self._looking: asyncio.TimerHandle | None = None

    def add(self, connection: ClientConnection) -> None:
        """Take a new connection in. Raises Refused (429, 503)."""
        client = one_client(connection.peer)
        same = self._by_client.get(client, ())
        if connection.peer not in self.trusted and len(same) >= self.limits.max_connections_per_address:
            too_many = Refused(429, "too many connections from this address at once", retry_after_s=1, close=True)
            self._make_room(client, same, too_many)
        if self._count >= self.limits.max_connections:
            everybody = (one for those in self._by_client.values() for one in those)
            self._make_room("everybody", everybody, Refused(503, "too many connections at once", retry_after_s=1, close=True))
        self._by_client[client].add(connection)
        self._count += 1
        if self._looking is None:
            self._look_later()

    def lingers(self, refused: ClientConnection) -> bool:
        """Whether a connection that was not taken in may stay until its client has heard why. A few may."""
        if len(self._refused) >= MOST_REFUSED:
            return False
        self._refused.add(refused)
        return True

    def discard(self, connection: ClientConnection) -> None:
        """A connection is gone, or makes room."""
        self._refused.discard(connection)
        client = one_client(connection.peer)
        same = self._by_client.get(client)
        if same is None or connection not in same:
            return
        same.discard(connection)
        self._count -= 1
        if not same:
            del self._by_client[client]
            self._silent.pop(client, None)
        if not self._count:
            self._silent.clear()
            if self._looking:
                self._looking.cancel()
                self._looking = None

    def _make_room(self, whose: str, connections: Iterable[ClientConnection], else_: Refused) -> None:
        """Drop the one that is missed least. Raises Refused where none is idle for long enough."""
        silent = self._silent[whose]
        silent.look(connections, asyncio.get_running_loop().time())
        while silent.found:
            since, least = silent.found.pop()
            if least.idle_since == since and least in self._by_client.get(one_client(least.peer), ()) and least.drop():
                self.discard(least)
                return
        raise else_

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in [one for those in self._by_client.values() for one in those]:
            connection.look(now)
        self._looking = None
        if self._count:
            self._look_later()


def within_open_files(limits: ConnectionLimits) -> ConnectionLimits:
    """The same limits, as far as this process may have files open; it takes what it may have of them."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = limits.max_connections + OTHER_FILES
    with_grpc = files + limits.max_connections
    if soft != resource.RLIM_INFINITY and soft < with_grpc:
        soft = with_grpc if most == resource.RLIM_INFINITY else min(with_grpc, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
        if soft < files:
            fewer = max(soft - OTHER_FILES, soft // 2)
            log.warning("at most %d connections, because this process may have %d files open", fewer, soft)
            return replace(limits, max_connections=fewer)
    return limits
