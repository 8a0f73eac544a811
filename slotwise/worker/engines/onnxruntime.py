"""Run a network with ONNX Runtime, on the CPU and in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from slotwise.worker.engines.choice import output_of
from slotwise.worker.environment.settings import Settings


class OnnxRuntimeEngine:
    """Runs a graph with one input, for one output; where its batch is fixed at 1, row by row."""

    name = "onnxruntime"
    precision = "fp32"
    device = "cpu"

    def __init__(self, session: onnxruntime.InferenceSession, output: str | None = None) -> None:
        self.session = session
        self.outputs = [output or session.get_outputs()[0].name]
        self.inputs = session.get_inputs()[0].name
        self.row_by_row = session.get_inputs()[0].shape[:1] == [1]

    def __call__(self, inputs: Any) -> Any:
        """[b, ...] to [b, ...]."""
        if self.row_by_row:
            return np.concatenate(
                [self.session.run(self.outputs, {self.inputs: inputs[i : i + 1]})[0] for i in range(len(inputs))]
            )
        return self.session.run(self.outputs, {self.inputs: inputs})[0]


def load(model_dir: Path, settings: Settings) -> OnnxRuntimeEngine:
    """Load the archive's ONNX graph. Raises ValueError where the profile wants what this engine does not compute."""
    if settings.device != "cpu" or settings.precision not in ("auto", "fp32"):
        raise ValueError("onnxruntime computes in fp32 on the CPU here: set precision to auto or fp32")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads leave the cores to decoding
    path = str(model_dir / settings.model["weights"]["onnx"])
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return OnnxRuntimeEngine(session, output_of(settings.model))
