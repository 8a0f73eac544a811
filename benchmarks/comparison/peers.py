"""A server of other people, with the settings of the comparison: started in a process group of its own, asked, ended."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from benchmarks.comparison.programs import CONFIG, HERE, PROGRAMS, environment, plain, v2_head
from benchmarks.comparison.systems import Http
from benchmarks.measuring.about import version
from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import Target
from slotwise.profiles.ports import Ports
from slotwise.server.ray.cluster import ELSEWHERE_OFF, PATIENCE
from slotwise.server.triton import process as triton_process

START_S = 300


class Peer(Http):
    """One peer with the settings of the comparison. work: for its files; places: where its environment is kept."""

    def __init__(self, name: str, program: str, settings: Mapping[str, Any], work: Path, places: Path) -> None:
        self.name, self.program, self.about = name, program, PROGRAMS[program]
        self.place, self.work = places / f"venv-{program.partition('_')[0]}", work / name
        self.ports = Ports.free()
        self.settings = {**settings, "port": self.ports.inference}
        self.short = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")  # the path of a socket has a limit of 107 bytes
        self.path = "/tensor" if (program, settings["kind"]) == ("fastapi", "tensor") else self.about.path
        self.process: subprocess.Popen[bytes] | None = None
        self.log = places / f"{name}.log"
        self.can_be_stopped = program not in ("ray", "triton")  # they would take their own processes for dead

    def wrap(self, body: bytes, content_type: str) -> RequestBody:
        """The body as this server wants it."""
        if self.program == "triton":
            return RequestBody(v2_head(len(body)) + body, "application/octet-stream")
        if self.path == "/tensor":
            return plain(body, content_type)
        return self.about.wrap(body, content_type)

    def headers(self, body: bytes) -> dict[str, str]:
        """Triton wants to know where the tensor begins."""
        return {"inference-header-content-length": str(len(v2_head(len(body))))} if self.program == "triton" else {}

    @property
    def pid(self) -> int:
        """The program's process."""
        assert self.process is not None
        return self.process.pid

    def described(self) -> dict[str, Any]:
        """Its settings, for the table below the figures."""
        used = {key: self.settings[key] for key in ("processes", "threads", "batch_size", "delay_ms", "form")}
        if not self.about.batches:
            used |= {"batch_size": 1, "delay_ms": 0}
        if self.program == "mosec":  # of milliseconds, one at least
            used["delay_ms"] = max(1, round(used["delay_ms"]))
        if self.program == "bentoml":
            used["delay_ms"] = None
        if self.settings["form"] in ("inference", "engine"):
            used["engine"] = f"{self.settings['engine']}-{self.settings['precision']}"
        packages = self.about.packages or [f"{self.about.ours}=={version(self.about.ours)}"]
        return {**used, "log_level": "ERROR", "front": self.about.front, "packages": packages}

    def start(self) -> None:
        """Make the environment where there is none, start the program, and wait for its first good answer."""
        self.work.mkdir(parents=True)
        (self.work / "settings.json").write_text(json.dumps(self.settings), "utf-8")
        threads = str(self.settings["threads"])
        environ = {**os.environ, "COMPARED": str(self.work / "settings.json"), "PYTHONPATH": str(HERE)}
        environ |= {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            **PATIENCE,
            "RAY_TMPDIR": self.short.name,
        }
        environ |= {"BENTOML_DO_NOT_TRACK": "True", "BENTOML_HOME": str(self.work / "bentoml")}
        environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
        environ |= haproxy(Path(self.short.name), self.ports) if self.settings.get("haproxy") else ELSEWHERE_OFF
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command(environ), env=environ, cwd=self.work, stdout=log, stderr=log, start_new_session=True
            )
        self.target = Target(f"http://127.0.0.1:{self.settings['port']}{self.path}", {})

    def wait(self, body: bytes, content_type: str) -> None:
        """Wait for the first good answer. Raises RuntimeError where the process ends, or none comes."""
        assert self.process is not None
        deadline, last = time.monotonic() + START_S, "nothing"
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(httpx.HTTPError):
                answer = self.ask(body, content_type)
                if answer.status_code == 200:
                    return
                last = f"{answer.status_code} {answer.text[:200]}"
            time.sleep(0.3)
        lines = self.log.read_text("utf-8", "replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")[:300]
        raise RuntimeError(f"its program does not start (last answer: {last}; it said: {said}): see {self.log}")

    def command(self, environ: dict[str, str]) -> list[str]:
        """What starts it; its environment is completed."""
        if self.program == "triton":
            return self.triton(environ)
        python = str(environment(self.place, self.about.packages) if self.about.packages else sys.executable)
        command = [python, str(HERE / f"{self.program}_app.py")]
        if self.program == "bentoml":
            command = [str(self.place / "bin" / "bentoml"), "serve", "bentoml_app:Classifier", "--host", "127.0.0.1"]
            command += ["--port", str(self.settings["port"]), "--working-dir", str(HERE), "--quiet"]
        if self.program == "mlserver":
            command = [str(self.place / "bin" / "mlserver"), "start", str(self.mlserver())]
        if self.program in ("mosec", "mosec_streams"):
            command += ["--address", "127.0.0.1", "--port", str(self.settings["port"]), "--log-level", "error"]
            command += [
                "--timeout",
                str(1000 * self.settings.get("timeout_s", 60)),
            ]  # as long as every client waits; 3 s by default
        return command

    def mlserver(self) -> Path:
        """The folder of a model with its settings, and the server's."""
        folder = self.work / "classifier"
        folder.mkdir()
        model = {"name": "classifier", "implementation": "mlserver_app.Classifier"}
        model |= {"max_batch_size": self.settings["batch_size"], "max_batch_time": self.settings["delay_ms"] / 1000}
        (folder / "model-settings.json").write_text(json.dumps(model), "utf-8")
        ports: dict[str, Any] = {
            "http_port": self.ports.inference,
            "grpc_port": self.ports.grpc_inference,
            "metrics_port": self.ports.metrics,
        }
        levels = {name: {"level": "ERROR"} for name in ("mlserver", "uvicorn")}
        ports["logging_settings"] = {"version": 1, "disable_existing_loggers": False, "loggers": levels}
        server = {**ports, "host": "127.0.0.1", "parallel_workers": self.settings["processes"], "debug": False}
        (folder / "settings.json").write_text(json.dumps(server), "utf-8")
        return folder

    def triton(self, environ: dict[str, str]) -> list[str]:
        """Write the model repository, and say how the tritonserver that `make full` installs is started on it."""
        files, model = triton_process.find(), self.work / "repository" / "classifier"
        (model / "1").mkdir(parents=True)
        shutil.copyfile(HERE / "triton_app.py", model / "1" / "model.py")
        for module in ("classifier.py", "misbehaving.py"):  # its stub reads no PYTHONPATH
            shutil.copyfile(HERE / module, model / "1" / module)
        delay_us = round(self.settings["delay_ms"] * 1000)
        config = CONFIG.format(**{**self.settings, "delay_us": delay_us})
        (model / "config.pbtxt").write_text(config, "utf-8")
        environ |= {"LD_LIBRARY_PATH": str(files.libraries), "PATH": triton_process.path()}
        command = [str(files.server), f"--model-repository={model.parent}", "--http-address=127.0.0.1", "--log-info=false"]
        command += [f"--http-port={self.settings['port']}", "--allow-grpc=false", "--allow-metrics=false"]
        command += [f"--backend-directory={triton_process.backends(files, self.work)}", "--log-warning=false"]
        return [*command, f"--backend-config=python,shm-region-prefix-name=compare_{self.settings['port']}"]

    def stop(self) -> None:
        """End it and the processes it started."""
        if self.process is not None:
            for number, seconds in ((15, 20), (9, 5)):
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(seconds)
        self.short.cleanup()


def haproxy(folder: Path, ports: Ports) -> dict[str, str]:
    """What has Ray Serve put HAProxy in its proxy's place. Its numbers and its page listen on every address."""
    files = {"CONFIG_FILE_LOC": "haproxy.cfg", "SOCKET_PATH": "admin.sock", "SERVER_STATE_FILE": "server-state"}
    environ = {f"RAY_SERVE_HAPROXY_{key}": str(folder / "haproxy" / name) for key, name in files.items()}
    environ["RAY_SERVE_HAPROXY_SERVER_STATE_BASE"] = str(folder / "haproxy")
    own = {"METRICS_PORT": ports.metrics, "STATS_PORT": ports.management}
    environ |= {f"RAY_SERVE_HAPROXY_{key}": str(port) for key, port in own.items()}
    return {**environ, "RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1"}
