"""Prove for every engine whether an archive's network keeps its rows apart: what a build asks of the archive's own worker.

    python -P -B -m slotwise.worker.hosts.proving BATCH_SIZE SECONDS    in the extracted archive, its folder first on PYTHONPATH

Writes one line of JSON: {"verdicts": [...], "failed": {"torch fp32": "why it cannot be loaded"}}. SECONDS are each engine's.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from slotwise.worker.engines import processor
from slotwise.worker.handler import BatchHandler
from slotwise.worker.hooks import Hooks
from slotwise.worker.proof import identity, proven
from slotwise.worker.settings import Settings, has_cuda
from slotwise.worker.verdict import About, Verdict

logger = logging.getLogger(__name__)

NETWORKS, TEXTS = ("openvino", "onnxruntime", "torch"), ("ctranslate2", "transformers")
PRECISIONS = ("fp32", "bf16", "int8")


def prove_all(
    kind: type[BatchHandler], model_dir: Path, batch_size: int, budget_s: float
) -> tuple[list[Verdict], dict[str, str]]:
    """A verdict for each engine that runs here, and why the others could not be loaded."""
    verdicts: dict[About, Verdict] = {}
    failed: dict[str, str] = {}
    for settings in _choices(model_dir, batch_size):
        handler = kind()
        handler.settings = settings
        try:
            handler.engine = handler.load(model_dir, settings)
        except Exception as error:
            failed[f"{settings.engine} {settings.precision}"] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            continue
        about = identity(handler)
        if about not in verdicts:
            most = min(batch_size, handler.max_rows or batch_size)
            attempt = Hooks(handler, settings.max_response_bytes).attempt
            verdicts[about] = proven(handler, attempt, model_dir, most, budget_s, every_size=True)
    return list(verdicts.values()), failed


def _choices(model_dir: Path, batch_size: int) -> list[Settings]:
    """What a profile may choose here: the engine that `auto` takes, and each that has weights, in each precision."""
    profiles = ["cpu", *(["cuda"] if has_cuda() else [])]
    chosen = [Settings.load(model_dir, {**os.environ, "SLOTWISE_PROFILE": name}, batch_size=batch_size) for name in profiles]
    model = chosen[0].model
    own = str(model.get("handler", "")).endswith(".py")
    names = NETWORKS if model.get("weights") else () if own else TEXTS
    precisions = [name for name in PRECISIONS if name != "bf16" or processor.has_bf16()]
    named = [chosen[0].but(engine=name, precision=precision) for name in names for precision in precisions]
    return [*chosen, *named]


def main() -> None:
    """Print the verdicts about the archive in the working directory."""
    target = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the handler prints goes to standard error
    logging.basicConfig(level=logging.WARNING)
    folder = Path.cwd()
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text("utf-8"))
    Settings.load(folder, {**os.environ, "SLOTWISE_PROFILE": "cpu"}).limit_threads()
    module, _, name = manifest["model"]["handler"].partition(":")
    entry: Any = getattr(importlib.import_module(module.removesuffix(".py")), name or "handle", None)
    handler = getattr(getattr(entry, "__self__", None), "handler", None)
    if not isinstance(handler, BatchHandler):
        raise SystemExit(f"{module} has no `handle = ....entry_point()`: nothing is known of its rows")
    verdicts, failed = prove_all(type(handler), folder, int(sys.argv[1]), float(sys.argv[2]))
    json.dump({"verdicts": [verdict.to_json() for verdict in verdicts], "failed": failed}, target)
    target.flush()


if __name__ == "__main__":
    main()
