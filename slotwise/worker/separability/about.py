"""Say what a verdict is about: the engine of a handler, its version, and the processor it runs on."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from slotwise.worker.engines import processor
from slotwise.worker.engines.versions import COMPUTES_WITH
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


def identity(handler: BatchHandler) -> About:
    """What a verdict is about: the engine with its precision and device, its version, and the processor."""
    engine, settings = handler.engine, handler.settings
    name = getattr(engine, "name", type(engine).__name__)
    device = str(getattr(engine, "device", settings.device))
    libraries = (name, *COMPUTES_WITH.get(name, ())) if version_of(name) else LIBRARIES
    versions = [f"{library} {version}" for library in libraries if (version := version_of(library))]
    module = sys.modules.get(type(handler).__module__)
    versions += imported_versions(Path(getattr(module, "__file__", None) or ""))
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


def imported_versions(module: Path) -> list[str]:
    """What a module and those beside it import from elsewhere, with its version, or else a digest of its file.

    Also what is imported later, within a function. Left out are Python's own, ours, and what decodes. The files are read, and
    nothing is imported.
    """
    waiting, seen, elsewhere = [module], set[Path](), set[str]()
    while waiting:
        file = waiting.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        for name in _imports(file):
            own = [one for one in (module.parent / f"{name}.py", module.parent / name / "__init__.py") if one.is_file()]
            waiting += own
            if not own and name not in sys.stdlib_module_names and name not in NOT_ASKED:
                elsewhere.add(name)
    return [f"{name} {version}" for name in sorted(elsewhere) if (version := version_of(name) or _digest(name))]


def _imports(file: Path) -> set[str]:
    """The top-level names of what a file imports."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return set()
    names = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {
        (node.module or "").partition(".")[0] or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _digest(name: str) -> str:
    """A digest of the file that an import of this name reads; "" where there is none."""
    try:
        found = importlib.util.find_spec(name)
        return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()[:12] if found and found.origin else ""
    except (ImportError, ValueError, OSError):
        return ""
