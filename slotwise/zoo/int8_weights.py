"""Write a network's weights in int8 for OpenVINO: from its ONNX graph, with nncf, calibrated on pictures.

Where nncf is not installed, the pictures are kept beside the graph; a later build that has nncf makes int8 from them.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.model_spec import ModelSpec
from slotwise.worker.engines.choice import installed
from slotwise.zoo import reproducible

POSTPONED = "calibration.npz"


def write(onnx: Path, path: Path, calibration: Any, exact: int) -> None:
    """Write `path` (.xml, its .bin beside it). calibration: [n, ...]; exact: how many convolutions from the front stay fp32."""
    import nncf  # noqa: PLC0415  heavy, optional
    import openvino  # noqa: PLC0415  heavy, optional

    logging.getLogger("nncf").setLevel(logging.ERROR)  # nncf.set_log_level changes handlers, too, whoever has put them there
    rows = nncf.Dataset([row[None] for row in calibration])
    graph = openvino.Core().read_model(onnx)
    kinds = ("Convolution", "GroupConvolution")
    front = [part.get_friendly_name() for part in graph.get_ordered_ops() if part.get_type_name() in kinds][:exact]
    ignored = nncf.IgnoredScope(names=front) if front else None
    mixed, count = nncf.QuantizationPreset.MIXED, len(calibration)
    with quiet():
        quantized = nncf.quantize(graph, rows, preset=mixed, subset_size=count, ignored_scope=ignored)
    openvino.save_model(quantized, path, compress_to_fp16=False)
    reproducible.openvino(path)


def postpone(out: Path, calibration: Any) -> None:
    """Keep what `complete` needs."""
    np.savez_compressed(out / POSTPONED, calibration=calibration)


def complete(out: Path, spec: ModelSpec) -> bool:
    """Make the int8 weights that were postponed; returns whether there were any to make, and nncf to make them with."""
    kept, name, onnx = out / POSTPONED, spec.weights.openvino_int8, spec.weights.onnx
    if not (kept.is_file() and name and onnx and installed("nncf") and installed("openvino")):
        return False
    with np.load(kept) as arrays, tempfile.TemporaryDirectory(dir=out) as folder:
        partial = Path(folder, "int8.xml")
        write(out / onnx, partial, arrays["calibration"], spec.options.get("int8_exact", 0))
        for suffix in (".bin", ".xml"):  # the .xml last: weights are there where it is
            partial.with_suffix(suffix).replace((out / name).with_suffix(suffix))
    kept.unlink()
    return True


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what exporters print and log. What matters they raise."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
