"""Servers of other people: what each is installed from, where it answers, how a body is sent. Each runs its NAME_app.py."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slotwise.bench.bodies import RequestBody

HERE = Path(__file__).parent
BOUNDARY = "slotwise-comparison"


def plain(body: bytes, content_type: str) -> RequestBody:
    """The bytes as they are."""
    return RequestBody(body, content_type)


def form(body: bytes, content_type: str, field: str = "request") -> RequestBody:
    """A form with one file, which is what LitServe, FastAPI and BentoML document."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{field}"; filename="a.jpg"\r\nContent-Type: {content_type}'
    data = head.encode() + b"\r\n\r\n" + body + f"\r\n--{BOUNDARY}--\r\n".encode()
    return RequestBody(data, f"multipart/form-data; boundary={BOUNDARY}")


def v2_json(body: bytes, content_type: str) -> RequestBody:
    """The Open Inference Protocol in JSON: base64."""
    tensor = {"name": "body", "shape": [1, 1], "datatype": "BYTES", "parameters": {"content_type": "base64"}}
    data = json.dumps({"inputs": [{**tensor, "data": [base64.b64encode(body).decode()]}]})
    return RequestBody(data.encode(), "application/json")


def v2_head(size: int) -> bytes:
    """What stands before a binary tensor in the Open Inference Protocol."""
    tensor = {"name": "BODY", "shape": [1, size], "datatype": "UINT8", "parameters": {"binary_data_size": size}}
    return json.dumps({"inputs": [tensor]}).encode()


@dataclass(frozen=True)
class Program:
    """One peer. packages: in an environment of its own; ours: the package of ours that it is. front: what else runs."""

    packages: tuple[str, ...] = ()
    path: str = "/predict"
    wrap: Callable[[bytes, str], RequestBody] = form
    front: str = ""
    ours: str = ""
    batches: bool = True


PROGRAMS = {
    "litserve": Program(("litserve==0.2.19", "python-multipart==0.0.34"), front="one more process a worker for HTTP"),
    "litserve_streams": Program(
        ("litserve==0.2.19", "python-multipart==0.0.34"), wrap=plain, front="one more process for HTTP"
    ),
    "fastapi": Program(("fastapi==0.165.0", "uvicorn==0.54.0", "python-multipart==0.0.34"), batches=False),
    "fastapi_batched": Program(("fastapi==0.165.0", "uvicorn==0.54.0", "python-multipart==0.0.34")),
    "mosec_streams": Program(("mosec==0.9.8",), "/inference", plain, "HTTP in Rust"),
    "mosec": Program(("mosec==0.9.8",), "/inference", plain, "as many more that decode; HTTP in Rust"),
    "ray": Program((), "/", plain, "a proxy process, and those of the cluster", "ray"),
    "triton": Program((), "/v2/models/classifier/infer", plain, "HTTP in C++", "nvidia-pytriton"),
    "bentoml": Program(("bentoml==1.4.39",), front="HTTP in the same processes; it chooses size and delay of a batch itself"),
    # a newer uvloop makes no event loop by itself, and its workers die
    "mlserver": Program(
        ("mlserver==1.7.1", "uvloop==0.21.0"), "/v2/models/classifier/infer", v2_json, "one more process for HTTP and batches"
    ),
}
CONFIG = """\
name: "classifier"
backend: "python"
max_batch_size: {batch_size}
input [ {{ name: "BODY" data_type: TYPE_UINT8 dims: [ -1 ] allow_ragged_batch: true }} ]
output [ {{ name: "LABELS" data_type: TYPE_INT64 dims: [ 5 ] }}, {{ name: "PROBABILITIES" data_type: TYPE_FP32 dims: [ 5 ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
instance_group [ {{ count: {processes} kind: KIND_CPU }} ]
"""


def environment(place: Path, packages: tuple[str, ...]) -> Path:
    """The Python of an environment with these packages, made on demand; torch and the engines are borrowed from ours."""
    python, stamp = place / "bin" / "python", place / "packages"
    if stamp.is_file() and stamp.read_text("utf-8") == "\n".join(packages):
        return python
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages], check=True)
    ours = next((place / "lib").glob("python*/site-packages"))
    borrowed = [sysconfig.get_paths()["purelib"], str(HERE.parents[1])]
    (ours / "zz_borrowed.pth").write_text("\n".join(borrowed) + "\n", "utf-8")
    stamp.write_text("\n".join(packages), "utf-8")
    return python
