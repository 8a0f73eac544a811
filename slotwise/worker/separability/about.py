"""Say what a verdict is about: the engine of a handler, its version, and the processor it runs on."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from slotwise.worker.engines import processor
from slotwise.worker.engines.versions import COMPUTES_WITH
from slotwise.worker.handler import BatchHandler

# What may compute for an engine of the author's own, which does not say whose it is.
LIBRARIES = ("torch", "onnxruntime", "openvino", "ctranslate2", "transformers", "tensorflow", "jax", "scikit-learn", "xgboost",
             "lightgbm", "numpy")  # fmt: skip


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
