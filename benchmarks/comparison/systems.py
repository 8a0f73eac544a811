"""The systems that are compared: each can start, be loaded with a body, be poisoned, and stop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.measuring.about import version
from benchmarks.measuring.rounds import Reading
from benchmarks.measuring.spent import spent_s
from slotwise.archive.inspection import inspect
from slotwise.bench import load, load_tools
from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import HttpReply, Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.client.management import ManagementClient
from slotwise.deploy.deploy import of_model
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import Profile, load_profile
from slotwise.server.lifecycle import Kind, ServerRecord, start, stop
from slotwise.worker.environment.cores import available_cores

HERE = Path(__file__).parent
WARM_UP = 4
WARM_UP_CLIENTS = 8
THREADS = "OMP_NUM_THREADS"
QUIET = {"log_level": "ERROR", "request_log": "false", "async_logging": "true"}
AS_INSTALLED = {"log_level": "INFO", "request_log": "true", "metrics_mode": "log", "async_logging": "false"}


class Shares:
    """Who has the processor from now on: the processes of `fronts`, others, and this client."""

    def __init__(self, fronts: Sequence[int], others: Sequence[int] = ()) -> None:
        self.fronts, self.others, self.began = fronts, others, time.monotonic()
        self.before = self._spent_s()

    def taken(self) -> dict[str, float]:
        """The shares of the time of all cores. Children count as others."""
        all_s = (time.monotonic() - self.began) * available_cores()
        return {name: round((now - self.before[name]) / all_s, 3) for name, now in self._spent_s().items()}

    def _spent_s(self) -> dict[str, float]:
        seconds = {"front": 0.0, "workers": 0.0, "client": sum(os.times()[:4])}  # wrk, too
        for pid in (*self.fronts, *self.others):
            with suppress(psutil.Error):  # it ended
                process = psutil.Process(pid)
                seconds["front" if pid in self.fronts else "workers"] += spent_s(process)
                seconds["workers"] += sum(map(spent_s, process.children(recursive=True)))
        return seconds


class Http:
    """A server that is loaded through HTTP. target: where its predictions are."""

    name = ""
    target: Target
    can_be_stopped = True

    @property
    def pid(self) -> int:
        """Its first process; everything else of it is that one's child."""
        raise NotImplementedError

    def wrap(self, body: bytes, content_type: str) -> RequestBody:
        """The body as this server wants it."""
        return RequestBody(body, content_type)

    def headers(self, body: bytes) -> dict[str, str]:
        """What this body needs besides the target's headers."""
        return {}

    def wait(self, body: bytes, content_type: str) -> None:
        """Wait for the first good answer. Raises RuntimeError where it is none."""
        status = self.status(body, content_type)
        if status != 200:
            raise RuntimeError(f"{self.name} is ready and answers {status}")

    def ask(self, body: bytes, content_type: str) -> httpx.Response:
        """One request."""
        sent = self.wrap(body, content_type)
        target = Target(self.target.url, {**self.target.headers, **self.headers(body)}, self.target.v2)
        raw = target.request(sent.data, sent.content_type)
        head, _, data = raw.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:])
        return httpx.post(target.url, content=data, headers=headers, timeout=60, trust_env=False)

    def status(self, body: bytes, content_type: str) -> int:
        """The status of one request, as a client of this server reads it; 0 where the connection broke."""
        try:
            answer = self.ask(body, content_type)
        except httpx.HTTPError:
            return 0
        return self.target.plain(HttpReply(answer.status_code, answer.headers, answer.content)).status

    def load(self, tool: str, body: bytes, content_type: str, plan: LoadPlan) -> Reading:
        """One measurement. Afterwards the server works off what the tool left in its queue, or the next system would pay."""
        sent = self.wrap(body, content_type)
        target = Target(self.target.url, {**self.target.headers, **self.headers(body)}, self.target.v2)
        for _ in range(WARM_UP):
            self.ask(body, content_type)
        own, shares = tool == "slotwise", Shares([self.pid])
        measured = load.measure(target, [sent], plan) if own else load_tools.measure(tool, target, [sent], plan)
        reading = replace(Reading.of(measured), shares=shares.taken())
        self.ask(body, content_type)
        return reading

    def warm_up(self, tool: str, body: bytes, content_type: str, seconds: float) -> None:
        """A load that nobody counts."""
        self.load(tool, body, content_type, LoadPlan(WARM_UP_CLIENTS, seconds, warm_up_s=0))

    def poison(self, good: bytes, content_type: str, requests: int = 64) -> dict[str, Any]:
        """32 clients at once, one body in eight is cut off: how many of the others are not answered with 200."""

        def one(i: int) -> tuple[bool, int]:
            bad = i % 8 == 3
            return bad, self.status(good[: len(good) // 2 + 1] if bad else good, content_type)

        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(one, range(requests)))
        innocent = [status for bad, status in answers if not bad]
        bad = [status for bad, status in answers if bad]
        return {
            "innocent": len(innocent),
            "innocent_lost": sum(status != 200 for status in innocent),
            "bad": len(bad),
            "bad_refused": sum(400 <= status < 500 for status in bad),
            "statuses": {str(status): count for status, count in sorted(Counter(bad).items())},
        }


class ModelServer(Http):
    """A server that `slotwise serve` starts: TorchServe, ours or stock, or Triton. settings: a profile's keys.

    The settings are stronger than what the archive's model.toml wishes, and that is stronger than the profile.
    """

    def __init__(
        self, name: str, archive: str, store: Path, settings: Mapping[str, str], kind: Kind = "torchserve", profile: str = "cpu"
    ) -> None:
        self.name, self.archive, self.store, self.settings = name, archive, store, dict(settings)
        self.kind, self.profile = kind, profile
        self.record: ServerRecord | None = None
        self.can_be_stopped = kind != "triton"

    def start(self) -> None:
        """Start the server and wait until its workers are ready."""
        profile = load_profile(self.profile, self.settings, environ={})
        with self.threads_told():
            self.record = start(
                self.server_name,
                self.kind,
                profile,
                model_store=self.store,
                ports=Ports.free(),
                overrides=self.settings,
                models={},
            )
        with ManagementClient(self.record) as management:
            wishes: dict[str, Any] = self.of_model.registration()
            management.register(f"{self.archive}.mar", **wishes)
            management.wait_ready(self.archive, self.of_model.initial_workers)
        self.target = Target.of(self.record, self.archive)

    @contextmanager
    def threads_told(self) -> Iterator[None]:
        """Meanwhile a server that is started has its threads in the environment, as every peer has: stock does not set them."""
        before = os.environ.pop(THREADS, None)
        if self.settings.get("threads"):
            os.environ[THREADS] = self.settings["threads"]
        try:
            yield
        finally:
            os.environ.pop(THREADS, None)
            if before is not None:
                os.environ[THREADS] = before

    @cached_property
    def of_model(self) -> Profile:
        """The profile as the archive's model has it."""
        profile, archive = load_profile(self.profile, self.settings, environ={}), self.store / f"{self.archive}.mar"
        return of_model(inspect(archive, need_digests=False), profile, self.settings, self.kind)

    def described(self) -> dict[str, Any]:
        """Its settings, for the table below the figures."""
        profile = self.of_model
        used = {
            "profile": self.profile,
            "processes": profile.initial_workers,
            "threads": profile.threads or None,
            "batch_size": profile.batch_size,
        }
        used |= {"delay_ms": profile.max_batch_delay_ms, "log_level": profile.log_level}
        fronts = {"triton": ("HTTP in C++", "nvidia-pytriton"), "slotwise": ("one more process for HTTP", "slotwise")}
        front, package = fronts.get(self.kind, ("HTTP in Java", "torchserve"))
        form = next((form for form in ("decoder", "inference", "engine") if self.name.endswith(form)), "natural")
        code = {"form": form}
        if form in ("inference", "engine"):
            code["engine"] = f"openvino-{profile.precision}"
        if self.name.startswith("slotwise"):
            code = {"form": "engine", "engine": f"{profile.engine}-{profile.precision}"}
        return {**used, **code, "front": front, "packages": [f"{package}=={version(package)}"]}

    @property
    def server_name(self) -> str:
        """The server's name for `slotwise`, without the comma of "stock, batch 8"."""
        return f"compare-{self.name}".replace(", ", "-").replace(" ", "-")

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self.record is not None
        return self.record.pid

    def stop(self) -> None:
        """End it."""
        if self.record is not None:
            stop(self.record)


class Raw:
    """The loop without a server, in as many processes as there are workers."""

    def __init__(self, name: str, model_dir: Path, settings: dict[str, Any], workers: int) -> None:
        self.name, self.model_dir, self.settings, self.workers = name, model_dir, settings, workers
        self.processes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        """Load the engine in every process."""
        command = [sys.executable, str(HERE / "raw_loop.py"), str(self.model_dir), json.dumps(self.settings)]
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
            "text": True,
        }
        self.processes = [subprocess.Popen(command, **pipes) for _ in range(self.workers)]
        for process in self.processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"{self.name} does not start: {' '.join(command)}")

    def described(self) -> dict[str, Any]:
        """Its settings, for the table below the figures."""
        used = {key: self.settings[key] for key in ("threads", "batch_size")}
        engine = f"{self.settings['engine']}-{self.settings['precision']}"
        used |= {"processes": self.workers, "delay_ms": None, "log_level": None, "form": "engine", "engine": engine}
        return {**used, "front": "no server", "packages": []}

    def load(self, body: Path, seconds: float) -> Reading:
        """Pictures a second of all processes together."""
        shares = Shares((), [process.pid for process in self.processes])
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"body": str(body), "seconds": seconds}) + "\n")
            process.stdin.flush()
        a_second = sum(float(process.stdout.readline()) for process in self.processes if process.stdout is not None)
        return Reading(a_second, shares=shares.taken())

    def stop(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.wait()
