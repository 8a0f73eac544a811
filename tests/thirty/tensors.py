"""Networks that take tensors and pictures: PyTorch's in its own forms and as graphs, and graphs as others write them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.thirty.made import JSON, RAW, REQUESTS, Body, Made, Shelf, as_json, classified, described, softmax, valued

TENSORS = Shelf()
TORCH, ONNX = ("torch", "onnxscript"), ("onnx",)
LABELS = 'labels = ["ash", "birch", "cedar"]'
KINDS = ["ash", "birch", "cedar"]
NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        parts = torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2)
        self.body = torch.nn.Sequential(*parts, torch.nn.Flatten(), torch.nn.Linear(16, 3))

    def forward(self, x):
        return 9 * self.body(x)
"""
SHAPE = "[input]\nshape = [4]\n"


def rows(*shape: int, seed: int = 5) -> Any:
    """Sixteen tensors by chance."""
    return np.random.default_rng(seed).normal(size=(REQUESTS, *shape)).astype(np.float32)


def bodies(x: Any) -> list[Body]:
    """Tensors as raw numbers, JSON and .npy in turn."""

    def npy(row: Any) -> bytes:
        file = io.BytesIO()
        np.save(file, row)
        return file.getvalue()

    return [[(row.tobytes(), RAW), as_json(row.tolist()), (npy(row), RAW)][i % 3] for i, row in enumerate(x)]


def bad(x: Any) -> list[Body]:
    return [(b"abc", RAW), as_json("text"), (b"[1, 2", JSON), ((x[0] * np.nan).tobytes() if x.dtype.kind == "f" else b"", RAW)]


def network() -> Any:
    """Four numbers in, three scores out."""
    import torch

    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3)).eval()


def asked(model: Any, x: Any, labels: Sequence[str] = KINDS) -> Made:
    """What torch gives, a softmax behind it."""
    import torch

    with torch.inference_mode():
        return Made(bodies(x), classified(softmax(model(torch.from_numpy(x)).numpy()), labels), bad(x))


def exported(folder: Path, model: Any, inputs: tuple[Any, ...], **options: Any) -> None:
    """Write model.onnx, as torch's own exporter does."""
    import torch

    torch.onnx.export(model, inputs, folder / "model.onnx", dynamo=True, verbose=False, external_data=False, **options)


def batch() -> Any:
    import torch

    return torch.export.Dim("batch", min=1, max=64)


@TENSORS.add("torch-onnx", "PyTorch", "as an ONNX graph with a free batch", needs=TORCH)
def torch_onnx(folder: Path) -> Made:
    import torch

    model = network()
    exported(folder, model, (torch.zeros(2, 4),), dynamic_shapes=({0: batch()},))
    described(folder, "tensor_classifier", LABELS, f'{SHAPE}[weights]\nonnx = "model.onnx"\n')
    return asked(model, rows(4))


@TENSORS.add("torch-script", "PyTorch", "as TorchScript", needs=("torch",))
def torch_script(folder: Path) -> Made:
    import torch

    model = network()
    torch.jit.save(torch.jit.script(model), folder / "model.pt")
    described(folder, "tensor_classifier", LABELS, f'{SHAPE}[weights]\ntorchscript = "model.pt"\n')
    return asked(model, rows(4))


@TENSORS.add("torch-export", "PyTorch", "as a program of torch.export", needs=("torch",))
def torch_export(folder: Path) -> Made:
    import torch

    model = network()
    torch.export.save(torch.export.export(model, (torch.zeros(2, 4),), dynamic_shapes=({0: batch()},)), folder / "model.pt2")
    described(folder, "tensor_classifier", LABELS, f'{SHAPE}[weights]\nexport = "model.pt2"\n')
    return asked(model, rows(4))


@TENSORS.add("fixed-batch-1", "PyTorch", "a graph whose batch is fixed at 1", needs=TORCH)
def fixed_batch_1(folder: Path) -> Made:
    import torch

    model = network()
    exported(folder, model, (torch.zeros(1, 4),))
    described(folder, "tensor_classifier", LABELS, f'{SHAPE}[weights]\nonnx = "model.onnx"\n')
    return asked(model, rows(4))


