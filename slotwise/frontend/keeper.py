"""Start the gateway's process, and start it again when it dies: a small process of its own that holds the listening sockets.

The keeper has imported next to nothing, so that little in it can fail, and forks the gateway. Where the gateway ends as it
should, or never came up, the keeper ends with its exit code. Where it dies, by a signal or a bug, the next one takes the same
sockets: meanwhile connections wait to be accepted, and none is refused. Only what the dead process had in hand is lost.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from slotwise.interrupts import SIGNALS, handed_to, held

SHORT_LIFE_S = 10.0  # who dies sooner is started again after a pause, which grows
PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0)
POLL_S = 0.05
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


@dataclass(frozen=True)
class Kept:
    """What the gateway gets from its keeper. keeper: its pid. restarts: how many gateways have died before this one."""

    keeper: int
    sockets: list[socket.socket]
    restarts: int


def keep(sockets: list[socket.socket], was_up: Callable[[int], bool]) -> Kept:
    """Return in a process of the gateway's own; in this one never: it ends when there is no gateway any more.

    was_up: whether the gateway with this pid has listened.
    """
    keeper, restarts, short_lives = os.getpid(), 0, 0
    while True:
        started = time.monotonic()
        with held():  # a signal that comes at the fork is the gateway's, in whichever of the two it is noted
            pid = _fork()
            if not pid:
                _end_with(keeper)
                return Kept(keeper, sockets, restarts)
            with _Signals(pid) as signals:
                code = _exit_code(pid)
                if signals.came or code == 0 or not was_up(pid):
                    os._exit(code)  # the gateway has said everything, and left nothing to do
                _say(pid, code)
                short_lives = short_lives + 1 if time.monotonic() - started < SHORT_LIFE_S else 0
                signals.pause(PAUSES_S[min(short_lives, len(PAUSES_S) - 1)])
        restarts += 1


def _fork() -> int:
    """As os.fork. A signal to the child waits until it can be heard: Python drops those that come before."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return os.fork()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class _Signals:
    """Within, signals are handed on to the gateway. came: whether one has come."""

    def __init__(self, pid: int) -> None:
        self.pid, self.came = pid, False
        self._handing = handed_to(self._hand_on)

    def __enter__(self) -> _Signals:
        self._handing.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._handing.__exit__(None, None, None)

    def _hand_on(self) -> None:
        self.came = True
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def pause(self, seconds: float) -> None:
        """Wait so long; a signal ends this process meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.came:
                os._exit(1)
            time.sleep(POLL_S)


def _exit_code(pid: int) -> int:
    """Wait for the end of a child; 128 and the signal's number where one ended it, as shells have it."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return 128 - code if code < 0 else code


def _say(pid: int, code: int) -> None:
    how = f"by {signal.Signals(code - 128).name}" if code > 128 else f"with exit code {code}"
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    with suppress(OSError):  # a full disk keeps nobody from being started again
        print(f"{now} ERROR the gateway (pid {pid}) ended {how}: it is started again", file=sys.stderr, flush=True)


def _end_with(keeper: int) -> None:
    """In the gateway: get no signal of a terminal, which the keeper hands on; end in order where the keeper was killed."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGTERM)
        if os.getppid() != keeper:
            os.kill(os.getpid(), signal.SIGTERM)


def close_for_all(sockets: Sequence[socket.socket]) -> None:
    """Refuse connections from now on, although the keeper has these sockets open, too."""
    for listening in sockets:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
