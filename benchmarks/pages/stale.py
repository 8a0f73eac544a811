"""Which figures are older than the code they measure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measuring.about import git

WORKER = "slotwise/worker"
VISION = (WORKER, "handlers/image_classifier.py", "models/resnet18")
LITE0 = (*VISION[:2], "models/efficientnet", "slotwise/zoo/efficientnet.py")
TENSORS = (WORKER, "handlers/tensor_classifier.py", "models/mnist")
CAPTIONS = (WORKER, "handlers/captioner.py", "models/captions")
TRANSLATION = (WORKER, "handlers/translator.py", "models/translation")
CODE = {  # what each of docs/figures measures; what measures it counts as well
    **{part: (*VISION, "scripts/comparison") for part in ("vision", "vision-amx")},
    **{part: (*LITE0, "scripts/comparison") for part in ("lite0", "engines-int8")},
    **{part: (*VISION, "scripts/comparison") for part in ("engines", "inference", "ablation", "precision")},
    "tensors": (*TENSORS, "scripts/comparison"),
    "resnet152": (*VISION[:2], "models/resnet152", "scripts/comparison"),
    "ants": (*VISION[:2], "models/ants_bees", "scripts/comparison"),
    "text": (*TRANSLATION, *CAPTIONS[1:]),
    "captions": CAPTIONS,
    "translation": (*TRANSLATION, "scripts/measuring/slow_translator.py", "slotwise/frontend", "slotwise/backends"),
    "gateway": (*VISION, "slotwise/frontend", "slotwise/backends"),
    "earlier": (WORKER,),
    "worker": (WORKER,),
    "guard": ("slotwise/worker/guard", "slotwise/worker/isolation.py"),
    "hedging": (
        "slotwise/frontend",
        "slotwise/backends",
    ),
    "start": ("slotwise/server", "slotwise/profiles/render.py", "slotwise/deploy/java_training.py"),
    "jpeg": ("slotwise/worker/inputs/images.py", "slotwise/worker/inputs/jpeg.py"),
    "accuracy": (
        "slotwise/worker/engines",
        "slotwise/worker/inputs/images.py",
        "slotwise/zoo/vision.py",
        "models/efficientnet",
    ),
    "bits": ("slotwise/worker/engines", "handlers", "models"),
    "hostile": (WORKER, "handlers/image_classifier.py", "handlers/captioner.py"),
    "lean": ("slotwise/frontend", "slotwise/backends", "slotwise/client/http_exchange.py"),
    "campaign": (
        WORKER,
        "handlers",
        "slotwise/archive",
        "slotwise/frontend",
        "slotwise/backends",
        "slotwise/server",
        "scripts/campaign_parts",
    ),
    "front": (*TENSORS, "slotwise/profiles/render.py"),
    "records": (
        "slotwise/frontend",
        "slotwise/backends",
    ),
    "disasters": (
        "slotwise/frontend",
        "slotwise/backends",
    ),
    "rollouts": (
        "slotwise/frontend/rollout/canary_windows.py",
        "slotwise/frontend/rollout/verdict.py",
        "slotwise/deploy/rollout.py",
    ),
    "hosts": (WORKER, "slotwise/server", "slotwise/backends"),
    "repeat": ("slotwise/frontend", "slotwise/backends", "slotwise/server", "slotwise/interrupts.py"),
    "tune-mnist-64": (*TENSORS, "slotwise/tune"),
    "tune-mnist-8": (*TENSORS, "slotwise/tune"),
    **{name: (*VISION, "slotwise/tune") for name in ("tune-resnet18", "tune-resnet18-amx")},
    "tune-efficientnet": (*LITE0, "slotwise/tune"),
    "tune-standin": (WORKER, "slotwise/tune"),
    "study": (*VISION, "slotwise/tune"),
    "scale": ("slotwise/tune/simulate.py",),
    "nodes": ("slotwise/tune/simulate.py", "slotwise/server"),
    "echo": (*TENSORS, "scripts/measuring/handlers"),
    "offline-digits": (WORKER, "handlers/image_classifier.py", "models/digits", "slotwise/bench"),
    "offline-resnet18": (*VISION, "slotwise/bench"),
}
LINE = re.compile(r"^\*Measured at .* since\.\*\n\n", re.MULTILINE)


def line(name: str, figures: Mapping[str, Any], root: Path) -> str:
    """One line where code changed after the figures were measured; nothing where not, or where git cannot tell."""
    runs = [*figures.get("parts", {}).values()] or [figures]  # the parts of a campaign may be of several commits
    commits = list(dict.fromkeys(str(run["commit"]).removesuffix("-dirty") for run in runs))
    changed = [
        path
        for path in CODE[name]
        if any(git("log", "-1", "--format=%h", f"{commit}..HEAD", "--", path, root=root) for commit in commits)
    ]
    if not changed:
        return ""
    at = ", ".join(commit[:7] for commit in commits)
    return f"*Measured at {at} ({figures['date']}); {', '.join(changed)} changed since.*\n\n"
