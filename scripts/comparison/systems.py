"""The systems that are compared: each can start, be loaded with a body, be poisoned, and stop."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from measuring.rounds import Reading

from slotwise.bench import load_tools
from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import Target
from slotwise.bench.load import LoadPlan
from slotwise.client.management import ManagementClient
from slotwise.client.tokens import auth_headers
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.lifecycle import ServerRecord, start, stop

HERE = Path(__file__).parent
BOUNDARY = "slotwise-comparison"
WARM_UP = 4
STOCK_SETTINGS = {"log_level": "INFO", "request_log": "true", "metrics_mode": "log", "async_logging": "false"}


class Http:
    """A server that is loaded through HTTP. target: where its predictions are."""

    name = ""
    target: Target

    def wrap(self, body: bytes) -> RequestBody:
        """The body as this server wants it."""
        return RequestBody(body, "image/jpeg")

    def load(self, tool: str, body: Path, clients: int, seconds: float) -> Reading:
        """One measurement. Afterwards the server works off what the tool left in its queue, or the next system would pay."""
        sent = self.wrap(body.read_bytes())
        headers = {**self.target.headers, "content-type": sent.content_type}

        def ask(times: int) -> None:
            for _ in range(times):
                httpx.post(self.target.url, content=sent.data, headers=headers, timeout=60, trust_env=False)

        ask(WARM_UP)
        measured = load_tools.measure(tool, self.target, [sent], LoadPlan(clients, seconds, warm_up_s=0))
        ask(1)
        return Reading.of(measured)

    def poison(self, good: bytes, requests: int = 64) -> dict[str, int]:
        """32 clients at once, one body in eight is no picture: how many of the others are not answered with 200."""

        def ask(i: int) -> tuple[bool, int]:
            bad = i % 8 == 3
            sent = self.wrap(good[: len(good) // 2] if bad else good)
            try:
                headers = {**self.target.headers, "content-type": sent.content_type}
                return bad, httpx.post(
                    self.target.url, content=sent.data, headers=headers, timeout=60, trust_env=False
                ).status_code
            except httpx.HTTPError:
                return bad, 0

        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(ask, range(requests)))
        innocent = [status for bad, status in answers if not bad]
        bad = [status for bad, status in answers if bad]
        lost = sum(status != 200 for status in innocent)
        return {
            "innocent": len(innocent),
            "innocent_lost": lost,
            "bad": len(bad),
            "bad_refused": sum(400 <= s < 500 for s in bad),
        }


class ModelServer(Http):
    """A TorchServe, ours or stock: started as `slotwise serve` starts it, with its own settings."""

    def __init__(self, name: str, archive: str, store: Path, settings: Mapping[str, str]) -> None:
        self.name, self.archive, self.store, self.settings = name, archive, store, dict(settings)
        self.record: ServerRecord | None = None

    def start(self) -> None:
        """Start the server and wait until its workers are ready."""
        profile = load_profile("cpu", self.settings, environ={})
        self.record = start(
            f"compare-{self.name}",
            "torchserve",
            profile,
            model_store=self.store,
            ports=Ports.free(),
            overrides=self.settings,
            models={},
        )
        with ManagementClient(self.record) as management:
            management.register(f"{self.archive}.mar", **profile.registration())
            management.wait_ready(self.archive, profile.initial_workers)
        self.target = Target(f"{self.record.inference_url}/predictions/{self.archive}", auth_headers(self.record))

    def stop(self) -> None:
        """End it."""
        if self.record is not None:
            stop(self.record)


class Peer(Http):
    """Another server: its packages in a virtual environment of its own, torch and torchvision borrowed from ours."""

    def __init__(self, name: str, packages: list[str], work: Path, environ: Mapping[str, str]) -> None:
        self.name, self.packages, self.place, self.environ = name, packages, work / f"venv-{name}", environ
        self.process: subprocess.Popen[bytes] | None = None

    def wrap(self, body: bytes) -> RequestBody:
        """A form with one file, which is what both of them document."""
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="request"; filename="a.jpg"\r\n'
        data = head.encode() + b"Content-Type: image/jpeg\r\n\r\n" + body + f"\r\n--{BOUNDARY}--\r\n".encode()
        return RequestBody(data, f"multipart/form-data; boundary={BOUNDARY}")

    def start(self) -> None:
        """Make the environment where there is none, start, and wait for the first answer."""
        python = self.place / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(self.place)], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "-q", *self.packages], check=True)
            packages = next((self.place / "lib").glob("python*/site-packages"))
            borrowed = [sysconfig.get_paths()["purelib"], str(HERE.parents[1])]
            (packages / "zz_borrowed.pth").write_text("\n".join(borrowed) + "\n", "utf-8")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environ = {**os.environ, **self.environ, "PORT": str(port)}
        log = (self.place / "log").open("wb")
        command = [str(python), str(HERE / f"{self.name}_app.py")]
        self.process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
        self.target = Target(f"http://127.0.0.1:{port}/predict", {})
        deadline = time.monotonic() + 90
        while True:
            with suppress(httpx.HTTPError):
                httpx.get(f"http://127.0.0.1:{port}/docs", timeout=5, trust_env=False)
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not start: see {self.place / 'log'}")
            time.sleep(0.2)

    def stop(self) -> None:
        """End it and the processes it started."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, 15)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, 9)


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

    def load(self, tool: str, body: Path, clients: int, seconds: float) -> Reading:
        """Pictures a second of all processes together."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"body": str(body), "seconds": seconds}) + "\n")
            process.stdin.flush()
        return Reading(sum(float(process.stdout.readline()) for process in self.processes if process.stdout is not None))

    def stop(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.wait()
