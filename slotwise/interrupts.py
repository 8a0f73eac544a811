"""Decide where Ctrl-C, a termination and a closed terminal interrupt the program, and where they have to wait.

The command line installs this before anything else. The first signal "lands": it raises KeyboardInterrupt, once. `finally`
blocks then stop what was started, and no further signal disturbs that. Where it lands can be controlled:

held()        within, a signal is only noted, so that none comes between starting a thing and the `try` that stops it
let_through() within, a signal lands again: put it around what takes long, inside such a `try`
handed_to(f)  within, every signal calls `f`: for an event loop, which has to end in order
settle()      from here on signals change nothing any more: the outcome is certain

It never lands in an import (a half-imported package fails in ways of its own), in the lines of `__enter__` or `__exit__`
themselves (a lock taken there would stay taken), in tempfile (a folder that was just made would be left over) or in a finalizer
(Python prints the exception and drops it): it tries again a moment later. Nor does it land in what these call, such as the rest
of a clean-up, within the first second; after that it does, because they may wait for long.
Without `install` none of this has any effect: Python's own KeyboardInterrupt comes anywhere.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
AGAIN_S = 0.02
IMPORT_SYSTEM = "<frozen importlib"
TOUCHY = ("__enter__", "__exit__", "__del__")
PATIENCE = 50  # how often it tries again where something touchy is only further up


class _State:
    """The state of the main thread, which alone runs signal handlers."""

    holds = 0
    noted = False  # a signal has come
    tries = 0  # to land
    settled = False  # the signal has landed, or it comes too late to change anything
    instead: Callable[[], None] | None = None


_now = _State()


def install() -> None:
    """Take the signals over, held; `let_through` lets them land. One that is ignored because of nohup stays ignored."""
    _now.holds += 1
    signal.signal(signal.SIGALRM, _again)
    sys.unraisablehook = _dropped
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _arrived)


def ignore_signals() -> None:
    """Ignore all signals from here on: none may change the exit code while Python shuts down."""
    for number in (*SIGNALS, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    # Python remembers a KeyboardInterrupt that went through an eval(), as typer calls it, and would end by SIGINT instead of
    # with our exit code; the next text that it runs makes it forget.
    exec("")


def say_stopped() -> None:
    """Say that a signal ended the program, on a new line: a terminal has just shown ^C, and a print may have been cut off."""
    sys.stderr.write("\nstopped\n")


def signal_came() -> bool:
    """Whether a signal has come."""
    return _now.noted


def settle() -> None:
    """Let no signal change the outcome any more, neither one that has come nor one that comes."""
    _now.settled = True


class held:
    """Within, a signal is only noted; it lands at the end of the outermost block, in place of any other exception."""

    def __enter__(self) -> None:
        self.before = _now.holds
        if _in_main_thread():
            _now.holds += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if _in_main_thread():
            _now.holds = self.before
            _land_if_noted()


class let_through:
    """Within, a signal lands at once, also inside `held`; one that was noted lands at the beginning."""

    def __enter__(self) -> None:
        self.before = _now.holds
        if _in_main_thread():
            _now.holds = 0
            _land_if_noted()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if _in_main_thread():
            _now.holds = self.before


@contextmanager
def handed_to(callback: Callable[[], None]) -> Iterator[None]:
    """Within, every signal calls `callback`, in the main thread and between any two lines, and nothing else happens.

    At the end KeyboardInterrupt is raised where one came, unless the outcome was settled.
    """
    if not _in_main_thread():
        yield
        return
    with held():
        before, _now.instead = _now.instead, callback
        try:
            if _now.noted and not _now.settled:
                callback()
            yield
        finally:
            _now.instead = before


@contextmanager
def interruptible() -> Iterator[None]:
    """For scripts: within, the first signal raises KeyboardInterrupt. Afterwards signals do what they did before."""
    numbers = (*SIGNALS, signal.SIGALRM)
    before, hook = {number: signal.getsignal(number) for number in numbers}, sys.unraisablehook
    install()
    try:
        with let_through():
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
        _now.__dict__.clear()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _land_if_noted() -> None:
    if _now.noted and not _now.settled and not _now.holds:
        _now.settled = True
        raise KeyboardInterrupt


def _arrived(number: int, frame: FrameType | None) -> None:
    _now.noted = True
    if _now.instead is not None:
        _now.instead()
    elif not _now.holds and not _now.settled:
        if _touchy(frame):
            _now.tries += 1
            _try_again()
            return
        _now.settled = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt


def _try_again() -> None:
    """Again and again: what comes just before a call that blocks is heard after it."""
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)


def _again(number: int, frame: FrameType | None) -> None:
    if _now.settled or _now.holds or _now.instead is not None:
        signal.setitimer(signal.ITIMER_REAL, 0)
    elif _now.noted:
        _arrived(number, frame)


def _touchy(frame: FrameType | None) -> bool:
    """Whether an exception at this place would do harm or get lost."""
    top = frame
    while frame is not None:
        patient = frame is top or _now.tries < PATIENCE
        touchy = frame.f_code.co_name in TOUCHY or frame.f_globals.get("__name__") == "tempfile"
        if frame.f_code.co_filename.startswith(IMPORT_SYSTEM) or (patient and touchy):
            return True
        frame = frame.f_back
    return False


def _dropped(lost: UnraisableHookArgs) -> None:
    """Let a signal land again that landed in a finalizer or a callback from C, where Python drops the exception."""
    if lost.exc_type is KeyboardInterrupt:
        _now.settled = False
        _try_again()
    else:
        sys.__unraisablehook__(lost)
