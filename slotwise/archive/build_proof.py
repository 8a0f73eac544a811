"""Prove at build that a network keeps the rows of a batch apart, on each installed engine, with the archive's own worker.

The verdicts go into the archive's slotwise.json. What was proven of the same files, with the same engines and on the same
processor, is kept and not proven again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from slotwise import console
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.model_spec import ModelSpec
from slotwise.profiles.profile import load_profile
from slotwise.worker.engines import processor
from slotwise.worker.engines.choice import recall, remember
from slotwise.worker.separability.about import LIBRARIES, imported_versions, version_of
from slotwise.worker.separability.proof import KEY, SETTINGS, carried
from slotwise.worker.separability.verdict import Verdict

ENGINE_S = 60.0  # of proving one engine; larger batches than were proven by then do not run
LIMIT_S = 600.0  # of all together
PATIENCE_S = 30.0  # until it is said that it takes long
LEAST_ROWS, MOST_ROWS = 8, 16


def prove_archive(folder: Path, spec: ModelSpec) -> None:
    """Prove the archive that is laid out in `folder`, and write the verdicts into its slotwise.json.

    Raises SlotwiseError where the handler cannot be imported, and where model.toml requires a proof and an engine has none.
    Otherwise what is not proven is said.
    """
    path = folder / SETTINGS
    settings = json.loads(path.read_text("utf-8"))
    proof = _kept(folder, spec)
    if fault := proof.get("fault"):
        missing = proof.get("missing")
        hint = f"install what brings {missing}, here and where it is served" if missing else "correct that line"
        raise SlotwiseError(f"{spec.name}: its handler cannot be imported: {fault}", hint)
    path.write_text(json.dumps({**settings, KEY: proof["verdicts"]}, indent=2, sort_keys=True), "utf-8")
    found = carried({KEY: proof["verdicts"]})
    doubtful = [verdict for verdict in found if verdict.separable is not True]
    whys = [f"on {verdict.about}: {verdict.sentence()}" for verdict in doubtful] or [str(proof.get("why", ""))]
    if spec.separable == "required" and (doubtful or not found):
        raise SlotwiseError(
            f"{spec.name} requires that the rows of a batch are kept apart, but {whys[0]}",
            'with separable = "auto" in model.toml its rows run one by one',
        )
    for why in filter(None, whys):
        console.say(f"{spec.name} {why}")


def _kept(folder: Path, spec: ModelSpec) -> dict[str, Any]:
    shelf = project.state_root() / "cache" / spec.name / "separability.json"
    key = _key(folder)
    before = recall(shelf, key)
    if isinstance(before, dict):
        return before
    proof = _prove(folder, spec)
    if not proof.keys() & {"why", "ended"}:  # what ended it may have been the machine
        shelf.parent.mkdir(parents=True, exist_ok=True)
        remember(shelf, key, proof)
    return proof


def _prove(folder: Path, spec: ModelSpec) -> dict[str, Any]:
    rows = load_profile("cpu", environ={}, cores=0).for_model(spec.profiles.get("cpu", {})).batch_size
    return ask_worker(folder, min(max(rows, LEAST_ROWS), MOST_ROWS))


def ask_worker(folder: Path, batch_size: int, profile: str = "") -> dict[str, Any]:
    """Ask the worker of the archive in `folder`, in a process of its own: {"verdicts": [...]}, and "why" where there is none.

    profile: ask about the one engine that it takes, and not about all.
    """
    command = [sys.executable, "-P", "-B", "-m", "slotwise.worker.hosts.proving", str(batch_size), str(ENGINE_S)]
    command += [profile] if profile else []
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLOTWISE_")}
    environ["PYTHONPATH"] = str(folder)
    nobody = subprocess.DEVNULL  # also of what the handler starts, which may stay
    pipes: dict[str, Any] = {"stdin": nobody, "stdout": subprocess.PIPE, "stderr": nobody, "text": True}
    try:
        with subprocess.Popen(command, cwd=folder, env=environ, start_new_session=True, **pipes) as child:
            try:
                try:
                    printed, _ = child.communicate(timeout=PATIENCE_S)
                except subprocess.TimeoutExpired:
                    console.say(f"still trying whether a batch changes its rows ({LIMIT_S:.0f} s at most)")
                    printed, _ = child.communicate(timeout=LIMIT_S - PATIENCE_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()  # after Ctrl-C Popen does not: it would still write into what is removed
        return dict(json.loads(printed)) if child.returncode == 0 else _ended(f"it ends the worker ({child.returncode})")
    except subprocess.TimeoutExpired:
        return _ended(f"it does not end in {LIMIT_S:.0f} s")
    finally:
        for left in folder.glob(".*.json*"):  # what a worker leaves for the next one
            left.unlink()


def _ended(why: str) -> dict[str, Any]:
    """Nothing is known, and no server's worker shall try: a verdict about nobody's engine holds for each, one row at a time."""
    return {"verdicts": [Verdict(None, f"when it is tried, {why}", most_rows=1).to_json()], "ended": True}


def _key(folder: Path) -> str:
    """A digest of all that a proof depends on."""
    versions = [sys.version, {name: version_of(name) for name in LIBRARIES}, imported_versions(folder)]
    digest = hashlib.sha256(json.dumps([processor.named(), versions]).encode())
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and "MAR-INF" not in path.parts):
        with file.open("rb") as source:
            digest.update(f"{file.relative_to(folder)} {hashlib.file_digest(source, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()[:16]
