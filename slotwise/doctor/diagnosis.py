"""What `slotwise doctor` finds out: the machine, what is installed, which servers run, and whether a request gets through."""

from __future__ import annotations

import importlib.util
import locale
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from slotwise import __version__
from slotwise.archive.renewal import outdated_in
from slotwise.client.live_model import LiveModel
from slotwise.client.management import ManagementClient
from slotwise.deploy import drift
from slotwise.errors import BASE, EXTRAS, MMS, TRITON, SlotwiseError, pip_install
from slotwise.files import project
from slotwise.files.disk import file_system
from slotwise.frontend import process
from slotwise.profiles import memory
from slotwise.server.java.runtime import java_home
from slotwise.server.record import Kind, ServerRecord, all_running
from slotwise.server.supervisor import PACKAGES
from slotwise.worker.engines.processor import features
from slotwise.worker.environment.cores import available_cores
from slotwise.worker.separability.about import version_of

SERVERS: dict[str, Kind] = {  # the package, and what `--server` calls it
    "torchserve": "torchserve",
    "multi-model-server": "mms",
    "ray": "ray",
    "nvidia-pytriton": "triton",
    "slotwise": "slotwise",
}
ENGINES = ("torch", "onnxruntime", "openvino", "ctranslate2", "transformers")
TOOLS = ("curl", "wrk", "ab", "docker", "kubectl")
LOOK_S = 20.0  # a server that says nothing for so long is what a bug report is about
INSTRUCTIONS = {"AVX2": "avx2", "AVX-512": "avx512f", "AVX-512 BF16": "avx512_bf16", "AMX": "amx_tile"}
BRINGS = {
    "torchserve": "the server TorchServe, with a Java",
    "torch": "the engine PyTorch, the models resnet18, resnet152 and ants_bees, and `slotwise train`",
    "onnx": "graphs of ONNX made from a network of PyTorch",
    "openvino": "the engine OpenVINO, int8",
    "efficientnet": "the ImageNet weights of the model efficientnet",
    "text": "the models captions and translation",
    "images": "JPEGs decoded in less time",
    "ray": "the server Ray Serve, on one machine or many",
    "tune": "`slotwise tune`, and the figures of bench and roofline",
    "digits": "the training of digits and mnist",
    "tables": "models of LightGBM, XGBoost and scikit-learn in their own files",
    "s3": "archives by s3://BUCKET/NAME.mar",
    "exporters": "graphs of ONNX made from a model of scikit-learn",
    "otel": "spans of OpenTelemetry: `slotwise gateway --traces`",
}
APART = {  # servers that no extra can bring
    "multi-model-server": (MMS, "the server MMS"),
    "nvidia-pytriton": (TRITON, "the server Triton; Linux"),
}


def machine() -> dict[str, Any]:
    """The machine and the folder, as far as they matter for serving."""
    known = features()
    space = shutil.disk_usage(Path())
    return {
        "slotwise": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cores": available_cores(),
        "memory_mib": memory.total_bytes() >> 20,
        "free_memory_mib": memory.free_bytes() >> 20,
        "instructions": [name for name, flag in INSTRUCTIONS.items() if flag in known],
        "cuda": _gpus(),
        "locale": locale.nl_langinfo(locale.CODESET),
        "java": _java(),
        "folder": str(Path.cwd()),
        "state": str(project.state_root()),
        "disk": f"{space.free >> 20} MiB free on {file_system(Path())}",
    }


def installed() -> dict[str, Any]:
    """Servers, engines and tools with their versions, None where there is none; and what each missing extra would bring."""
    absent: dict[str, list[str]] = {}
    for package, extra in EXTRAS.items():
        if importlib.util.find_spec(package) is None:
            absent.setdefault(extra, []).append(package)
    servers = {name: version_of(name) or None for name in SERVERS}
    if any(importlib.util.find_spec(package) is None for package in PACKAGES["slotwise"]):
        servers["slotwise"] = None
    missing = [
        {"extra": extra, "packages": packages, "brings": BRINGS[extra], "get": pip_install(f'"slotwise[{extra}]"')}
        for extra, packages in absent.items()
    ]
    missing += [
        {"extra": SERVERS[name], "packages": [name], "brings": brings, "get": pip_install(what)}
        for name, (what, brings) in APART.items()
        if servers[name] is None
    ]
    if needed := [package for package in BASE if importlib.util.find_spec(package) is None]:
        whole = {"extra": "slotwise", "packages": needed, "brings": "what the base install has", "get": pip_install("slotwise")}
        missing.insert(0, whole)
    return {
        "servers": servers,
        "engines": {name: version_of(name) or None for name in ENGINES},
        "tools": {name: shutil.which(name) for name in TOOLS},
        "missing": missing,
    }


def running_servers() -> list[dict[str, Any]]:
    """Every server of this project, its models, what is odd about them, and the gateway in front of it."""
    return [_server(record) for record in all_running()]


def old_archives() -> list[str]:
    """What carries the worker of an earlier release in this project's model store."""
    return outdated_in(Path("model_store"))


def _server(record: ServerRecord) -> dict[str, Any]:
    gateway = process.running(record.name)
    found: dict[str, Any] = {"name": record.name, "kind": record.kind, "profile": record.profile, "urls": record.urls}
    found |= {"gateway": gateway.url if gateway else None, "models": [], "notes": []}
    try:
        with ManagementClient(record, timeout_s=LOOK_S) as client:
            live = [version for model in client.list() for version in client.describe_all(model.name)]
        found["models"] = [_model(version) for version in live]
        found["notes"] = drift.notes(drift.read(record), available_cores())
    except SlotwiseError as error:
        found["notes"].append(error.message)
    return found


def _model(live: LiveModel) -> str:
    rows = f"; {live.rows}" if live.rows else ""
    return f"{live.name} {live.version}: {live.readiness}{rows}"


def _java() -> str:
    """The Java that would be used, as `17.0.15 at PATH`, or why there is none."""
    try:
        home = java_home()
        done = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30, check=False)
    except SlotwiseError as error:
        return f"none: {error.message}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    return f"{(done.stderr.splitlines() or ['unknown'])[0]} at {home}"


def _gpus() -> list[str]:
    """The GPUs that nvidia-smi names; importing torch for this would take seconds."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