@TENSORS.add(
    "fixed-batch-4",
    "PyTorch",
    "a graph whose batch is fixed at 4",
    "export it with a dynamic batch, or a batch of 1",
    needs=TORCH,
)
def fixed_batch_4(folder: Path) -> Made:
    import torch

    exported(folder, network(), (torch.zeros(4, 4),))
    described(folder, "tensor_classifier", LABELS, f'{SHAPE}[weights]\nonnx = "model.onnx"\n')
    return Made([], [], [])


@TENSORS.add("fixed-length", "PyTorch", "token ids, always twelve", needs=TORCH)
def fixed_length(folder: Path) -> Made:
    import torch

    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Embedding(30, 8), torch.nn.Flatten(), torch.nn.Linear(96, 3)).eval()
    exported(folder, model, (torch.zeros(2, 12, dtype=torch.int64),), dynamic_shapes=({0: batch()},))
    described(folder, "tensor_classifier", LABELS, '[input]\nshape = [12]\ndtype = "int64"\n[weights]\nonnx = "model.onnx"\n')
    return asked(model, np.random.default_rng(3).integers(0, 30, (REQUESTS, 12)))


@TENSORS.add("torch-picture", "PyTorch", "a picture in, weights and their module", needs=("torch",))
def torch_picture(folder: Path) -> Made:
    import torch
    from PIL import Image

    (folder / "net.py").write_text(NET, "utf-8")
    space: dict[str, Any] = {}
    exec((folder / "net.py").read_text(), space)
    torch.manual_seed(4)
    model = space["Net"]().eval()
    torch.save(model.state_dict(), folder / "weights.pt")
    described(folder, "image_classifier", LABELS,
              '[input]\nshape = [3, 16, 16]\n[weights]\nstate_dict = "weights.pt"\nmodule = "net.py"\n')  # fmt: skip
    pixels = np.random.default_rng(6).integers(0, 256, (REQUESTS, 16, 16, 3), np.uint8)
    sent = []
    for one in pixels:
        file = io.BytesIO()
        Image.fromarray(one).save(file, "PNG")
        sent.append((file.getvalue(), {"content-type": "image/png"}))
    with torch.inference_mode():
        scores = model(torch.from_numpy(pixels.transpose(0, 3, 1, 2).astype(np.float32) / 255)).numpy()
    return Made(sent, classified(softmax(scores), KINDS), [(b"GIF89a", {}), (sent[0][0][:50], {"content-type": "image/png"})])


def graph(folder: Path, nodes: Sequence[Any], inputs: Any, outputs: Any, weights: dict[str, Any]) -> None:
    """Write a graph by hand; inputs and outputs are name to (type, shape)."""
    import onnx
    from onnx import helper, numpy_helper

    def infos(about: Any) -> list[Any]:
        return [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in about.items()]

    arrays = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    made = helper.make_graph(list(nodes), "net", infos(inputs), infos(outputs), arrays)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx")


