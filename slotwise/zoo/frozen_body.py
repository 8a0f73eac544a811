"""Fit a network's last layer while the rest stays as it was published: minutes become seconds, and few pictures suffice.

Each picture passes the frozen rest a few times, once as it is served and else varied; the last layer is then a logistic
regression on what came out, fitted to its optimum in one go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slotwise.errors import SlotwiseError
from slotwise.worker.inputs.images import Recipe
from slotwise.zoo.image_folder import LabelledPictures, batches

ROUNDS = 3  # how often each picture passes
BATCH_SIZE = 32
STEPS = 200


def fit_last_layer(
    module: nn.Module,
    pictures: LabelledPictures,
    recipe: Recipe,
    random: np.random.Generator,
    device: str,
    advance: Callable[[int], object],
) -> None:
    """Fit the last linear layer of `module`, a network on uint8 pixels [b, h, w, c]. advance: is told counts of pictures."""
    name, layer = _last_linear(module)
    parent = module.get_submodule(name.rpartition(".")[0])
    setattr(parent, name.rpartition(".")[2], nn.Identity())
    module.eval()
    features: list[Tensor] = []
    targets: list[Tensor] = []
    try:
        with torch.no_grad():
            for i in range(ROUNDS):
                for pixels, expected in batches(pictures, recipe, BATCH_SIZE, random if i else None):
                    features.append(module(pixels.to(device)))
                    targets.append(expected.to(device))
                    advance(len(expected))
    finally:
        setattr(parent, name.rpartition(".")[2], layer)
    _fit(layer, torch.cat(features), torch.cat(targets), 1 / len(pictures))


def _last_linear(module: nn.Module) -> tuple[str, nn.Linear]:
    found = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not found:
        raise SlotwiseError("this network has no linear layer to fit", "train it with --weights none")
    return found[-1]


def _fit(layer: nn.Linear, features: Tensor, targets: Tensor, penalty: float) -> None:
    """Mean cross-entropy plus penalty/2 times the squared weights: [n, d] and [n] to the layer's weights, from zero."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Any:
        optimizer.zero_grad()
        total = nn.functional.cross_entropy(layer(features), targets) + penalty / 2 * layer.weight.square().sum()
        total.backward()
        return total

    optimizer.step(loss)
