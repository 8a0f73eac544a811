"""Run an archive's worker in a child process, and ask it one message at a time.

The child has two pipes of its own for messages. Its standard input is empty, and what it prints goes to the host's log:
whatever a handler, or a program that it starts, reads and prints there, it meets no message.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slotwise.worker.hosts.messages import VERSION, BrokenMessage, Message, Reply, encoded, read_message, reply_of
from slotwise.worker.hosts.pipes import AnswerPipe, QuestionPipe

START_TIMEOUT_S = 600.0  # for loading, warming up and proving a model; then the child is ended
STDERR = 2


class WorkerDied(Exception):
    """The child has ended, or was ended, before it had answered; the text is for the client. status: of HTTP."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


class WorkerLate(WorkerDied):
    """The child was ended, because it took too long."""


class WorkerFailed(Exception):
    """The child lives, and says that it cannot answer this message; the text is its own."""


class Worker:
    """One child: the worker of the extracted archive, in its folder. For one caller at a time.

    module: what it runs (`hosts/local.py`). log: the descriptor for what it prints.
    """

    def __init__(self, python: str, module: str, model_dir: Path, environ: Mapping[str, str], log: int = STDERR) -> None:
        self.module, self.last_id = module, 0
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        self.source, self.target = AnswerPipe(ours_in, lambda: self.alive), QuestionPipe(ours_out, lambda: self.alive)
        try:
            self.child = self._popen(python, theirs_in, theirs_out, cwd=model_dir, env=dict(environ), stderr=log)
        except BaseException:
            self.source.close()
            self.target.close()
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    def _popen(self, python: str, source: int, target: int, **options: Any) -> subprocess.Popen[bytes]:
        command = [python, "-P", "-m", self.module, str(source), str(target)]
        log = options["stderr"]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, pass_fds=(source, target), **options)

    @property
    def pid(self) -> int:
        """The child's pid."""
        return self.child.pid

    @property
    def alive(self) -> bool:
        """Whether the child still runs."""
        return self.child.poll() is None

    @property
    def quiet(self) -> bool:
        """Whether it can be asked: it runs, and says nothing that nobody has asked for."""
        return self.alive and not self.source.has_more()

    def start(self, batch_size: int, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        """Have the child load its handler. Returns what it runs on.

        Raises WorkerFailed with what the handler raised, WorkerDied with how the child ended or that it took too long.
        """
        try:
            reply = self.ask({"version": VERSION, "start": {"batch_size": batch_size}}, [], timeout_s)
        except WorkerLate as late:
            raise WorkerLate(f"the worker did not start within {timeout_s:g} s") from late
        except WorkerDied as died:
            raise WorkerDied(f"the worker ended with {self.child.wait()} while it started") from died
        started = reply.head.get("started")
        self._check_version(reply)
        return dict(started) if isinstance(started, dict) else {}

    def answer(self, message: Mapping[str, Any], bodies: Sequence[bytes], n: int, timeout_s: float = 0.0) -> Reply:
        """The answers to a message whose requests get n. timeout_s: as `ask` takes it. Raises what `ask` raises."""
        reply = self.ask(message, bodies, timeout_s)
        try:
            return reply_of(reply, n)
        except BrokenMessage as error:
            self.kill()
            raise WorkerDied("Worker died.") from error

    def ask(self, message: Mapping[str, Any], bodies: Sequence[bytes], timeout_s: float = 0.0) -> Message:
        """Send one message and wait for its answer. timeout_s: after which the child is ended; 0: never.

        Raises WorkerDied where no answer to just this message came, and WorkerFailed where the child says that it has none.
        """
        try:
            reply = self._exchange(message, bodies, time.monotonic() + timeout_s if timeout_s else None)
        except TimeoutError as error:
            self.kill()
            raise WorkerLate(f"the worker did not answer within {timeout_s:g} s") from error
        except (OSError, BrokenMessage) as error:
            self.kill()
            raise WorkerDied("Worker died.") from error
        except BaseException:  # half a message may have been sent: no later answer would belong to its question
            self.kill()
            raise
        if "error" in reply.head:
            raise WorkerFailed(str(reply.head["error"]))
        return reply

    def kill(self) -> None:
        """End the child at once."""
        self.child.kill()

    def close(self, patience_s: float = 0.0) -> None:
        """End the child, and let it finish for so long before. Nobody may be asking it."""
        self.target.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(patience_s)
        self.kill()
        self.child.wait()
        self.source.close()

    def _exchange(self, message: Mapping[str, Any], bodies: Sequence[bytes], until: float | None) -> Message:
        if self.source.has_more():
            raise BrokenMessage("an answer that nobody has asked for")
        self.last_id += 1
        self.source.until = self.target.until = until
        self.target.write(self._encoded({"id": self.last_id, **message}, bodies))
        reply = read_message(self.source, "answers")
        if reply is None:
            raise BrokenMessage("the worker has ended")
        self._check_id(reply)
        return reply

    def _encoded(self, head: Mapping[str, Any], bodies: Sequence[bytes]) -> bytes:
        return encoded(head, bodies)

    def _check_id(self, reply: Message) -> None:
        if reply.id != self.last_id:
            raise BrokenMessage(f"an answer to message {reply.id}, not to {self.last_id}")

    def _check_version(self, started: Message) -> None:
        if started.head.get("version") != VERSION:
            self.kill()
            raise WorkerFailed(f"the worker speaks version {started.head.get('version')} of the messages, its host {VERSION}")
