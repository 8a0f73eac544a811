"""Which network a training starts from, and with which weights: what `--weights` of `slotwise train` means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slotwise.model_spec import ModelSpec
from slotwise.zoo import efficientnet
from slotwise.zoo.networks import network, read_checkpoint
from slotwise.zoo.vision import PixelNetwork

IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # what torchvision's weights were trained with


@dataclass(frozen=True)
class Start:
    """A network's name, its weights (PATH, "imagenet" or "none"), and the normalisation that belongs to it."""

    network: str
    weights: str
    mean: list[float]
    std: list[float]

    def module(self, labels: int, pretraining: bool = False) -> PixelNetwork:
        """The network on pixels, in eval mode. pretraining: weights for other labels are welcome."""
        module = PixelNetwork(network(self.network, labels, self.weights, pretraining), self.mean, self.std)
        module.eval()
        return module


def start_of(spec: ModelSpec, weights: str | None) -> Start:
    """Where `weights` starts: a path, "imagenet" (torchvision's), "none", or None for the best that is here.

    A model whose [options] name the network "efficientnet_lite0" has a `fallback`, one of torchvision's networks: it takes
    torchvision's weights, and a checkpoint that is not EfficientNet-Lite0's.
    """
    name, fallback = str(spec.options["network"]), spec.options.get("fallback")
    own = Start(name, weights or "imagenet", spec.input.mean, spec.input.std)
    if name != efficientnet.NAME or fallback is None or weights == "none":
        return own
    if weights is None and efficientnet.installed():
        return own
    if weights not in (None, "imagenet") and efficientnet.HEAD in read_checkpoint(Path(weights)):
        return own
    return Start(str(fallback), own.weights, IMAGENET_MEAN, IMAGENET_STD)
