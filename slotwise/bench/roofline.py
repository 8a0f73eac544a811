"""Compute from which batch size on memory no longer limits a model, only arithmetic does.

A batch of n needs `operations * n` operations and moves `weights + io * n` bytes: the weights are read once a batch, whatever
n. Operations a byte (the arithmetic intensity) grow with n; where they reach the machine's peak operations over its
bandwidth, memory stops being the limit. This holds where activations stay in the processor's cache. The other extreme
(`cached=False`): each is written to memory and read from it, so that the intensity cannot grow without end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.bench.report import panels
from slotwise.errors import SlotwiseError
from slotwise.worker.environment.cores import available_cores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURED_S = 1.0  # each of the machine's two numbers


@dataclass(frozen=True)
class Machine:
    """Peak operations a second, and bytes a second between memory and processor."""

    peak: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """Operations a byte from which on memory is not the limit."""
        return self.peak / self.bandwidth


@dataclass(frozen=True)
class ForwardCost:
    """What one forward pass needs: operations and input and output bytes an item, weight bytes a batch.

    activation_bytes: what the layers in between write an item. A multiplication and its addition are two operations;
    only convolutions and matrix products are counted.
    """

    operations: float
    weight_bytes: float
    io_bytes: float
    activation_bytes: float = 0.0

    def moved(self, n: int, *, cached: bool = True) -> float:
        """Bytes for a batch of n; not cached: every activation is written once and read once."""
        return self.weight_bytes + n * self._item_bytes(cached)

    def _item_bytes(self, cached: bool) -> float:
        return self.io_bytes + (0 if cached else 2 * self.activation_bytes)

    def intensity(self, n: int, *, cached: bool = True) -> float:
        """Operations a byte for a batch of n."""
        return n * self.operations / self.moved(n, cached=cached)

    def enough(self, machine: Machine, *, cached: bool = True) -> int | None:
        """The least batch size that memory does not limit; None where it limits every one."""
        gain = self.operations - machine.ridge * self._item_bytes(cached)
        if gain <= 0:
            return None
        n = max(1, math.floor(machine.ridge * self.weight_bytes / gain))
        return n if self.intensity(n, cached=cached) >= machine.ridge else n + 1

    def floor_ms(self, n: int, machine: Machine) -> float:
        """The least milliseconds in which this machine can run a batch of n."""
        return 1000 * max(n * self.operations / machine.peak, self.moved(n) / machine.bandwidth)


def forward_cost(model_dir: Path, model: dict[str, Any]) -> ForwardCost:
    """Count the operations and bytes of an unpacked archive's graph; `model` is its description."""
    shape, weights = model.get("input", {}).get("shape"), model.get("weights", {})
    if not shape:
        raise SlotwiseError(f"{model.get('name')} has no input.shape", "roofline counts models of one graph and one tensor")
    if weights.get("onnx"):
        return _onnx_work(model_dir / weights["onnx"], shape)
    if weights:
        return _torch_work(model_dir, weights, shape)
    raise SlotwiseError(f"{model.get('name')} carries neither an ONNX graph nor torch weights", "roofline counts one graph")


def _onnx_work(path: Path, shape: Sequence[int]) -> ForwardCost:
    import onnx  # noqa: PLC0415  optional

    graph = onnx.load(path)
    for tensor in graph.graph.input:
        for dim, size in zip(tensor.type.tensor_type.shape.dim, [1, *shape], strict=False):
            dim.dim_value = dim.dim_value or size  # pictures come h, w, c
    for tensor in graph.graph.output:
        tensor.type.tensor_type.ClearField("shape")
    known = onnx.shape_inference.infer_shapes(graph).graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in [*known.input, *known.output, *known.value_info]
    }
    shapes |= {tensor.name: list(tensor.dims) for tensor in known.initializer}
    operations, written = 0.0, 0
    for node in known.node:
        size = math.prod(shapes.get(node.output[0], [0])) if node.output else 0
        if node.op_type in ("Conv", "ConvTranspose"):
            each = size if node.op_type == "Conv" else math.prod(shapes[node.input[0]])  # meets one window of the weights
            operations += 2 * each * math.prod(shapes[node.input[1]][1:])
        elif node.op_type in ("Gemm", "MatMul"):
            turned = any(a.name == "transA" and a.i for a in node.attribute)
            operations += 2 * size * shapes[node.input[0]][0 if turned else -1]
        else:
            continue
        written += size
    weight_bytes = sum(_onnx_bytes(tensor) for tensor in known.initializer)
    io_bytes = 4 * (math.prod(shape) + sum(math.prod(shapes[value.name]) for value in known.output))
    return ForwardCost(operations, weight_bytes, io_bytes, 4 * written)


