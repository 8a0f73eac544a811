"""Write a model's folder that builds and serves as it is, to be changed step by step into your own: `slotwise new NAME`.

The model needs no training. Its weights are chosen by hand, and it tells a red, a green and a blue picture apart.
"""

from __future__ import annotations

from pathlib import Path

from slotwise.errors import SlotwiseError
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

[weights]                        # one form is enough; with several, the profile's engine takes the one it knows
state_dict = "weights.pt"        # torch.save(model.state_dict(), "weights.pt")
module = "net.py"                # the file of its module class
# torchscript = "model.pt"       # torch.jit.save
# export = "model.pt2"           # torch.export.save, exported with a dynamic batch axis
# onnx = "model.onnx"            # with a dynamic batch axis; runs on onnxruntime and OpenVINO

# [profiles.cpu]                 # values for this model instead of the profile's
# batch_size = 16
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
COLOURS = {"red": (214, 40, 40), "green": (44, 160, 44), "blue": (31, 90, 200)}


def new(name: str) -> list[Path]:
    """Write the folder NAME (or PATH/NAME) and return its files. Raises SlotwiseError where it exists already."""
    folder = Path(name)
    if not NAME.fullmatch(folder.name):
        raise SlotwiseError(f"{folder.name!r} cannot be a model's name", "use letters, digits, - _ and .")
    if folder.exists():
        raise SlotwiseError(f"{folder} exists already", "choose another name, or delete it first")
    import torch  # noqa: PLC0415  heavy
    from PIL import Image  # noqa: PLC0415  slow to import

    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(MODEL_TOML.format(name=folder.name, path=folder), "utf-8")
    (folder / "net.py").write_text(NET_PY, "utf-8")
    # a channel's logit is that channel minus the mean of the other two, times 4
    weight = 6.0 * torch.eye(3) - 2.0 * torch.ones(3, 3)
    torch.save({"head.weight": weight, "head.bias": torch.zeros(3)}, folder / "weights.pt")
    for colour, rgb in COLOURS.items():
        Image.new("RGB", (64, 48), rgb).save(folder / f"{colour}.png")
    return sorted(folder.iterdir())
