"""Start the tritonserver that nvidia-pytriton carries: its files are found by path, and nothing of it is imported.

The tokens that open its APIs can only be given on the command line, which every user of the machine can read. So they are
hidden there (slotwise.server.hidden_arguments).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.errors import TRITON, SlotwiseError, pip_install
from slotwise.server import hidden_arguments

if TYPE_CHECKING:
    from slotwise.profiles.profile import Profile
    from slotwise.server.record import ServerRecord

STUB = "triton_python_backend_stub"
# A Triton that Vertex AI or SageMaker starts opens another port, for whoever reaches it and without a token.
CLOSED = ("--allow-vertex-ai", "--allow-sagemaker")
BACKEND = ("libtriton_python.so", "triton_python_backend_utils.py")
# Whoever loads a model runs code as us; shared memory, traces and the log's settings name files.
OPERATORS_APIS = "model-repository,shared-memory,trace,logging"
HELP_S = 60
EXIT_S = 15  # how long Triton waits for what is in hand when it ends


@dataclass(frozen=True)
class TritonFiles:
    """Where the parts of the installed Triton are. stub: runs python models under this very Python."""

    server: Path
    libraries: Path
    backend: Path
    stub: Path


def find() -> TritonFiles:
    """The installed Triton. Raises SlotwiseError where there is none, or none for this Python."""
    package = importlib.util.find_spec("pytriton")
    folders = list(package.submodule_search_locations or []) if package else []
    if not folders:
        raise SlotwiseError("Triton is not installed", pip_install(TRITON))
    root = Path(folders[0])
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stubs = root / "tritonserver" / "python_backend_stubs"
    files = TritonFiles(
        root / "tritonserver" / "bin" / "tritonserver",
        root.parent / "nvidia_pytriton.libs",
        root / "tritonserver" / "backends" / "python",
        stubs / version / STUB,
    )
    if not files.server.is_file():
        raise SlotwiseError(f"there is no tritonserver in {root}", pip_install(f"--force-reinstall {TRITON}"))
    if not files.stub.is_file():
        known = ", ".join(sorted(folder.name for folder in stubs.iterdir())) if stubs.is_dir() else "none"
        raise SlotwiseError(f"this Triton runs no models of Python {version}", f"it knows: {known}")
    return files


def has_gpu() -> bool:
    """Whether there is an NVIDIA driver here."""
    return Path("/dev/nvidiactl").exists()


def launch(record: ServerRecord, profile: Profile, tokens: Mapping[str, str], repository: Path) -> subprocess.Popen[bytes]:
    """Start tritonserver with an empty repository; its output goes to logs/triton.log."""
    files = find()
    environ = {**os.environ, "LD_LIBRARY_PATH": str(files.libraries), "PATH": path()}
    logs = record.state_dir / "logs"
    logs.mkdir(exist_ok=True)
    command = [str(files.server), *_arguments(record, profile, tokens, repository, backends(files, record.tmp_dir))]
    command += [f"{option}=false" for option in known_options(files) & set(CLOSED)]
    with (logs / "triton.log").open("ab") as log:
        given: dict[str, Any] = {"cwd": record.state_dir, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        hidden = hidden_arguments.start(command, list(tokens.values()), environ, **given)
        return hidden or subprocess.Popen(command, env=environ, **given)


def known_options(files: TritonFiles) -> set[str]:
    """The options of this tritonserver: which there are depends on how it was built."""
    environ = {**os.environ, "LD_LIBRARY_PATH": str(files.libraries)}
    printed = subprocess.run([files.server, "--help"], env=environ, capture_output=True, text=True, timeout=HELP_S, check=False)
    return set(re.findall(r"^\s*(--[a-z0-9-]+)", printed.stdout + printed.stderr, re.MULTILINE))


def path() -> str:
    """A PATH whose first python3 is this very one, because the stub takes the first."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def backends(files: TritonFiles, tmp_dir: Path) -> Path:
    """A folder of backends that holds the python backend with the stub for this Python."""
    folder = tmp_dir / "backends"
    (folder / "python").mkdir(parents=True)
    for source in (*(files.backend / name for name in BACKEND), files.stub):
        (folder / "python" / source.name).symlink_to(source)
    return folder


def _arguments(
    record: ServerRecord, profile: Profile, tokens: Mapping[str, str], repository: Path, backend_dir: Path
) -> list[str]:
    ports, verbose = record.ports, profile.log_level in ("INFO", "DEBUG")
    inference, management = (f"authorization=Bearer {tokens[kind]}" for kind in ("inference", "management"))
    return [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        f"--backend-directory={backend_dir}",
        f"--backend-config=python,shm-region-prefix-name={shared_memory(record.run_id)}",
        "--http-address=127.0.0.1",
        f"--http-port={ports.inference}",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={ports.grpc_inference}",
        "--metrics-address=127.0.0.1",
        f"--metrics-port={ports.metrics}",
        f"--allow-gpu-metrics={str(has_gpu()).lower()}",
        f"--http-restricted-api=inference:{inference}",
        f"--http-restricted-api={OPERATORS_APIS}:{management}",
        f"--grpc-restricted-protocol=inference:{inference}",
        f"--grpc-restricted-protocol={OPERATORS_APIS}:{management}",
        f"--exit-timeout-secs={EXIT_S}",
        f"--log-info={str(verbose).lower()}",
        f"--log-warning={str(profile.log_level != 'ERROR').lower()}",
    ]


def stop(process: subprocess.Popen[bytes]) -> None:
    """End tritonserver: what is in hand is answered first."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(EXIT_S + 5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def shared_memory(run_id: str) -> str:
    """What the names of this run's shared memory begin with."""
    return f"slotwise_{run_id[:16]}"


def remove_shared_memory(run_id: str) -> None:
    """Remove what a Triton of this run that was killed has left in /dev/shm."""
    folder = Path("/dev/shm")
    for file in folder.glob(f"{shared_memory(run_id)}*") if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            file.unlink()


def last_line(record: ServerRecord) -> str:
    """The last line of Triton's log that says something."""
    try:
        text = (record.state_dir / "logs" / "triton.log").read_text("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("|", "+"))]
    return lines[-1] if lines else ""
