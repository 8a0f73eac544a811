"""Train the classic network on the digits model's handwriting, as float tensors; or take the ONNX file that --weights names."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slotwise.errors import SlotwiseError
from slotwise.files.project import model_folder
from slotwise.model_spec import ModelSpec, load_spec

if TYPE_CHECKING:
    from rich.progress import Progress


def make(out: Path, weights: str | None, progress: Progress) -> dict[str, Any]:
    """Write mnist.onnx; returns the accuracy on held-out digits, or where the graph came from."""
    spec = load_spec(Path(__file__).parent)
    if weights not in (None, "none"):
        return from_file(Path(str(weights)), spec, out)
    import torch
    from classic import Classic

    from slotwise.zoo.vision import classes_right, export

    started, digits = time.monotonic(), digits_make()
    pixels, labels = tensors(digits)
    train, test = digits.split(labels)
    seen = torch.from_numpy((pixels[train] * 255).astype(np.uint8)).permute(0, 2, 3, 1)  # as the digits model sees them
    network = digits.fit(seen, torch.from_numpy(labels[train]), progress, Classic).network
    items = (pixels[test] - np.float32(spec.input.mean[0])) / np.float32(spec.input.std[0])
    accuracy = classes_right(network, items, labels[test])
    progress.console.print(f"mnist: accuracy {accuracy:.2%} on {len(test)} held-out digits", highlight=False)
    if accuracy < digits.LEAST_ACCURACY:
        raise SlotwiseError(
            f"the mnist model reached only {accuracy:.2%}", f"at least {digits.LEAST_ACCURACY:.0%} were expected"
        )
    measured = export(spec, network, items, out, progress, trained=True)
    made_s = round(time.monotonic() - started, 1)
    return {"accuracy": accuracy, "held_out": len(test), "trained_on": len(train), "made_s": made_s, **measured}


def from_file(source: Path, spec: ModelSpec, out: Path) -> dict[str, Any]:
    """Take an ONNX file as it is; every engine must give what ONNX Runtime gives for each row alone."""
    import onnxruntime

    from slotwise.zoo.agreement import check

    if not source.is_file():
        raise SlotwiseError(f"there is no file {source}", "--weights takes an ONNX file here")
    shutil.copy(source, out / "mnist.onnx")
    try:
        session = onnxruntime.InferenceSession(str(source), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise SlotwiseError(f"{source.name} is no ONNX graph that ONNX Runtime runs", str(error).splitlines()[0]) from error
    name = session.get_inputs()[0].name
    items = np.random.default_rng(0).normal(size=(32, *spec.input.shape)).astype(np.float32)

    def alone(rows: Any) -> Any:
        return np.concatenate([session.run(None, {name: rows[i : i + 1]})[0] for i in range(len(rows))])

    return {"from": source.name, **check(out, {"onnx": "mnist.onnx"}, alone, items, trained=False)}


def digits_make() -> Any:
    """models/digits/make.py, whose data and training are used."""
    folder = model_folder("digits")
    spec = importlib.util.spec_from_file_location("slotwise_make_digits", folder / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("net", None)
    return module


def tensors(digits: Any) -> tuple[Any, Any]:
    """All digits as float32 [n, 1, 28, 28] of ink 0..1, and their labels [n]."""
    pictures, labels = digits.handwriting()
    items = np.stack([digits.RECIPE(digits.png(picture)) for picture in pictures])  # uint8 [n, 28, 28, 1]
    return items.transpose(0, 3, 1, 2).astype(np.float32) / 255, labels


def write_examples(folder: Path) -> None:
    """One held-out digit a label as raw float32, one of them as .npy and as JSON: how the committed examples were written."""
    digits = digits_make()
    pixels, labels = tensors(digits)
    _, test = digits.split(labels)
    folder.mkdir(exist_ok=True)
    for label in range(10):
        tensor = pixels[next(i for i in test if labels[i] == label)]
        (folder / f"{label}.f32").write_bytes(tensor.astype("<f4").tobytes())
        if label == 7:
            np.save(folder / "7.npy", tensor)
            (folder / "7.json").write_text(json.dumps(tensor.round(4).tolist()), "utf-8")


if __name__ == "__main__":
    write_examples(Path(__file__).parent / "examples")
