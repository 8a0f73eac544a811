"""Classification networks with the weights a person asked for: a local checkpoint, published ones, or none."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slotwise.errors import SlotwiseError, missing_package
from slotwise.worker.engines.torchvision_compat import ensure_importable
from slotwise.zoo import efficientnet

DOWNLOAD_STALLS_S = 30.0
SEED = 0
SAVE = "save it with torch.save(model.state_dict(), PATH)"


def network(name: str, labels: int, weights: str, pretraining: bool = False) -> nn.Module:
    """The network `name` with one output a label: "efficientnet_lite0", or any of torchvision's.

    weights: a checkpoint's path, "imagenet" (EfficientNet-Lite0's package; for others torchvision's download, kept in
    torch's own cache) or "none" (random, the same ones every time). pretraining: weights for other labels are welcome, the
    last layer then starts from scratch.
    """
    lite = name == efficientnet.NAME
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        made = efficientnet.EfficientNetLite0(labels) if lite else _of_torchvision(name, labels)
    if weights == "imagenet":
        _fill(made, efficientnet.pretrained() if lite else _download(name), weights, pretraining)
    elif weights != "none":
        _fill(made, read_checkpoint(Path(weights)), weights, pretraining)
    return made.eval()


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The tensors in a file that torch.save wrote: a state_dict, or a checkpoint with one under `state_dict` or `model`."""
    if not path.is_file():
        raise SlotwiseError(f"there is no weights file {path}", "give a checkpoint's path, `imagenet` or `none`")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise SlotwiseError(f"{path} is no checkpoint of tensors", SAVE) from error
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise SlotwiseError(f"{path} is no state_dict", SAVE)
    return {str(key).removeprefix("module."): value for key, value in content.items()}


def settle(module: nn.Module, pixels: Tensor) -> None:
    """Give an untrained network's batch norm the statistics of some pictures. Without them a deep network overflows.

    It runs on one thread, so that sums have a fixed order and the statistics are the same on any number of cores.
    """
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    module.train()
    with torch.inference_mode():
        module(pixels)
    module.eval()
    torch.set_num_threads(threads)


def _of_torchvision(name: str, labels: int) -> nn.Module:
    if not ensure_importable():
        raise missing_package("torchvision", name)
    import torchvision  # noqa: PLC0415  heavy, optional

    if name not in torchvision.models.list_models():
        raise SlotwiseError(f"torchvision has no network {name!r}", "a usual one is resnet18")
    made: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=labels)
    return made


def _fill(built: nn.Module, state: Mapping[str, Tensor], weights: str, pretraining: bool) -> None:
    own: dict[str, Any] = built.state_dict()
    fitting = {key: value for key, value in state.items() if key in own and own[key].shape == value.shape}
    last = list(own)[-1].rpartition(".")[0]  # the last layer's name: "fc" of a ResNet
    unfilled = [key for key in own if key not in fitting]
    if any(not (pretraining and key.startswith(f"{last}.")) for key in unfilled):
        raise SlotwiseError(
            f"the weights {weights} do not fit: {unfilled[0]} is missing or has another shape ({len(unfilled)} tensors in all)",
            "they must be of the same network with the same labels",
        )
    built.load_state_dict(fitting, strict=False)


def _download(name: str) -> dict[str, Any]:
    import torchvision  # noqa: PLC0415  heavy, optional

    weights = torchvision.models.get_model_weights(name)["IMAGENET1K_V1"]
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_STALLS_S)
    try:
        state: dict[str, Any] = weights.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        hint = "give a local checkpoint with --weights PATH, or --weights none for untrained ones"
        raise SlotwiseError(f"{name}'s weights could not be downloaded: {error}", hint) from error
    finally:
        socket.setdefaulttimeout(before)
    return state
