"""Write a model of pictures that builds and serves as it is: it tells red, green and blue apart.

It needs no training; its weights are chosen by hand.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

import numpy as np

from slotwise.errors import missing_package

MODEL_TOML = """\
# Build:  slotwise build {path}
# Try:    slotwise check model_store/{name}.mar
# Serve:  slotwise serve {path}
name = "{name}"
version = "1.0"
handler = "image_classifier"     # picture in, label and probabilities out; or a .py file of your own in this folder
description = "Tells red, green and blue pictures apart"
labels = ["red", "green", "blue"]  # or a file with one label a line: labels = "labels.txt"
top_k = 3
examples = ["red.png", "green.png", "blue.png"]  # pictures that the model answers; `slotwise check` replays them

[input]
shape = [3, 32, 32]              # channels, height, width
# resize = 36                    # resize the shorter side first, then cut out the centre; else the picture is squeezed
mean = [0.5, 0.5, 0.5]           # one number a channel, for values 0..1
std = [0.5, 0.5, 0.5]

{weights}
# [profiles.cpu]                 # values for this model instead of the profile's
# batch_size = 16
"""

TORCH_WEIGHTS = """\
[weights]                        # one form is enough; with several, the profile's engine takes the one it knows
state_dict = "weights.pt"        # torch.save(model.state_dict(), "weights.pt")
module = "net.py"                # the file of its module class
# torchscript = "model.pt"       # torch.jit.save
# export = "model.pt2"           # torch.export.save, exported with a dynamic batch axis
# onnx = "model.onnx"            # with a dynamic batch axis; runs on onnxruntime and OpenVINO
"""
ONNX_WEIGHTS = """\
[weights]                        # one form is enough; with several, the profile's engine takes the one it knows
onnx = "model.onnx"              # with a dynamic batch axis; runs on onnxruntime and OpenVINO
# state_dict = "weights.pt"      # torch.save(model.state_dict(), "weights.pt"), and module = "net.py", its class
# torchscript = "model.pt"       # torch.jit.save
# export = "model.pt2"           # torch.export.save, exported with a dynamic batch axis
"""
NET_PY = """\
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:  # [b, 3, h, w] -> [b, 3] logits
        return self.head(self.pool(x).flatten(1))
"""
PIPELINE_TOML = """\
# Build:  slotwise build {path}
# Try:    slotwise debug {path} {path}/flag.png
# Serve:  slotwise serve {path}
name = "{name}"
version = "1.0"
handler = "stages"               # what a stage makes goes to the next one; all answers come back to their request
description = "Cuts a picture into parts and says what colour each has"
examples = ["flag.png", "red.png"]  # pictures that the model answers; `slotwise check` replays them

[[stages]]
name = "cut"                     # where nothing is cut out, the answer is an empty list
model = "cut"                    # the folder below this one

[[stages]]
name = "tell"                    # it gets the parts of several requests in one batch
model = "tell"
"""
CUT_TOML = """\
name = "cut"
version = "1.0"
handler = "cut.py"               # a .py file of this folder
description = "Cuts a picture into three parts, from left to right"
"""
CUT_PY = '''\
"""Cut a picture into three parts, and hand each on as a picture of its own."""

import io

import numpy as np
from PIL import Image

from slotwise.worker import BatchHandler, StagePart, decode_picture


class Cut(BatchHandler):
    def load(self, model_dir, settings):  # once, when a worker starts: a network that finds the parts
        return lambda pictures: [thirds(picture.shape[1]) for picture in pictures]

    def example(self):  # one valid item, for the warm-up
        return np.zeros((8, 9, 3), np.uint8)

    def decode(self, body, headers):  # a request's body, as a list of items: here one picture [h, w, 3]
        return [decode_picture(body)]

    def collate(self, items):
        return items  # of any sizes

    def encode(self, output, item):  # each part goes to the next stage; what is said of it stands beside the answer
        return [StagePart(png(item[:, left:right]), {"from": left, "to": right}, "image/png") for left, right in output]


def thirds(width):
    edges = [round(width * i / 3) for i in range(4)]
    return [(left, right) for left, right in zip(edges, edges[1:]) if left < right]


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


handle = Cut.entry_point()
'''
OPSET, IR_VERSION = 17, 8  # what onnxruntime 1.20 knows, too
Form = Literal["torch", "onnx"]
COLOURS = {"red": (214, 40, 40), "green": (44, 160, 44), "blue": (31, 90, 200)}


def write_picture(folder: Path, form: Form | None = None) -> None:
    """A model of one network. form: of its weights; None is torch where that is installed, onnx elsewhere.

    Raises SlotwiseError where torch is wanted and not installed.
    """
    has_torch = importlib.util.find_spec("torch") is not None
    if form == "torch" and not has_torch:
        raise missing_package("torch", "--form torch")
    form = form or ("torch" if has_torch else "onnx")
    from PIL import Image  # noqa: PLC0415  slow to import

    folder.mkdir(parents=True)
    weights = TORCH_WEIGHTS if form == "torch" else ONNX_WEIGHTS
    (folder / "model.toml").write_text(MODEL_TOML.format(name=folder.name, path=folder, weights=weights), "utf-8")
    (_write_torch if form == "torch" else _write_onnx)(folder)
    for colour, rgb in COLOURS.items():
        Image.new("RGB", (64, 48), rgb).save(folder / f"{colour}.png")


def write_pipeline(folder: Path) -> None:
    """Two models in one archive: one cuts a picture into parts, the other one is `write_picture`'s."""
    from PIL import Image  # noqa: PLC0415  slow to import

    write_picture(folder / "tell")
    (folder / "cut").mkdir()
    (folder / "model.toml").write_text(PIPELINE_TOML.format(name=folder.name, path=folder), "utf-8")
    (folder / "cut" / "model.toml").write_text(CUT_TOML, "utf-8")
    (folder / "cut" / "cut.py").write_text(CUT_PY, "utf-8")
    (folder / "tell" / "red.png").rename(folder / "red.png")
    toml = folder / "tell" / "model.toml"
    toml.write_text(toml.read_text("utf-8").replace('"red.png", ', ""), "utf-8")
    flag = np.concatenate([np.full((48, 32, 3), rgb, np.uint8) for rgb in COLOURS.values()], axis=1)
    Image.fromarray(flag).save(folder / "flag.png")


def _weight() -> np.ndarray:
    """[3, 3]: a channel's logit is that channel minus the mean of the other two, times 4."""
    return 6.0 * np.eye(3, dtype=np.float32) - 2.0


def _write_torch(folder: Path) -> None:
    import torch  # noqa: PLC0415  heavy

    (folder / "net.py").write_text(NET_PY, "utf-8")
    torch.save({"head.weight": torch.from_numpy(_weight()), "head.bias": torch.zeros(3)}, folder / "weights.pt")


def _write_onnx(folder: Path) -> None:
    """The graph of Net: [b, 3, h, w] -> [b, 3] logits."""
    import onnx  # noqa: PLC0415  slow to import
    from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415

    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["pooled"]),  # [b, 3, 1, 1]
        helper.make_node("Flatten", ["pooled"], ["flat"]),  # [b, 3]
        helper.make_node("MatMul", ["flat", "weight"], ["logits"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 3, "h", "w"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", 3])
    graph = helper.make_graph(nodes, "colours", [x], [logits], [numpy_helper.from_array(_weight(), "weight")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.save(made, folder / "model.onnx")
