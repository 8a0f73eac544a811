"""Write a model's folder that builds and serves as it is, to be changed step by step into your own: `slotwise new NAME`.

The model needs no training. Its weights are chosen by hand, and it tells a red, a green and a blue picture apart; or it goes on
with a sentence, word by word, in an answer that comes piece by piece.
"""

from __future__ import annotations

import importlib.util
import json
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from slotwise.errors import SlotwiseError, missing_package
from slotwise.model_spec import NAME

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
STREAMING_TOML = """\
# Build:  slotwise build {path}
# Serve:  slotwise serve {path} --server slotwise
# Try:    slotwise predict {name} {path}/once.txt --stream
name = "{name}"
version = "1.0"
handler = "handler.py"           # a .py file of this folder
description = "Goes on with a sentence, word by word"
files = ["next_word.json"]       # what `load` reads: a network's weights, a vocabulary, a table
examples = ["once.txt", "every.txt", "nobody.txt"]  # bodies that the model answers; `slotwise check` replays them

# [profiles.cpu]                 # values for this model instead of the profile's
# batch_size = 16                # how many streams take turns
"""
HANDLER_PY = '''\
"""Go on with a sentence, word by word: each word is sent as soon as it is there. Who asks for no stream gets all at once."""

import json
import time

from slotwise.worker import StreamHandler, Unprocessable, decode_text


class Words(StreamHandler):
    def load(self, model_dir, settings):  # once, when a worker starts: your network and its weights
        return json.loads((model_dir / "next_word.json").read_text("utf-8"))  # of each word the one that follows

    def decode(self, body, headers):  # a request's body, as a list of what `stream` takes: here one word
        word = decode_text(body, headers).split()[-1].lower()
        if word not in self.engine:  # the engine is what `load` returned
            raise Unprocessable(f"no sentence is known that begins with {word!r}")  # this request's own error
        return [word]

    def example(self):  # one valid item, for the warm-up
        return "once"

    def stream(self, word):  # what is yielded is sent; other requests' streams take their turns between two words
        while word in self.engine:
            time.sleep(0.05)  # a real model computes here
            word = self.engine[word]
            yield f" {word}"


handle = Words.entry_point()
'''
SENTENCES = ("once upon a time there lived some slots", "every request keeps its slot", "nobody waits for the slowest reader")
OPSET, IR_VERSION = 17, 8  # what onnxruntime 1.20 knows, too
Form = Literal["torch", "onnx"]
COLOURS = {"red": (214, 40, 40), "green": (44, 160, 44), "blue": (31, 90, 200)}


def new(name: str, form: Form | None = None, *, streams: bool = False) -> list[Path]:
    """Write the folder NAME (or PATH/NAME) and return its files.

    form: of its weights; None is torch where that is installed, onnx elsewhere. streams: a model of words in place of the one
    of colours; it has no weights. Raises SlotwiseError where the folder exists already, or torch is wanted and not installed.
    """
    folder = Path(name)
    if not NAME.fullmatch(folder.name):
        raise SlotwiseError(f"{folder.name!r} cannot be a model's name", "use letters, digits, - _ and .")
    if folder.exists():
        raise SlotwiseError(f"{folder} exists already", "choose another name, or delete it first")
    if streams:
        _write_streaming(folder)
        return sorted(folder.iterdir())
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
    return sorted(folder.iterdir())


def _write_streaming(folder: Path) -> None:
    sentences = [sentence.split() for sentence in SENTENCES]
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(STREAMING_TOML.format(name=folder.name, path=folder), "utf-8")
    (folder / "handler.py").write_text(HANDLER_PY, "utf-8")
    follows = {word: after for words in sentences for word, after in pairwise(words)}
    (folder / "next_word.json").write_text(json.dumps(follows, indent=2) + "\n", "utf-8")
    for first, *_ in sentences:
        (folder / f"{first}.txt").write_text(first, "utf-8")


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