def drawn(*shape: int, seed: int = 7) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@TENSORS.add("tf-names", "TensorFlow", "names as tf2onnx writes them; pixels as they are, [b, h, w, c]", needs=ONNX)
def tf_names(folder: Path) -> Made:
    from onnx import TensorProto, helper
    from PIL import Image

    weight = drawn(3, 3) / 20
    node: Callable[..., Any] = helper.make_node
    given, gives = "serving_default_input_1:0", "StatefulPartitionedCall:0"
    nodes = [
        node("Cast", [given], ["Cast:0"], to=TensorProto.FLOAT),
        node("ReduceMean", ["Cast:0"], ["mean/Mean:0"], axes=[1, 2], keepdims=0),
        node("MatMul", ["mean/Mean:0", "dense/kernel:0"], ["dense/MatMul:0"]),
        node("Softmax", ["dense/MatMul:0"], [gives]),
    ]
    graph(folder, nodes, {given: (TensorProto.UINT8, ["unk__6", 8, 8, 3])}, {gives: (TensorProto.FLOAT, ["unk__7", 3])},
          {"dense/kernel:0": weight})  # fmt: skip
    described(folder, "image_classifier", LABELS,
              '[input]\nshape = [3, 8, 8]\ndtype = "uint8"\n[weights]\nonnx = "model.onnx"\n')  # fmt: skip
    pixels = np.random.default_rng(8).integers(0, 256, (REQUESTS, 8, 8, 3), np.uint8) // np.arange(1, 4, dtype=np.uint8)
    sent = []
    for one in pixels:
        file = io.BytesIO()
        Image.fromarray(one).save(file, "PNG")
        sent.append((file.getvalue(), {"content-type": "image/png"}))
    return Made(sent, classified(softmax(pixels.astype(np.float32).mean((1, 2)) @ weight), KINDS), [(b"no picture", {})])


@TENSORS.add("several-outputs", "ONNX", "scores beside features; model.toml names the scores", needs=ONNX)
def several_outputs(folder: Path) -> Made:
    from onnx import TensorProto, helper

    first, second = drawn(4, 6), drawn(6, 3, seed=9)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["features"]), helper.make_node("MatMul", ["features", "v"], ["scores"])]
    graph(folder, nodes, {"x": (TensorProto.FLOAT, ["b", 4])},
          {"features": (TensorProto.FLOAT, ["b", 6]), "scores": (TensorProto.FLOAT, ["b", 3])},
          {"w": first, "v": second})  # fmt: skip
    described(folder, "tensor_classifier", f'output = "scores:logits"\n{LABELS}', f'{SHAPE}[weights]\nonnx = "model.onnx"\n')
    x = rows(4)
    return Made(bodies(x), classified(softmax(x @ first @ second), KINDS), bad(x))


@TENSORS.add("values", "PyTorch", "a network that gives a value, as a graph", needs=TORCH)
def values(folder: Path) -> Made:
    import torch

    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).eval()
    exported(folder, model, (torch.zeros(2, 4),), dynamic_shapes=({0: batch()},))
    described(folder, "tensor_classifier", 'output = "regression"', f'{SHAPE}[weights]\nonnx = "model.onnx"\n')
    x = rows(4)
    with torch.inference_mode():
        return Made(bodies(x), valued(model(torch.from_numpy(x)).numpy()), bad(x))


@TENSORS.add("several-inputs", "ONNX", "two tensors in, and two out, by name", needs=ONNX)
def several_inputs(folder: Path) -> Made:
    from onnx import TensorProto, helper

    left, right = drawn(4, 3), drawn(2, 3, seed=11)
    nodes = [
        helper.make_node("MatMul", ["user", "w"], ["a"]),
        helper.make_node("MatMul", ["item", "v"], ["c"]),
        helper.make_node("Add", ["a", "c"], ["sum"]),
        helper.make_node("Mul", ["a", "c"], ["product"]),
    ]
    graph(folder, nodes, {"user": (TensorProto.FLOAT, ["b", 4]), "item": (TensorProto.FLOAT, ["b", 2])},
          {"sum": (TensorProto.FLOAT, ["b", 3]), "product": (TensorProto.FLOAT, ["b", 3])},
          {"w": left, "v": right})  # fmt: skip
    described(folder, "tensors", "", '[weights]\nonnx = "model.onnx"\n')
    users, items = rows(4), rows(2, seed=12)
    a, c = users @ left, items @ right
    sent = [as_json({"user": user.tolist(), "item": item.tolist()}) for user, item in zip(users, items, strict=True)]
    wrong = [
        as_json({"user": [1, 2, 3, 4]}),
        as_json({"user": [1], "item": [1, 2]}),
        as_json({"user": [1, 2, 3, "x"], "item": [1, 2]}),
    ]
    return Made(sent, valued(np.concatenate([a + c, a * c], axis=1)), wrong)
