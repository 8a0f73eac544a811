"""Start a server again, with its models as they were, once it has answered nothing for a while: a watchdog.

`slotwise serve` watches in the foreground. With --detach it leaves this process behind, until `slotwise stop` ends it:

    python -m slotwise.deploy.watchdog default 60

It follows whatever server has that name, as the gateway does. What is registered is read while the server answers, because one
that is stuck cannot say it any more; a host of ours has noted it at each change.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from slotwise import interrupts
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.server import default_versions, processes
from slotwise.server.process_record import ProcessRecord
from slotwise.server.record import ServerRecord, in_its_place, is_wanted

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel

Say = Callable[[str], None]

PING_EVERY_S, PING_S = 2.0, 5.0
LEAST_PINGS = 3  # in vain: a machine that was asleep has asked only once
MODELS_EVERY_S = 10.0
MANAGEMENT_S = 10.0
KILL_AFTER_S = 1.0
OF_OURS = ("slotwise", "ray", "triton")  # hosts, whose process is ours
AGAIN_S = 30.0  # after a start that failed
GONE_S = 45.0  # without any server of that name, as between the two of `slotwise apply`, the watch ends
ENDING_S = 60.0
LOG_BEFORE = "server.before.log"  # of the run that died or was stuck: the next one has a server.log of its own


class Watchdog:
    """Watches one run of a server. models: what was registered when it was last asked. was_up: somebody has seen it answer."""

    def __init__(
        self, record: ServerRecord, silent_s: float, clock: Callable[[], float] = time.monotonic, *, was_up: bool = False
    ) -> None:
        self.record, self.silent_s, self.was_up = record, silent_s, was_up
        self._ping_s = min(PING_S, silent_s / LEAST_PINGS)  # a stuck server leaves every ping unanswered
        self.models: tuple[LiveModel, ...] = ()
        self._clock = clock
        self._answered_at: float | None = None  # a server that never answered is still starting
        self._in_vain = 0
        self._pinged_at = self._models_at = float("-inf")
        self._begun = True  # else it died while `models` were brought back, and may have noted some of them only

    def stuck(self) -> bool:
        """Look whether the server answers; whether it has not for `silent_s`, and nobody stops it."""
        now = self._clock()
        if now - self._pinged_at < PING_EVERY_S:
            return False
        self._pinged_at = now
        if _answers(self.record, self._ping_s):
            self._answered_at, self._in_vain = now, 0
            if now - self._models_at >= MODELS_EVERY_S:
                self._models_at = now
                self._read_models()
            return False
        self._in_vain += 1
        waited = self._answered_at is not None and now - self._answered_at >= self.silent_s and self._in_vain >= LEAST_PINGS
        was_up = self._answered_at is not None or (self.was_up and self.record.started is not None)
        if not was_up or not (waited or self._dead()):
            return False
        return is_wanted(self.record)

    def _dead(self) -> bool:
        """Whether it is a host of ours, and its process is gone: no time makes it answer again."""
        return self.record.kind in OF_OURS and not self.record.alive()

    def _read_models(self) -> None:
        from slotwise.client.management import ManagementClient  # noqa: PLC0415  heavy, and not wanted for a ping
        from slotwise.deploy.drift import live_models  # noqa: PLC0415

        with suppress(SlotwiseError), ManagementClient(self.record, timeout_s=MANAGEMENT_S) as client:
            self.models, self._begun = tuple(live_models(client)), True

    def restart(self, say: Say) -> Watchdog:
        """End the server and start it again on its ports, with its models; returns who watches that run.

        A model that does not become ready stays registered, as it was. Raises SlotwiseError where the server does not start.
        Until it has been asked, the new run counts as one with these models: where it dies at once, none is lost.
        """
        from slotwise.deploy.start_again import start_again  # noqa: PLC0415  heavy

        why = "has died" if self._dead() else f"has answered nothing for {self.silent_s:g} s"
        say(f"{self.record.kind} (pid {self.record.pid}) {why}: it is started again")
        processes.end(self.record.run_id, 0, KILL_AFTER_S)  # it would not hear that it should stop; its workers do
        with suppress(OSError):
            (self.record.state_dir / "server.log").replace(self.record.state_dir / LOG_BEFORE)
        self.models = as_noted(self.models, self.record, begun=self._begun)
        again = Watchdog(start_again(self.record, self.models, say), self.silent_s, self._clock)
        again.models, again._answered_at, again._begun = self.models, self._clock(), again.record.alive()
        return again


def as_noted(lives: tuple[LiveModel, ...], record: ServerRecord, *, begun: bool = True) -> tuple[LiveModel, ...]:
    """What is registered, as its host noted it last, of each model the default version first; these, where it has not.

    One that is registered as it was when it was read has as many workers as then: its load may have chosen that number. begun:
    all of these were registered there; else those that are not noted are not yet.
    """
    from slotwise.client.live_model import live_model  # noqa: PLC0415  heavy, and not wanted for a ping

    if (noted := default_versions.noted(record)) is None:
        return lives
    read = {(live.name, live.version): live for live in lives}
    found = []
    for now in [live_model(each, record) for each in noted]:
        before = read.get((now.name, now.version), now)
        found.append(before if _registration(before) == _registration(now) else now)
    known = {(live.name, live.version) for live in found}
    return (*found, *(live for live in lives if not begun and (live.name, live.version) not in known))


def _registration(live: LiveModel) -> tuple[object, ...]:
    numbers = live.batch_size, live.max_batch_delay, live.min_workers, live.max_workers, live.response_timeout
    return live.archive, *numbers


def _answers(record: ServerRecord, patience_s: float) -> bool:
    """Whether the server answers a ping in that time, whatever it says."""
    connection = http.client.HTTPConnection("127.0.0.1", record.ports.inference, timeout=patience_s)
    try:
        connection.request("GET", "/ping")
        connection.getresponse()
        return True
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def watching(silent_s: float, say: Say) -> Callable[[ServerRecord], ServerRecord]:
    """For who waits in the foreground: look at the server, start it again where it is stuck, return the one that serves."""
    dogs = dict[str, Watchdog]()

    def look(record: ServerRecord) -> ServerRecord:
        dog = dogs.setdefault(record.run_id, Watchdog(record, silent_s))
        if silent_s and dog.stuck():
            dog = dog.restart(say)
            dogs[dog.record.run_id] = dog
        return dog.record

    return look


def start_detached(name: str, silent_s: float) -> None:
    """Leave a process behind that watches the server of that name; 0: none."""
    end(name)
    if not silent_s:
        return
    with (_file(name).with_suffix(".log")).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "slotwise.deploy.watchdog", name, str(silent_s)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    ProcessRecord(name=name, pid=process.pid, started=processes.start_time(process.pid)).write(_file(name))


def end(name: str) -> None:
    """End the process that watches the server of that name, where there is one; a start that it is at is undone first."""
    record = ProcessRecord.read(_file(name))
    if record is not None and record.alive():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(record.pid)
            process.terminate()
            try:
                process.wait(ENDING_S)
            except psutil.TimeoutExpired:
                process.kill()
    _file(name).unlink(missing_ok=True)


def _file(name: str) -> Path:
    return project.state_root() / name / "watchdog.json"


def watch(name: str, silent_s: float, say: Say) -> None:
    """Watch the server of that name until there is none any more."""
    dog: Watchdog | None = None
    seen_at = time.monotonic()
    while time.monotonic() - seen_at < GONE_S:
        record = ServerRecord.load(project.state_root() / name)
        if record is not None:
            seen_at = time.monotonic()
            if dog is None or record.run_id != dog.record.run_id:
                dog = Watchdog(record, silent_s, was_up=dog is None)  # who starts this process has seen the first one up
            dog.record = record  # with its pid, which it has once it is started
            if dog.stuck():
                dog = _restart(dog, say)
                seen_at = time.monotonic()
        time.sleep(0.5)


def _restart(dog: Watchdog, say: Say) -> Watchdog:
    """Start the server again, however often that takes, unless another one has its name by then."""
    while True:
        try:
            return dog.restart(say)
        except SlotwiseError as error:
            say(f"it did not start: {error.message}")
        except OSError as error:  # a full disk, for example, which somebody may make room on
            say(f"it did not start: {error}")
        time.sleep(AGAIN_S)
        if in_its_place(dog.record) is not None:
            return dog


def _log(message: str) -> None:
    with suppress(OSError):  # a full disk keeps nobody from being started again
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}", flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt), interrupts.interruptible():
        watch(sys.argv[1], float(sys.argv[2]), _log)
