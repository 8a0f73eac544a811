"""Train the digits model on scikit-learn's real handwriting, in seconds, and write its files for every engine."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from net import Net
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from slotwise.errors import SlotwiseError
from slotwise.model_spec import load_spec
from slotwise.worker.inputs.images import Recipe
from slotwise.zoo.vision import PixelNetwork, classes_right, export

if TYPE_CHECKING:
    from rich.progress import Progress

RECIPE = Recipe(channels=1, height=28, width=28, ink=True)
EPOCHS, BATCH = 12, 64
LEAST_ACCURACY = 0.98


def make(out: Path, weights: str | None, progress: Progress) -> dict[str, Any]:
    """Write the files that model.toml names; returns the accuracy on digits that training never saw."""
    if weights not in (None, "none"):
        raise SlotwiseError("the digits model trains its own weights", "leave out --weights")
    started = time.monotonic()
    pictures, labels = handwriting()
    train, test = split(labels)
    items = np.stack([RECIPE(png(picture)) for picture in pictures])  # [n, 28, 28, 1]
    model = fit(torch.from_numpy(items[train]), torch.from_numpy(labels[train]), progress)
    accuracy = classes_right(model, items[test], labels[test])
    progress.console.print(f"digits: accuracy {accuracy:.2%} on {len(test)} held-out digits", highlight=False)
    if accuracy < LEAST_ACCURACY:
        raise SlotwiseError(f"the digits model reached only {accuracy:.2%}", f"at least {LEAST_ACCURACY:.0%} were expected")
    spec = load_spec(Path(__file__).parent)
    measured = export(spec, model, items[test], out, progress, trained=True)
    made_s = round(time.monotonic() - started, 1)
    return {"accuracy": accuracy, "held_out": len(test), "trained_on": len(train), "made_s": made_s, **measured}


def handwriting() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """1797 digits by 43 people: uint8 [n, 8, 8] light on dark, and int64 [n]."""
    data = load_digits()
    return (data.images * 255 / 16).astype(np.uint8), data.target.astype(np.int64)


def split(labels: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Indices of the digits to train on and of those held out, the same every time."""
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels)
    return np.asarray(train), np.asarray(test)


def png(picture: np.ndarray[Any, Any], side: int = 28) -> bytes:
    """A digit [8, 8] as a grey PNG of side x side pixels with a margin, light on dark."""
    inner = side * 6 // 7
    scaled = Image.fromarray(picture).resize((inner, inner), Image.Resampling.BICUBIC)
    paper = Image.new("L", (side, side))
    paper.paste(scaled, ((side - inner) // 2,) * 2)
    target = io.BytesIO()
    paper.save(target, "PNG")
    return target.getvalue()


def fit(items: Tensor, targets: Tensor, progress: Progress, network: Callable[[], nn.Module] = Net) -> PixelNetwork:
    """Train on uint8 [n, 28, 28, 1]; every epoch sees each digit turned, shifted, scaled and thickened a little differently."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in a fixed order: the same weights every time
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = PixelNetwork(network(), mean=[0.13], std=[0.31])
        steps = EPOCHS * (len(items) // BATCH)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
        task = progress.add_task("training digits", total=steps)
        model.train()
        for _ in range(EPOCHS):
            order = torch.randperm(len(items))[: len(items) // BATCH * BATCH]
            for rows in order.split(BATCH):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(vary(items[rows])), targets[rows], label_smoothing=0.05)
                loss.backward()
                optimizer.step()
                schedule.step()
                progress.advance(task)
    torch.set_num_threads(threads)
    model.eval()
    return model


def vary(items: Tensor) -> Tensor:
    """uint8 [b, 28, 28, 1] to the same, each turned by up to 15 degrees, sheared, scaled, shifted, thinned or thickened."""
    b = len(items)
    angle, shear = (torch.rand(2, b) - 0.5) * torch.tensor([[0.52], [0.4]])
    scale = 1 + (torch.rand(2, b) - 0.5) * 0.3
    shift = (torch.rand(2, b) - 0.5) * 0.2
    cos, sin = angle.cos(), angle.sin()
    turn = torch.stack([cos * scale[0], -sin + shear, shift[0], sin, cos * scale[1], shift[1]], 1).reshape(b, 2, 3)
    grid = nn.functional.affine_grid(turn, [b, 1, 28, 28], align_corners=False)
    moved = nn.functional.grid_sample(items.permute(0, 3, 1, 2) / 255, grid, align_corners=False)
    gamma = 0.4 + 1.4 * torch.rand(b, 1, 1, 1)
    return (moved**gamma * 255).to(torch.uint8).permute(0, 2, 3, 1)


def write_examples(folder: Path) -> None:
    """One held-out digit a label as FOLDER/LABEL.png, 112 x 112: what the committed examples were written with."""
    pictures, labels = handwriting()
    _, test = split(labels)
    folder.mkdir(exist_ok=True)
    for label in range(10):
        chosen = next(i for i in test if labels[i] == label)
        (folder / f"{label}.png").write_bytes(png(pictures[chosen], side=112))


if __name__ == "__main__":
    write_examples(Path(__file__).parent / "examples")
    print(json.dumps({"examples": 10}))