def _onnx_bytes(tensor: Any) -> int:
    from onnx.helper import tensor_dtype_to_np_dtype  # noqa: PLC0415  optional

    size: int = math.prod(tensor.dims) * tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return size


def _torch_work(model_dir: Path, weights: dict[str, str], shape: Sequence[int]) -> ForwardCost:
    import torch  # noqa: PLC0415  heavy
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415  heavy
    from torch.utils.flop_counter import FlopCounterMode, flop_registry  # noqa: PLC0415  heavy

    written = 0

    class OutputCounter(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal written
            result = func(*args, **(kwargs or {}))
            if func.overloadpacket in flop_registry and isinstance(result, torch.Tensor):
                written += result.nbytes
            return result

    module = _torch_module(model_dir, weights)
    example = torch.zeros(1, *shape)
    with torch.no_grad(), FlopCounterMode(display=False) as counter, OutputCounter():
        output = module(example)
    tensors = [*module.parameters(), *module.buffers()]
    return ForwardCost(counter.get_total_flops(), sum(t.nbytes for t in tensors), example.nbytes + output.nbytes, written)


def _torch_module(model_dir: Path, weights: dict[str, str]) -> Any:
    """The module with its parameters still apart (the engine folds them into constants)."""
    import torch  # noqa: PLC0415  heavy

    from slotwise.worker.engines import exported_program  # noqa: PLC0415  brings torch
    from slotwise.worker.engines.torch import build_module  # noqa: PLC0415  brings torch

    if name := weights.get("torchscript"):
        return torch.jit.load(str(model_dir / name), map_location="cpu").eval()
    if name := weights.get("export"):
        return exported_program.load(model_dir / name)
    file, _, kind = weights["module"].partition(":")
    return build_module(model_dir / file, kind).eval()


def measure_machine() -> Machine:
    """Measure the peak by a large float32 matrix product, the bandwidth by copying arrays on all cores; the best run counts."""
    import numpy as np  # noqa: PLC0415  slow to import

    side = 2048
    left = np.random.default_rng(0).random((side, side), np.float32)
    product = np.empty_like(left)
    peak = 2 * side**3 / _best(lambda: np.matmul(left, left, out=product))
    cores = available_cores()
    blocks = [(np.ones(1 << 23, np.float32), np.empty(1 << 23, np.float32)) for _ in range(cores)]  # 32 MiB each
    with ThreadPoolExecutor(cores) as pool:
        took = _best(lambda: list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), blocks)))
    return Machine(peak, 2 * cores * blocks[0][0].nbytes / took)


def _best(action: Any) -> float:
    best, stop_at = math.inf, time.perf_counter() + MEASURED_S
    while best == math.inf or time.perf_counter() < stop_at:
        started = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - started)
    return best


def draw(name: str, work: ForwardCost, machine: Machine, sizes: Sequence[int]) -> Figure:
    """Left: the roof, and every batch size below it. Right: intensity over the batch size, and the ridge."""
    figure, (left, right) = panels(2)
    marks = [work.intensity(n) for n in sizes]
    span = [min([*marks, machine.ridge]) / 10, max([*marks, machine.ridge]) * 3]
    x = [span[0], machine.ridge, span[1]]
    left.loglog(x, [min(machine.peak, i * machine.bandwidth) / 1e9 for i in x], "k-")
    left.loglog(marks, [min(machine.peak, i * machine.bandwidth) / 1e9 for i in marks], "o")
    for n, i in zip(sizes, marks, strict=True):
        left.annotate(str(n), (i, min(machine.peak, i * machine.bandwidth) / 1e9), (0, -12), textcoords="offset points")
    left.set(xlabel="operations a byte", ylabel="GFLOP/s at most", title=f"{name}: batch sizes under the roof")
    right.loglog(sizes, marks, "o-", label="activations in cache")
    right.loglog(sizes, [work.intensity(n, cached=False) for n in sizes], "s--", label="through memory")
    right.axhline(machine.ridge, color="k", label=f"ridge: {machine.ridge:.1f}")
    right.set(xlabel="batch size", ylabel="operations a byte")
    right.legend()
    return figure


def at(work: ForwardCost, n: int, machine: Machine) -> dict[str, float]:
    """The numbers of a batch of n."""
    return {
        "n": n,
        "operations": n * work.operations,
        "bytes": work.moved(n),
        "intensity": work.intensity(n),
        "through_memory": work.intensity(n, cached=False),
        "floor_ms": work.floor_ms(n, machine),
        "most_a_second": 1000 * n / work.floor_ms(n, machine),
    }
