"""The image that takes the place of pytorch/torchserve's: what its entry point runs, and how that ends."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
ENTRY = ROOT / "scripts" / "torchserve-entry.sh"
WAIT_S = 60.0

# Stands for the command: says what it was asked; --start leaves a process, whose pid stands in the file, and --stop ends it.
FAKE = """\
#!/bin/bash
echo "$*" >>"$LOG"
case "$*" in
    *--start*--foreground* | *--version*) ;;
    *--start*) sleep 600 >/dev/null & echo $! >"$TMPDIR/.model_server.pid" ;;
    *--stop*) kill "$(head -n 1 "$TMPDIR/.model_server.pid")" ;;
esac
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "torchserve").write_text(FAKE)
    (tmp_path / "torchserve").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "LOG": str(tmp_path / "log"), "TMPDIR": str(tmp_path)}


def asked(environ: dict[str, str]) -> list[str]:
    log = Path(environ["LOG"])
    return log.read_text().splitlines() if log.exists() else []


def pid_in(environ: dict[str, str]) -> int:
    """The pid in the file; 0 before one stands there."""
    file = Path(environ["TMPDIR"]) / ".model_server.pid"
    return int(file.read_text() or 0) if file.exists() else 0


def test_serve_runs_in_the_foreground_with_the_images_configuration(environ: dict[str, str]) -> None:
    assert subprocess.run([str(ENTRY), "serve", "--ncs"], env=environ, timeout=WAIT_S, check=False).returncode == 0
    assert asked(environ) == ["--start --foreground --ts-config /home/model-server/config.properties --ncs"]


def test_a_command_runs_as_it_is(environ: dict[str, str]) -> None:
    subprocess.run([str(ENTRY), "torchserve", "--version"], env=environ, timeout=WAIT_S, check=True)
    subprocess.run([str(ENTRY), "torchserve", "--start", "--foreground", "--ncs"], env=environ, timeout=WAIT_S, check=True)
    assert asked(environ) == ["--version", "--start --foreground --ncs"]


def test_a_server_that_goes_on_alone_is_stayed_with_and_ended_in_order(environ: dict[str, str]) -> None:
    process = subprocess.Popen([str(ENTRY), "torchserve", "--start", "--ncs"], env=environ)
    pid = until(lambda: pid_in(environ), "it does not start")
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0
    assert asked(environ) == ["--start --ncs", "--stop --foreground"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_it_fails_with_a_server_that_is_killed(environ: dict[str, str]) -> None:
    """It exited 0, so that nobody started it again."""
    process = subprocess.Popen([str(ENTRY), "torchserve", "--start"], env=environ)
    os.kill(until(lambda: pid_in(environ), "it does not start"), signal.SIGKILL)
    assert process.wait(WAIT_S) == 1


def test_the_build_context_holds_what_is_copied() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (scripts/\S+)", (ROOT / "Dockerfile.torchserve").read_text("utf-8"), re.MULTILINE)
    assert len(copied) == 2
    assert set(copied) <= allowed


def test_the_entry_point_has_the_path_that_manifests_name() -> None:
    text = (ROOT / "Dockerfile.torchserve").read_text("utf-8")
    assert "COPY scripts/torchserve-entry.sh /usr/local/bin/torchserve-entry\n" in text
    assert "ln -s torchserve-entry /usr/local/bin/dockerd-entrypoint.sh\n" in text.rpartition("\nFROM ")[2]


def test_what_torchserves_own_vision_handlers_import_is_installed() -> None:
    pytest.importorskip("ts")
    spec = importlib.util.find_spec("ts")
    assert spec
    assert spec.origin
    named: set[str] = set()
    for name in ("base_handler", "vision_handler", "image_classifier", "image_segmenter", "object_detector"):
        tree = ast.parse((Path(spec.origin).parent / "torch_handler" / f"{name}.py").read_text("utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Import):
                named |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                named.add(str(node.module).partition(".")[0])
    of_others = named - sys.stdlib_module_names - {"ts"}
    assert of_others == {"torch", "torchvision", "captum", "PIL", "packaging"}
    installed = (ROOT / "Dockerfile.torchserve").read_text("utf-8").replace("[images,", "PIL ")
    assert [name for name in of_others if not re.search(rf"\b{name}\b", installed.partition("pip install")[2])] == []
