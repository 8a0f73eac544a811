"""What a model gives back: brought to the host, and looked at for numbers that mean nothing."""

from __future__ import annotations

from typing import Any

import numpy as np


def on_host(outputs: Any) -> Any:
    """Tensors as numpy arrays (half precision as float32), everything else as it is."""
    if hasattr(outputs, "detach"):
        outputs = outputs.detach().cpu()
        return outputs.float().numpy() if outputs.is_floating_point() else outputs.numpy()
    return outputs


def finite(output: Any) -> bool:
    """Whether no NaN or infinity is anywhere in one row's output."""
    if output is None or isinstance(output, str | bytes | int):
        return True
    if isinstance(output, dict):
        return all(map(finite, output.values()))
    if isinstance(output, list | tuple):
        return all(map(finite, output))
    array = np.asarray(output)
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())
