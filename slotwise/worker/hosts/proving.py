"""Prove for every engine whether an archive's network keeps its rows apart: what a build asks of the archive's own worker.

    python -P -B -m slotwise.worker.hosts.proving BATCH_SIZE SECONDS [PROFILE]

In the extracted archive, its folder first on PYTHONPATH. Writes one line of JSON: {"verdicts": [...]}, and "why" where there is
none. SECONDS are each engine's; with a PROFILE it is the one engine that this takes. A handler that ends its process when it is
given an input that it never saw ends this one, and no server's worker.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slotwise.worker.engines import processor
from slotwise.worker.environment.settings import Settings, has_cuda
from slotwise.worker.handler import BatchHandler
from slotwise.worker.hosts.local import entry_of
from slotwise.worker.separability.about import About, identity
from slotwise.worker.separability.proof import caller, proven
from slotwise.worker.separability.verdict import Verdict

logger = logging.getLogger(__name__)

NETWORKS, TEXTS = ("openvino", "onnxruntime", "torch"), ("ctranslate2", "transformers")
PRECISIONS = ("fp32", "bf16", "int8")

Proof = tuple[list[Verdict], dict[str, str]]


def prove_all(kind: type[BatchHandler], model_dir: Path, tried: Sequence[Settings], budget_s: float) -> Proof:
    """A verdict for each engine that runs here, and why the others could not be loaded."""
    verdicts: dict[About, Verdict] = {}
    failed: dict[str, str] = {}
    for settings in tried:
        handler = kind()
        handler.settings = settings
        try:
            handler.engine = handler.load(model_dir, settings)
        except Exception as error:
            failed[f"{settings.engine} {settings.precision}"] = fault_of(error, model_dir)["fault"]
            continue
        about = identity(handler, model_dir)
        if about not in verdicts:
            most = min(settings.batch_size, handler.max_rows or settings.batch_size)
            verdicts[about] = proven(handler, caller(handler), model_dir, most, budget_s)
    return list(verdicts.values()), failed


def choices(model_dir: Path, batch_size: int, profile: str = "") -> list[Settings]:
    """What a profile may choose here: the engine that `auto` takes, and each that has weights, in each precision."""
    profiles = [profile] if profile else ["cpu", *(["cuda"] if has_cuda() else [])]
    chosen = [Settings.load(model_dir, {**os.environ, "SLOTWISE_PROFILE": name}, batch_size=batch_size) for name in profiles]
    if profile:
        return chosen
    model = chosen[0].model
    own = str(model.get("handler", "")).endswith(".py")
    names = NETWORKS if model.get("weights") else () if own else TEXTS
    precisions = [name for name in PRECISIONS if name != "bf16" or processor.has_bf16()]
    named = [chosen[0].but(engine=name, precision=precision) for name in names for precision in precisions]
    return [*chosen, *named]


def prove_here(folder: Path, batch_size: int, budget_s: float, profile: str = "") -> dict[str, Any]:
    """What is said of the archive in this folder; "why" where nothing can be."""
    try:
        chosen = choices(folder, batch_size, profile)
        chosen[0].limit_threads()
        try:
            module, entry = entry_of(folder)
        except Exception as error:
            return {"verdicts": [], "why": "its handler cannot be imported", **fault_of(error, folder)}
        verdicts, failed = prove_all(handler_class(module, entry), folder, chosen, budget_s)
    except Exception as error:
        return {"verdicts": [], "why": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
    why = next((f"{engine}: {reason}" for engine, reason in failed.items()), "no engine is installed")
    return {"verdicts": [verdict.to_json() for verdict in verdicts], **({} if verdicts else {"why": why})}


def handler_class(module: str, entry: Any) -> type[BatchHandler]:
    """The class of the handler that this entry point has. Raises ValueError where it has none."""
    handler = getattr(entry, "handler", None)
    if not isinstance(handler, BatchHandler):
        raise ValueError(f"{module} has no `handle = ....entry_point()`")
    return type(handler)


def fault_of(error: BaseException, folder: Path) -> dict[str, str]:
    """What kept the handler from being imported or loaded, and the package that is missing, where one is.

    {"fault": "gbm.py, line 1: ModuleNotFoundError: ...", "missing": "lightgbm"}; the line is the last one of the archive's own
    files, which an author can change.
    """
    frames = traceback.extract_tb(error.__traceback__)
    places = [(Path(frame.filename), frame.lineno) for frame in frames]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((Path(error.filename), error.lineno))
    own = [(file.relative_to(folder), line) for file, line in places if file.is_relative_to(folder)]
    theirs = [(file, line) for file, line in own if file.parts[0] != "slotwise"]
    where = f"{theirs[-1][0]}, line {theirs[-1][1]}: " if theirs else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    fault = {"fault": where + " ".join(f"{type(error).__name__}: {text}".split())[:200]}
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return fault | ({"missing": missing.partition(".")[0]} if missing else {})


def main() -> None:
    """Print what is said of the archive in the working directory."""
    target = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the handler prints goes to standard error
    logging.basicConfig(level=logging.WARNING)
    json.dump(prove_here(Path.cwd(), int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:]), target)
    target.flush()


if __name__ == "__main__":
    main()
