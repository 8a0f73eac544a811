"""Replace a running gateway without losing a request: its successor takes the very sockets that it listens on.

The successor asks for them on a Unix socket and starts up. Once it accepts connections it says so; from then on the old one
accepts none, answers what comes on those that it has, saying `connection: close`, and ends with the last of them. What waits to
be accepted belongs to the sockets, not to a process, so the successor accepts it. Both are the same user's, or the socket stays
silent.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    import asyncio  # slow to import, and the keeper imports this

ANSWER_S = 10.0
MOST_SOCKETS = 8
SOCKETS, UP, END = b"s", b"u", b"e"  # what is said: here they are; I accept connections now; end now
UCRED = struct.Struct("3i")  # pid, uid, gid


class Handover:
    """The side of the gateway that is running: it gives `sockets` to its successor.

    replaced: called when the successor accepts connections. end: called when the successor ends, too.
    """

    def __init__(self, sockets: Sequence[socket.socket], replaced: Callable[[], None], end: Callable[[], None]) -> None:
        self._sockets, self._replaced, self._end = sockets, replaced, end
        self._listening: socket.socket | None = None
        self.successors: set[socket.socket] = set()
        self.address = f"slotwise-gateway-{secrets.token_hex(16)}" if sys.platform == "linux" else ""

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for a successor from now on."""
        self._loop = loop
        if not self.address:
            return
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(f"\0{self.address}")  # an abstract name: nothing is left of it when the process has ended
        self._listening.listen()
        self._listening.setblocking(False)
        self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        """Let successors know that this process ends."""
        for open_socket in filter(None, (self._listening, *self.successors)):
            self._loop.remove_reader(open_socket)
            open_socket.close()
        self._listening = None
        self.successors.clear()

    def _accept(self) -> None:
        assert self._listening is not None
        with suppress(OSError):
            successor = self._listening.accept()[0]
            if not _same_user(successor):
                successor.close()
                return
            successor.setblocking(False)
            socket.send_fds(successor, [SOCKETS], [one.fileno() for one in self._sockets])
            self.successors.add(successor)
            self._loop.add_reader(successor, self._hear, successor)

    def _hear(self, successor: socket.socket) -> None:
        try:
            word = successor.recv(1)
        except BlockingIOError:
            return
        except OSError:
            word = b""
        if word == UP:
            self._replaced()
            return
        if word == END:
            self._end()
            return
        self._loop.remove_reader(successor)  # it is gone; where it never was up, nothing has happened
        self.successors.discard(successor)
        successor.close()


class Predecessor:
    """The side of the gateway that takes a running one's place. sockets: those that it listens on."""

    def __init__(self, address: str) -> None:
        """Ask for the sockets. Raises SlotwiseError where there is none to ask."""
        if not address or sys.platform != "linux":
            raise SlotwiseError("this gateway cannot hand its sockets over", "`slotwise stop` ends it and the server")
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(ANSWER_S)
        try:
            self._connection.connect(f"\0{address}")
            if not _same_user(self._connection):
                raise OSError("somebody else answers")
            word, numbers, _, _ = socket.recv_fds(self._connection, 1, MOST_SOCKETS)
        except OSError as error:
            raise SlotwiseError(f"the gateway that runs does not hand its sockets over: {error}", "try again") from error
        self.sockets = [socket.socket(fileno=number) for number in numbers]
        if word != SOCKETS:
            raise SlotwiseError("the gateway that runs has just ended", "try again")

    def replace(self) -> None:
        """Say that connections are accepted here now."""
        self._say(UP)

    async def end(self, loop: asyncio.AbstractEventLoop, most_s: float) -> None:
        """Have it end now, and wait for that, at most so long."""
        self._say(END)
        self._connection.setblocking(False)
        ended = loop.create_future()

        def end() -> None:
            loop.remove_reader(self._connection)
            if not ended.done():
                ended.set_result(None)

        loop.add_reader(self._connection, end)
        loop.call_later(most_s, end)
        await ended

    def _say(self, what: bytes) -> None:
        with suppress(OSError):  # it has ended meanwhile
            self._connection.send(what)


def _same_user(peer: socket.socket) -> bool:
    _, uid, _ = UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
    return bool(uid == os.geteuid())
