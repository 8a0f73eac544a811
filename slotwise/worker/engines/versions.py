"""What a figure about an engine is true for: the versions that computed it, and the processor."""

from __future__ import annotations

import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from slotwise.worker.engines.processor import fingerprint

COMPUTES_WITH = {"transformers": ("torch",)}  # an engine: the packages besides its own that compute its outputs


def environment(name: str) -> dict[str, str]:
    """The versions of Python, of this engine's packages, and the processor's instructions as a short text."""
    releases = {package: release(package) for package in (name, *COMPUTES_WITH.get(name, ()))}
    return {"python": platform.python_version(), "processor": fingerprint(), **releases}


def release(package: str) -> str:
    """The version of a package; "" where it is not installed. One that pip knows by another name is imported and asked."""
    try:
        return version(package)
    except PackageNotFoundError:  # onnxruntime comes as onnxruntime-gpu, too
        return str(getattr(import_module(package), "__version__", "")) if find_spec(package) else ""
