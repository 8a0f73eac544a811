"""Run a network with OpenVINO, on the CPU: in fp32, in bf16 where the processor has it, or in int8 as quantised at build."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from slotwise.worker.engines.choice import output_of
from slotwise.worker.engines.processor import cpu_precision, has_int8
from slotwise.worker.engines.wide_numbers import wide_number
from slotwise.worker.environment.settings import Settings

logger = logging.getLogger(__name__)


class OpenVinoEngine:
    """Runs a graph with one input, for one output; where its batch is fixed at 1, row by row."""

    name = "openvino"
    device = "cpu"

    def __init__(self, compiled: openvino.CompiledModel, precision: str, output: str | None = None) -> None:
        names = [port.get_names() for port in compiled.outputs]
        self.output = next((i for i, known in enumerate(names) if output in known), 0)
        if output and output not in names[self.output]:
            raise ValueError(f"the graph has no output {output}")
        self.request = compiled.create_infer_request()
        self.row_by_row = compiled.input(0).partial_shape[0].is_static
        self.precision = precision

    def __call__(self, inputs: Any) -> Any:
        """[b, ...] to [b, ...]. The outputs are copied, because the next call writes into the engine's own memory again."""
        inputs = np.ascontiguousarray(inputs)
        if self.row_by_row:
            return np.concatenate([self._run(inputs[i : i + 1]) for i in range(len(inputs))])
        return self._run(inputs)

    def _run(self, inputs: Any) -> Any:
        self.request.set_input_tensor(openvino.Tensor(inputs, shared_memory=True))
        self.request.infer()
        output = self.request.get_output_tensor(self.output).data
        return output.copy() if output.dtype.kind in "iub" else output.astype(np.float32)  # float32 does not hold every id


def load(model_dir: Path, settings: Settings) -> OpenVinoEngine:
    """Load the archive's graph. Raises ValueError where the profile or the graph wants what this engine does not compute."""
    if settings.device != "cpu":
        raise ValueError("openvino runs on the CPU here: set device to cpu")
    int8 = settings.precision == "int8"
    precision = "int8" if int8 else cpu_precision(settings.precision)
    if int8 and not has_int8():
        logger.warning("this processor has no VNNI: sums of int8 saturate, so answers may differ from where they were measured")
    core = openvino.Core()
    graph = core.read_model(model_dir / settings.model["weights"]["openvino_int8" if int8 else "onnx"])
    own = str(settings.model.get("handler", "")).endswith(".py")
    if why := wide_number(graph, looked_up=own):
        raise ValueError(why)
    options = {
        "INFERENCE_NUM_THREADS": settings.threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # two workers would be pinned to the same cores
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
    }
    return OpenVinoEngine(core.compile_model(graph, "CPU", options), precision, output_of(settings.model))
