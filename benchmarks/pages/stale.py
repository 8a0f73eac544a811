"""Which figures are older than the code they measure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measuring.about import git

WORKER = "slotwise/worker"
VISION = (WORKER, "handlers/image_classifier.py", "models/resnet18")
LITE0 = (*VISION[:2], "models/efficientnet", "slotwise/zoo/efficientnet.py")
TENSORS = (WORKER, "handlers/tensor_classifier.py", "models/mnist")
CAPTIONS = (WORKER, "handlers/captioner.py", "models/captions")
TRANSLATION = (WORKER, "handlers/translator.py", "models/translation")
CODE = {  # what each of docs/figures measures; what measures it counts as well
    **{part: (*VISION, "benchmarks/comparison") for part in ("vision", "vision-amx")},
    **{part: (*LITE0, "benchmarks/comparison") for part in ("lite0", "engines-int8")},
    **{part: (*VISION, "benchmarks/comparison") for part in ("engines", "inference", "ablation", "precision")},
    "tensors": (*TENSORS, "benchmarks/comparison"),
    "resnet152": (*VISION[:2], "models/resnet152", "benchmarks/comparison"),
    "ants": (*VISION[:2], "models/ants_bees", "benchmarks/comparison"),
    "text": (*TRANSLATION, *CAPTIONS[1:]),
    "captions": CAPTIONS,
    "translation": (*TRANSLATION, "benchmarks/measuring/slow_translator.py", "slotwise/frontend", "slotwise/backends"),
    "captions_large": (*CAPTIONS, "scripts/random_weights.py", "benchmarks/measuring/real_size.py"),
    "translation_large": (*TRANSLATION, "scripts/random_weights.py", "benchmarks/measuring/real_size.py"),
    "mnist_triton": (*TENSORS, "slotwise/server/triton", "slotwise/archive/triton"),
    "study152": (*VISION[:2], "models/resnet152", "slotwise/tune/live_bench.py"),
    "roofline-ants": ("slotwise/bench/roofline.py",),
    "gateway": (*VISION, "slotwise/frontend", "slotwise/backends"),
    "worker": (WORKER,),
    "guard": ("slotwise/worker/guard", "slotwise/worker/isolation.py"),
    "hedging": ("slotwise/frontend", "slotwise/backends"),
    "start": ("slotwise/server", "slotwise/profiles/render.py", "slotwise/deploy/java_training.py"),
    "accuracy": (
        "slotwise/worker/engines",
        "slotwise/worker/inputs/images.py",
        "slotwise/zoo/vision.py",
        "models/efficientnet",
    ),
    "bits": ("slotwise/worker/engines", "handlers", "models"),
    "gpu": ("slotwise/worker/engines", "slotwise/worker/separability", "handlers/image_classifier.py"),
    "hostile": (WORKER, "handlers/image_classifier.py", "handlers/captioner.py"),
    "campaign": (
        WORKER,
        "handlers",
        "slotwise/archive",
        "slotwise/frontend",
        "slotwise/backends",
        "slotwise/server",
        "tests/campaign",
    ),
    "traces": (WORKER, "slotwise/host", "slotwise/frontend", "slotwise/backends"),
    "records": ("slotwise/frontend", "slotwise/backends"),
    "neighbours": (
        WORKER,
        "slotwise/frontend",
        "slotwise/backends",
        "slotwise/host",
        "slotwise/server",
        "benchmarks/comparison/misbehaving.py",
        "benchmarks/neighbours",
    ),
    "fairness": (WORKER, "slotwise/host", "slotwise/frontend", "slotwise/backends"),
    "adversaries": (
        WORKER,
        "slotwise/host",
        "slotwise/frontend",
        "slotwise/backends",
        "benchmarks/measuring/priced.py",
    ),
    "instances": (WORKER, "slotwise/host", "slotwise/frontend", "slotwise/backends", "slotwise/tune/virtual_host.py"),
    "loads": (WORKER, "slotwise/host", "slotwise/frontend", "slotwise/backends"),
    "day": (WORKER, "slotwise/host", "slotwise/frontend", "slotwise/backends", "slotwise/tune/virtual_host.py"),
    "decoded": (*CAPTIONS, *TRANSLATION[1:], "slotwise/host", "slotwise/backends", "slotwise/frontend"),
    "dropped": (WORKER, "slotwise/host", "slotwise/backends", "slotwise/frontend", "benchmarks/measuring/handlers"),
    "unread": (
        WORKER,
        "slotwise/host",
        "slotwise/backends",
        "slotwise/frontend",
        "benchmarks/measuring/ticking.py",
        "benchmarks/comparison/step_model.py",
        "benchmarks/comparison/stream_systems.py",
    ),
    "by_steps": (WORKER, "handlers/translator.py", "slotwise/host", "slotwise/backends", "slotwise/frontend"),
    "streams_beside": (
        WORKER,
        "slotwise/host",
        "slotwise/frontend",
        "slotwise/backends",
        "handlers/translator.py",
        "benchmarks/measuring/poisoned_translator.py",
        "benchmarks/measuring/judged_streams.py",
        "benchmarks/comparison/step_model.py",
        "benchmarks/comparison/stream_systems.py",
    ),
    "disasters": ("slotwise/frontend", "slotwise/backends"),
    "rollouts": (
        "slotwise/frontend/rollout/canary_windows.py",
        "slotwise/frontend/rollout/verdict.py",
        "slotwise/deploy/rollout.py",
    ),
    "hosts": (WORKER, "slotwise/server", "slotwise/backends"),
    "own_host": (WORKER, "slotwise/host", "slotwise/frontend", "slotwise/backends"),
    "one_word": (WORKER, "slotwise/drop_in", "slotwise/host", "slotwise/frontend", "slotwise/backends"),
    "tune-mnist-64": (*TENSORS, "slotwise/tune"),
    "tune-mnist-8": (*TENSORS, "slotwise/tune"),
    **{name: (*VISION, "slotwise/tune") for name in ("tune-resnet18", "tune-resnet18-amx")},
    "tune-efficientnet": (*LITE0, "slotwise/tune"),
    "study": (*VISION, "slotwise/tune/live_bench.py"),
    "scale": ("slotwise/tune/simulate.py",),
    "nodes": ("slotwise/tune/simulate.py", "slotwise/server"),
    "echo": (*TENSORS, "benchmarks/measuring/handlers"),
    "offline-digits": (WORKER, "handlers/image_classifier.py", "models/digits", "slotwise/bench"),
    "offline-resnet18": (*VISION, "slotwise/bench"),
    "offline-ants": (WORKER, "handlers/image_classifier.py", "models/ants_bees", "slotwise/bench"),
}
HISTORY = ("earlier", "front", "jpeg", "lean", "repeat")  # finished experiments: their tables are written no more
LINE = re.compile(r"^\*Measured at .* since\.\*\n\n", re.MULTILINE)


def line(name: str, figures: Mapping[str, Any], root: Path) -> str:
    """One line where code changed after the figures were measured, or may have; nothing where not, or without the history."""
    runs = [*figures.get("parts", {}).values()] or [figures]  # the parts of a campaign may be of several commits
    commits = list(dict.fromkeys(str(run["commit"]).removesuffix("-dirty") for run in runs))
    at = f"*Measured at {', '.join(commit[:7] for commit in commits)} ({figures['date']})"
    whole = git("rev-parse", "--is-shallow-repository", root=root) == "false"
    if whole and any(git("cat-file", "-e", f"{commit}^{{commit}}", root=root) is None for commit in commits):
        return f"{at}, of which the history here does not tell what has changed since.*\n\n"
    changed = [
        path
        for path in CODE[name]
        if any(git("log", "-1", "--format=%h", f"{commit}..HEAD", "--", path, root=root) for commit in commits)
    ]
    return f"{at}; {', '.join(changed)} changed since.*\n\n" if changed else ""


def older(root: Path) -> dict[str, str]:
    """The figures that are older than their code, and what `line` says of each."""
    return {name: text for name, figures in _figures(root).items() if (text := line(name, figures, root))}


def _figures(root: Path) -> dict[str, dict[str, Any]]:
    files = [file for file in sorted((root / "docs" / "figures").glob("*.json")) if file.stem not in HISTORY]
    return {file.stem: json.loads(file.read_text("utf-8")) for file in files}


def listed(root: Path) -> list[str]:
    """What is older than its code, a line each; the last line counts, and names the trees of slotwise/ that were measured."""
    found = _figures(root)
    lines = [f"{name}: {text.strip().strip('*')}" for name, text in older(root).items()]
    runs = [run for figures in found.values() for run in [*figures.get("parts", {}).values()] or [figures]]
    trees = ", ".join(sorted({str(run.get("tree", "unknown")) for run in runs}))
    return [*lines, f"{len(found) - len(lines)} of {len(found)} figures are as old as their code; trees measured: {trees}"]
