"""Measure what is older than its code anew: one figure after the other, each by its command, with nothing beside it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from benchmarks.measuring.about import about
from benchmarks.pages.stale import older
from slotwise.console import say
from slotwise.errors import SlotwiseError

FIGURES, COMPARE, SLOTWISE = "benchmarks.figures", "benchmarks.compare", "slotwise"
LONG = "--rounds 5 --seconds 5"
TUNE, QUICK, TEN = f"{SLOTWISE} tune", "--slo-p99-ms 200 --tool wrk --max-trials 20 --seconds 2", "--max-trials 10 --slo-p99-ms"
PLAN = {  # figure: the minutes that it takes, where its JSON does not tell, and what measures it
    "roofline-ants": (1, f"{SLOTWISE} roofline resnet18 --peak-tflops 1 --bandwidth-gbs 100 --batch-sizes 8,16,32,64"),
    "offline-digits": (1, f"{SLOTWISE} bench digits --offline --batch-sizes 1,2,4,8,16"),
    "offline-resnet18": (1, f"{SLOTWISE} bench resnet18 --offline --batch-sizes 1,2,4,8,16"),
    "offline-ants": (2, f"{SLOTWISE} bench ants_bees --offline --profile ei --batch-sizes 8,16,32,64"),
    "guard": (1, f"{FIGURES} guard --rounds 7"),
    "records": (3, f"{FIGURES} records {LONG}"),
    "hedging": (4, f"{FIGURES} hedging --rounds 5"),
    "start": (5, f"{FIGURES} starting --rounds 7"),
    "traces": (4, f"{FIGURES} traces --rounds 40 --seconds 1"),
    "scale": (2, f"{FIGURES} scale"),
    "rollouts": (3, f"{FIGURES} rollouts"),
    "instances": (6, f"{FIGURES} instances {LONG}"),
    "captions": (6, f"{FIGURES} captions {LONG}"),
    "text": (6, f"{FIGURES} text {LONG}"),
    "decoded": (8, f"{FIGURES} decoded {LONG}"),
    "fairness": (5, f"{FIGURES} fairness {LONG}"),
    "echo": (6, f"{FIGURES} echo {LONG}"),
    "accuracy": (6, f"{FIGURES} accuracy {LONG}"),
    "bits": (6, f"{FIGURES} bits"),
    "hostile": (4, f"{FIGURES} hostile --rounds 5"),
    "nodes": (6, f"{FIGURES} nodes"),
    "by_steps": (12, f"{FIGURES} by_steps --rounds 5 --seconds 15"),
    "streams_beside": (12, f"{FIGURES} streams_beside {LONG}"),
    "unread": (12, f"{FIGURES} unread --rounds 3 --seconds 8"),
    "dropped": (8, f"{FIGURES} dropped --rounds 3 --seconds 40"),
    "adversaries": (8, f"{FIGURES} adversaries --rounds 5 --seconds 10"),
    "disasters": (12, f"{FIGURES} disasters --rounds 20"),
    "translation": (8, f"{FIGURES} stress"),
    "mnist_triton": (50, f"{FIGURES} mnist_triton {LONG}"),
    "own_host": (14, f"{FIGURES} own_host {LONG}"),
    "gateway": (14, f"{FIGURES} gateway --rounds 10 --seconds 5"),
    "hosts": (18, f"{FIGURES} hosts {LONG}"),
    "loads": (55, f"{FIGURES} loads {LONG}"),
    "worker": (4, f"{FIGURES} worker --commit 39c39cf --rounds 10 --seconds 0.3"),
    "captions_large": (20, f"{FIGURES} captions_large --rounds 2 --seconds 15"),
    "translation_large": (20, f"{FIGURES} translation_large --rounds 2 --seconds 10"),
    "study152": (40, f"{FIGURES} study152 --rounds 1 --seconds 5"),
    "day": (75, f"{FIGURES} day --rounds 1 --seconds 600"),
    "ablation": (10, f"{COMPARE} ablation {LONG}"),
    "precision": (10, f"{COMPARE} precision {LONG}"),
    "inference": (10, f"{COMPARE} inference {LONG}"),
    "engines": (10, f"{COMPARE} engines {LONG}"),
    "engines-int8": (10, f"{COMPARE} engines-int8 {LONG}"),
    "lite0": (16, f"{COMPARE} lite0 {LONG}"),
    "resnet152": (30, f"{COMPARE} resnet152 --rounds 5"),
    "ants": (12, f"{COMPARE} ants --rounds 5"),
    "tensors": (20, f"{COMPARE} tensors {LONG}"),
    "vision": (22, f"{COMPARE} vision {LONG} --figure docs/figures/vision.svg"),
    "vision-amx": (22, f"{COMPARE} vision {LONG} --figure docs/figures/vision-amx.svg"),
    "study": (20, f"{FIGURES} study --rounds 3 --seconds 2"),
    "tune-mnist-64": (8, f"{TUNE} mnist --body models/mnist/examples/7.f32 --clients 64 {QUICK}"),
    "tune-mnist-8": (8, f"{TUNE} mnist --body models/mnist/examples/7.f32 --clients 8 {QUICK}"),
    "tune-efficientnet": (8, f"{TUNE} efficientnet --body models/efficientnet/examples --clients 8 {TEN} 1000"),
    "tune-resnet18": (8, f"{TUNE} resnet18 --body models/resnet18/examples --clients 32 {TEN} 3000"),
    "tune-resnet18-amx": (8, f"{TUNE} resnet18 --body models/resnet18/examples --clients 8 {TEN} 1000"),
}
AMX, NOT_AMX = ("vision-amx", "tune-resnet18-amx"), ("vision", "tune-resnet18")  # each of a machine with it, or without


def anew(root: Path, names: Sequence[str], until: str, plan: Mapping[str, tuple[float, str]] = PLAN) -> int:
    """Measure these figures; where none is named, those of the plan that are older than their code. Returns how many failed.

    Those of another kind of machine, with AMX or without, are measured where they are named only.
    until: HH:MM of this day or the next; none begins that would end later. A figure whose measurement fails stays as it was.
    What each printed is in .slotwise/anew/NAME.log. Raises SlotwiseError.
    """
    if unknown := {*names} - {*plan}:
        raise SlotwiseError(f"there is no command for {', '.join(sorted(unknown))}", f"there is one for {', '.join(plan)}")
    ends = _next(until) if until else datetime.max
    if not names:
        stale, other_machines = older(root), NOT_AMX if about()["machine"]["amx"] else AMX
        names = [name for name in plan if name in stale and name not in other_machines]
    failed = 0
    for name in names:
        minutes, command = plan[name]
        minutes = _took(root, name) or minutes
        if datetime.now() + timedelta(minutes=minutes) > ends:
            say(f"{name}: left, as its {minutes:g} minutes end after {until}")
            continue
        say(f"{name}: {minutes:g} minutes")
        began = time.monotonic()
        good = _measured(root, name, _asked(name, command))
        say(f"{name}: {'measured' if good else 'FAILED'} in {(time.monotonic() - began) / 60:.1f} minutes")
        failed += not good
    return failed


def _took(root: Path, name: str) -> float:
    """The minutes that it took last time; 0 where nobody knows."""
    file = root / "docs" / "figures" / f"{name}.json"
    return float(json.loads(file.read_text("utf-8")).get("minutes", 0)) if file.exists() else 0.0


def _next(clock: str) -> datetime:
    now = datetime.now()
    try:
        at = datetime.combine(now, datetime.strptime(clock, "%H:%M").time())
    except ValueError:
        raise SlotwiseError(f"--until {clock} is no HH:MM", "--until 23:30") from None
    return at if at > now else at + timedelta(days=1)


def _asked(name: str, command: str) -> list[str]:
    """The command that writes this figure."""
    if command.startswith(f"{SLOTWISE} "):
        return [sys.executable, "-m", FIGURES, "keep", name, "--command", command]
    return [sys.executable, "-m", *shlex.split(command), "--json", f"docs/figures/{name}.json"]


def _measured(root: Path, name: str, command: Sequence[str]) -> bool:
    """Whether it was measured; else its file is as it was."""
    file, log = root / "docs" / "figures" / f"{name}.json", root / ".slotwise" / "anew" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    before = file.read_bytes() if file.exists() else b""
    good = False
    try:
        file.unlink(missing_ok=True)  # a comparison would go on with the rounds that it has
        with log.open("wb") as output:
            code = _ended(
                subprocess.Popen(
                    command, cwd=root, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
            )
        good = code == 0 and file.exists()
    finally:
        if not good:
            file.unlink(missing_ok=True)
            if before:
                file.write_bytes(before)
    return good


def _ended(job: subprocess.Popen[bytes]) -> int:
    """Its exit code. Ctrl-C is handed on, and it has the time to end the servers that it has started."""
    try:
        return job.wait()
    except KeyboardInterrupt:
        os.killpg(job.pid, signal.SIGINT)  # as a terminal does: it may wait for a process itself
        job.wait()
        raise
