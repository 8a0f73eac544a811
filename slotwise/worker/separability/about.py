"""Say what a verdict is about: the engine of a handler, its version, and the processor it runs on."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slotwise.worker.engines import processor
from slotwise.worker.engines.versions import COMPUTES_WITH
from slotwise.worker.environment.digests import DIGESTS
from slotwise.worker.handler import BatchHandler

# What may compute for an engine of the author's own, which does not say whose it is.
LIBRARIES = ("torch", "onnxruntime", "openvino", "ctranslate2", "transformers", "tensorflow", "jax", "scikit-learn", "xgboost",
             "lightgbm", "numpy")  # fmt: skip
NOT_ASKED = ("slotwise", "numpy", "PIL")


@dataclass(frozen=True)
class About:
    """What a verdict is about. engine: its name, precision and device. version: the engine's. processor: where it was tried."""

    engine: str = ""
    version: str = ""
    processor: str = ""

    def __str__(self) -> str:
        return self.engine or "any engine"

    def tried(self) -> str:
        """Where it was tried, as it stands behind a verdict."""
        return f" ({self.version}; {self.processor})" if self.engine else ""


NOBODY = About()


def identity(handler: BatchHandler, model_dir: Path) -> About:
    """What a verdict is about: the engine with its precision and device, its version, and the processor.

    model_dir: the folder of its archive.
    """
    engine, settings = handler.engine, handler.settings
    name = getattr(engine, "name", type(engine).__name__)
    device = str(getattr(engine, "device", settings.device))
    libraries = (name, *COMPUTES_WITH.get(name, ())) if version_of(name) else LIBRARIES
    versions = [f"{library} {version}" for library in libraries if (version := version_of(library))]
    module = getattr(sys.modules.get(type(handler).__module__), "__file__", None)
    versions += imported_versions(model_dir, Path(module) if module else None)
    precision = getattr(engine, "precision", settings.precision)
    return About(f"{name} {precision} {device}", ", ".join(versions), processor.named(device))


def version_of(package: str) -> str:
    """The version of an installed package, "" where there is none."""
    for name in (package, f"{package}-cpu"):  # xgboost-cpu
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def imported_versions(folder: Path, handler: Path | None = None) -> list[str]:
    """What the archive in this folder imports from elsewhere, with its version, or else a digest of its file.

    Every module of the archive is read, a network's and a stage's, too, and what is imported later, within a function. handler:
    its module, which may lie elsewhere: then also those beside it. Left out are Python's own, ours, and what decodes. Nothing
    is imported.
    """
    folder = folder.resolve()
    listed = _modules(folder)
    waiting, seen, elsewhere = [*listed, *([handler.resolve()] if handler else [])], set[Path](), set[str]()
    while waiting:
        file = waiting.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        inside = file.is_relative_to(folder)
        place = folder if inside else file.parent
        for name, relative in _imports(file):
            beside = [one for one in (place / f"{name}.py", place / name / "__init__.py") if one.is_file()]
            is_own = (relative or any(one in listed for one in beside)) if inside else bool(beside)
            if is_own:
                waiting += beside
            elif name not in sys.stdlib_module_names and name not in NOT_ASKED:
                elsewhere.add(name)
    return [f"{name} {state}" for name in sorted(elsewhere) if (state := _state(name))]


def _modules(folder: Path) -> set[Path]:
    """The modules of an archive, without our own: those that its digests list; while it is built, all that are there."""
    if (folder / DIGESTS).is_file():
        names = json.loads((folder / DIGESTS).read_text("utf-8")).get("files", {})
        return {folder / name for name in names if name.endswith(".py") and not name.startswith("slotwise/")}
    found = set()
    for place, folders, names in os.walk(folder):
        here = Path(place)
        left_out = "pyvenv.cfg" in names
        folders[:] = [] if left_out else [one for one in folders if not (one == "slotwise" and here == folder)]
        found |= {here / name for name in names if name.endswith(".py") and not left_out}
    return found


def _imports(file: Path) -> set[tuple[str, bool]]:
    """The first names of what a file imports, and whether that is relative to its package."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()
    names = {(alias.name.partition(".")[0], False) for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {
        ((node.module or "").partition(".")[0] or alias.name, node.level > 0)
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _state(name: str) -> str:
    """The version of what is imported by this name; beside that of a package that is edited where it lies, a digest."""
    version = version_of(name)
    return version if version and not _is_edited(name) else f"{version} {_digest(name)}".strip()


def _is_edited(package: str) -> bool:
    """Whether an installed package is used from where it is edited."""
    with suppress(importlib.metadata.PackageNotFoundError):
        about = importlib.metadata.distribution(package).read_text("direct_url.json")
        return '"editable": true' in (about or "")
    return False


def _digest(name: str) -> str:
    """A digest of what an import of this name may read, all of a package's files; "" where there is nothing.

    Of files that are not Python's the sizes count.
    """
    digest = hashlib.sha256()
    try:
        found = importlib.util.find_spec(name)
        folders = [Path(folder) for folder in (found and found.submodule_search_locations) or ()]
        files = [(file, file.relative_to(folder)) for folder in folders for file in folder.rglob("*") if file.is_file()]
        if not files and found and found.origin:
            files = [(Path(found.origin), Path(found.name))]
        for file, at in sorted(files, key=lambda one: one[1]):
            if "__pycache__" not in at.parts:
                digest.update(f"{at} {file.stat().st_size}\n".encode("utf-8", "surrogateescape"))
                digest.update(file.read_bytes() if file.suffix == ".py" else b"")
        return digest.hexdigest()[:12] if files else ""
    except (ImportError, ValueError, OSError):
        return ""
