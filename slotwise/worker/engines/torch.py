"""PyTorch: TorchScript, a torch.export program (.pt2), or a state_dict with the file of its module."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from slotwise.worker.engines.processor import cpu_precision
from slotwise.worker.settings import Settings

logger = logging.getLogger(__name__)

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class TorchEngine:
    """Runs any callable module under inference_mode; in bf16 and fp16 under autocast."""

    name = "torch"

    def __init__(self, module: Callable[[Any], Any], device: str, precision: str) -> None:
        self.module = module
        self.precision = precision
        self.device = device
        self.warm_up_runs = 2 if isinstance(module, torch.jit.ScriptModule) else 1  # TorchScript specialises in its first two

    def __call__(self, inputs: Any) -> Any:
        """An array or tensor [b, ...] to a tensor [b, ...] on the host."""
        tensor = torch.as_tensor(inputs)
        half = HALF.get(self.precision)
        autocast = torch.autocast(self.device, half) if half else contextlib.nullcontext()
        with torch.inference_mode(), autocast:
            if self.device == "cuda":
                tensor = tensor.pin_memory().to("cuda", non_blocking=True)
            return self.module(tensor).float().cpu()

    def release(self) -> None:
        """Give back what a failed call still holds."""
        if self.device == "cuda":
            torch.cuda.empty_cache()


def load(model_dir: Path, settings: Settings) -> TorchEngine:
    """The archive's weights on the profile's device, or on the CPU where there is no GPU; ValueError for other precisions."""
    torch.set_num_threads(settings.threads)
    with contextlib.suppress(RuntimeError):  # only the first call of a process may set it
        torch.set_num_interop_threads(1)
    device, precision = settings.device, settings.precision
    if device == "cuda" and not torch.cuda.is_available():
        logger.warning("the profile %s wants CUDA, but torch sees no such device: serving on the CPU", settings.profile)
        device, precision = "cpu", "auto" if precision == "fp16" else precision
    if device == "cuda":
        precision = "fp16" if precision == "auto" else precision
        torch.backends.cudnn.benchmark = True
        torch.cuda.set_per_process_memory_fraction(settings.memory_fraction)
    else:
        precision = cpu_precision(precision)
    return TorchEngine(_module(model_dir, settings.model.get("weights", {}), device), device, precision)


def _module(model_dir: Path, weights: Mapping[str, str], device: str) -> Any:
    if name := weights.get("torchscript"):
        script = torch.jit.load(str(model_dir / name), map_location=device).eval()
        return torch.jit.freeze(script)  # folds batch norm into the convolutions
    if name := weights.get("export"):
        return torch.export.load(str(model_dir / name)).module().to(device)  # an exported program is in eval mode for good
    network = build_module(model_dir / weights["module"].split(":")[0], weights["module"].partition(":")[2])
    state = torch.load(model_dir / weights["state_dict"], map_location="cpu", weights_only=True)
    network.load_state_dict(state)
    return network.eval().to(device=device, memory_format=torch.channels_last)


def build_module(path: Path, name: str = "") -> torch.nn.Module:
    """An instance of the module class `name` in the file `path` (without a name: the last class defined there)."""
    spec = importlib.util.spec_from_file_location(f"slotwise_module_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path.name} cannot be imported")
    code = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = code
    spec.loader.exec_module(code)
    own = [kind for kind in vars(code).values() if inspect.isclass(kind) and kind.__module__ == spec.name]
    found = [kind for kind in own if issubclass(kind, torch.nn.Module) and name in ("", kind.__name__)]
    if not found:
        raise ValueError(f"{path.name} defines no torch module {name}".rstrip())
    network: torch.nn.Module = found[-1]()
    return network
