"""Run an ONNX graph of several inputs and outputs by name, with ONNX Runtime or OpenVINO, in fp32 on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker.engines.choice import choose, installed
from slotwise.worker.engines.wide_numbers import wide_number
from slotwise.worker.environment.settings import Settings

ORDER = {"cpu": ("openvino", "onnxruntime")}

Tensors = Mapping[str, Any]  # arrays [b, ...] by name


class NamedOnnxRuntime:
    """outputs: the names of those that are answered."""

    name, precision, device = "onnxruntime", "fp32", "cpu"

    def __init__(self, path: Path, threads: int, outputs: Sequence[str]) -> None:
        import onnxruntime  # noqa: PLC0415  optional

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 4  # what fails is raised
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the cores to decoding
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.outputs = list(outputs)

    def __call__(self, inputs: Tensors) -> dict[str, Any]:
        """Inputs [b, ...] to outputs [b, ...], each by its name."""
        return dict(zip(self.outputs, self.session.run(self.outputs, dict(inputs)), strict=True))


class NamedOpenVino:
    """outputs: the names of those that are answered. Raises ValueError for a graph that OpenVINO does not compute exactly."""

    name, precision, device = "openvino", "fp32", "cpu"

    def __init__(self, path: Path, threads: int, outputs: Sequence[str]) -> None:
        import openvino  # noqa: PLC0415  optional

        core = openvino.Core()
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        graph = core.read_model(path)
        if why := wide_number(graph, looked_up=False):
            raise ValueError(why)
        self.request = core.compile_model(graph, "CPU", options).create_infer_request()
        self.outputs = list(outputs)

    def __call__(self, inputs: Tensors) -> dict[str, Any]:
        """Inputs [b, ...] to outputs [b, ...], each by its name. The outputs are copied: the next call writes there again."""
        self.request.infer(dict(inputs))
        return {name: self.request.get_tensor(name).data.copy() for name in self.outputs}


KINDS: dict[str, Any] = {"onnxruntime": NamedOnnxRuntime, "openvino": NamedOpenVino}


def load_named(model_dir: Path, settings: Settings) -> Any:
    """The archive's graph as the profile wants it. Raises ValueError, one sentence, where it cannot be served so."""
    if settings.device != "cpu" or settings.precision not in ("auto", "fp32"):
        raise ValueError("named tensors are computed in fp32 on the CPU: set device to cpu and precision to auto")
    about = settings.model["options"]["tensors"]

    def objection(name: str) -> str | None:
        if not installed(name):
            return f"{name} is not installed"
        return None if name in about["engines"] else f"{name} did not give at build what the other engine gave"

    def start(name: str) -> Any:
        engine = KINDS[name](
            model_dir / settings.model["weights"]["onnx"], settings.threads, [one["name"] for one in about["outputs"]]
        )
        engine({one["name"]: np.zeros((1, *one["shape"]), one["dtype"]) for one in about["inputs"]})
        return engine

    return choose(settings, ORDER, objection, start)
