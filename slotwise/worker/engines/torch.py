"""Run a network with PyTorch: TorchScript, a torch.export program (.pt2), or a state_dict with the file of its module."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slotwise.worker.engines import exported_program
from slotwise.worker.engines.comparison import difference
from slotwise.worker.engines.processor import cpu_precision, set_up_cuda
from slotwise.worker.environment.settings import Settings

logger = logging.getLogger(__name__)

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
LAYOUT_TOLERANCE = {"fp32": 0.001, "fp16": 0.02, "bf16": 0.05}  # two layouts add numbers in different orders


class TorchEngine:
    """Runs any callable module under inference_mode, and in bf16 and fp16 under autocast.

    layout: the memory format of inputs. They are contiguous, as in a training script, unless `choose_layout` has found that
    channels_last gives the same answers.
    """

    name = "torch"

    def __init__(self, module: Callable[[Any], Any], model: Mapping[str, Any], device: str, precision: str) -> None:
        self.module = module
        self.model = model
        self.precision = precision
        self.device = device
        self.layout = torch.contiguous_format
        self.warm_up_runs = 2 if isinstance(module, torch.jit.ScriptModule) else 1  # it optimises itself twice

    def __call__(self, inputs: Any) -> Any:
        """An array or tensor [b, ...] to a tensor [b, ...] on the host."""
        tensor = laid_out(torch.as_tensor(inputs), self.layout)
        halved = HALF.get(self.precision)
        autocast = torch.autocast(self.device, halved) if halved else contextlib.nullcontext()
        with torch.inference_mode(), autocast:
            if self.device == "cuda":  # pragma: no cover  needs a GPU
                tensor = laid_out(tensor.pin_memory().to("cuda", non_blocking=True), self.layout)
            output = self.module(tensor)
            half = output.is_floating_point() and output.element_size() < 4
            return (output.float() if half else output).cpu()

    def choose_layout(self, inputs: Sequence[Any]) -> None:
        """Use channels_last where the network runs in it and answers the same on `inputs`, each [b, ...].

        Only inputs [b, c, h, w] of floats have such a layout. A network that views its activations as rows (`x.view(-1, N)`)
        fails in it.
        """
        first = np.asarray(inputs[0])
        if first.ndim != 4 or first.dtype.kind != "f":
            return
        tried = inputs[:3]  # the first has two rows, the others one
        expected = [self(rows) for rows in tried]
        tolerance = LAYOUT_TOLERANCE[self.precision]
        try:
            self._set_layout(torch.channels_last)
            observed = [self(rows) for rows in tried]
            same = all(difference(self.model, a, b) <= tolerance for a, b in zip(expected, observed, strict=True))
        except Exception as error:
            logger.info("the network does not run in channels_last: %s", " ".join(str(error).split())[:200])
            same = False
        if not same:
            self._set_layout(torch.contiguous_format)

    def _set_layout(self, layout: torch.memory_format) -> None:
        self.layout = layout
        if isinstance(self.module, torch.nn.Module) and not isinstance(self.module, torch.jit.ScriptModule):
            for weights in [*self.module.parameters(), *self.module.buffers()]:  # a frozen script's are constants
                if weights.ndim == 4:
                    weights.data = laid_out(weights.data, layout)

    def release(self) -> None:
        """Give back what a failed call still holds."""
        if self.device == "cuda":  # pragma: no cover  needs a GPU
            torch.cuda.empty_cache()


def laid_out(tensor: Any, layout: torch.memory_format) -> Any:
    """The tensor in this layout, its strides included.

    With one channel both layouts are the same memory, and `contiguous` returns the tensor as it is. But a convolution looks at
    the strides to see which layout is meant, and gives its output in that one.
    """
    tensor = tensor.contiguous(memory_format=layout)
    order = [0, 2, 3, 1] if layout is torch.channels_last else list(range(tensor.ndim))
    strides, step = [0] * tensor.ndim, 1
    for axis in reversed(order):
        strides[axis], step = step, step * tensor.shape[axis]
    return tensor if tensor.stride() == tuple(strides) else tensor.as_strided(tensor.shape, strides)


def load(model_dir: Path, settings: Settings) -> TorchEngine:
    """Load the archive's weights onto the profile's device. Raises ValueError for a precision that it does not compute."""
    torch.set_num_threads(settings.threads)
    with contextlib.suppress(RuntimeError):  # only the first call of a process may set it
        torch.set_num_interop_threads(1)
    device, precision = settings.device, settings.precision
    if device == "cuda":  # pragma: no cover  needs a GPU
        precision = "fp16" if precision == "auto" else precision
        if settings.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        set_up_cuda(settings.memory_fraction)
    else:
        precision = cpu_precision(precision)
    return TorchEngine(_module(model_dir, settings.model.get("weights", {}), device), settings.model, device, precision)


def _module(model_dir: Path, weights: Mapping[str, str], device: str) -> Any:
    if name := weights.get("torchscript"):
        script = torch.jit.freeze(torch.jit.load(str(model_dir / name), map_location=device).eval())  # folds batch norm
        return as_set_here(script) if device == "cuda" else script
    if name := weights.get("export"):
        return exported_program.load(model_dir / name).to(device)
    network = build_module(model_dir / weights["module"].split(":")[0], weights["module"].partition(":")[2])
    state = torch.load(model_dir / weights["state_dict"], map_location="cpu", weights_only=True)
    network.load_state_dict(state)
    return network.eval().to(device)


def as_set_here(script: Any) -> Any:
    """The frozen script, whose convolutions do what cuDNN is set to here.

    A trace keeps the settings of the process that made it as constants of each `aten::_convolution`, among them deterministic
    and allow_tf32.
    """
    graph = script.graph
    settings = {10: torch.are_deterministic_algorithms_enabled(), 12: torch.backends.cudnn.allow_tf32}
    for node in graph.findAllNodes("aten::_convolution", recurse=True):
        graph.setInsertPoint(node)
        for place, value in settings.items():
            if place < node.inputsSize():  # early traces have no allow_tf32
                node.replaceInput(place, graph.insertConstant(bool(value)))
    return script


def build_module(path: Path, name: str = "") -> torch.nn.Module:
    """An instance of the module class `name` in the file `path` (without a name: the last class defined there)."""
    spec = importlib.util.spec_from_file_location(f"slotwise_module_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path.name} cannot be imported")
    code = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = code
    spec.loader.exec_module(code)
    own = [kind for kind in vars(code).values() if inspect.isclass(kind) and kind.__module__ == spec.name]
    modules = [kind for kind in own if issubclass(kind, torch.nn.Module) and name in ("", kind.__name__)]
    if not modules:
        raise ValueError(f"{path.name} defines no torch module {name}".rstrip())
    network: torch.nn.Module = modules[-1]()
    return network
