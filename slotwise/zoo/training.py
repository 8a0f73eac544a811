"""Fine-tune a picture model on a folder of pictures, an ImageFolder: train/CLASS/*, val/CLASS/*.

Validation uses the serving code itself to turn a file into the network's input, so what is measured here is what is served.
The best epoch's weights, the preprocessing and what was measured go into the model's folder; `slotwise build` takes them.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from slotwise.errors import SlotwiseError
from slotwise.interrupts import held
from slotwise.model_spec import ModelSpec
from slotwise.worker.inputs.images import Recipe
from slotwise.worker.settings import has_cuda
from slotwise.zoo.image_folder import LabelledPictures, vary
from slotwise.zoo.networks import network
from slotwise.zoo.trained import COUNT, FACTS, KEPT, WEIGHTS, preprocessing
from slotwise.zoo.vision import PixelNetwork

if TYPE_CHECKING:
    from rich.progress import Progress


@dataclass(frozen=True)
class TrainingPlan:
    """How to train. weights: where to start, PATH, "imagenet" or "none". patience: epochs without a better one."""

    weights: str = "imagenet"
    epochs: int = 25
    batch_size: int = 16
    learning_rate: float = 1e-3
    patience: int = 6
    device: str = "auto"
    seed: int = 0


@dataclass
class TrainingResult:
    """What came of it. confusion[true][answered] counts validation pictures, in the order of `labels`."""

    labels: list[str]
    network: str
    input: dict[str, Any]
    plan: dict[str, Any]
    accuracy: float = 0.0
    loss: float = math.inf
    best_epoch: int = 0
    epochs: int = 0
    confusion: list[list[int]] = field(default_factory=list)
    train_pictures: int = 0
    validation_pictures: int = 0
    ignored_files: int = 0
    seconds: float = 0.0


def train(spec: ModelSpec, data: Path, folder: Path, plan: TrainingPlan, progress: Progress) -> TrainingResult:
    """Train, keep the best epoch by validation accuracy (then loss), and write weights.pt and training.json to `folder`.

    Raises SlotwiseError for data or weights that do not fit the model.
    """
    started = time.monotonic()
    train_set, validation = LabelledPictures.find(data / "train", spec.labels), LabelledPictures.find(data / "val", spec.labels)
    result = TrainingResult(list(spec.labels), spec.options["network"], preprocessing(spec), asdict(plan))
    result.train_pictures, result.validation_pictures = len(train_set), len(validation)
    result.ignored_files = train_set.ignored + validation.ignored
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        best = _epochs(spec, train_set, validation, plan, result, progress)
    result.seconds = round(time.monotonic() - started, 1)
    recipe = Recipe.of(spec.input.model_dump())
    kept = [recipe(file.read_bytes()) for file in validation.spread(COUNT)]
    with held():  # all three files, or none
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(best, folder / WEIGHTS)
        np.savez_compressed(folder / KEPT, pixels=np.stack(kept))
        (folder / FACTS).write_text(json.dumps(asdict(result), indent=2) + "\n", "utf-8")
    return result


def device_of(wanted: str) -> str:
    """cpu or cuda; "auto" is cuda where torch sees one."""
    available = has_cuda()
    if wanted == "cuda" and not available:
        raise SlotwiseError("torch sees no CUDA device here", "leave out --device, or use --device cpu")
    return "cuda" if available and wanted != "cpu" else "cpu"


def _epochs(
    spec: ModelSpec,
    train_set: LabelledPictures,
    validation: LabelledPictures,
    plan: TrainingPlan,
    result: TrainingResult,
    progress: Progress,
) -> dict[str, Tensor]:
    """The best epoch's state_dict; `result` gets its figures."""
    device = device_of(plan.device)
    start = network(spec.options["network"], len(spec.labels), plan.weights, pretraining=True)
    module = PixelNetwork(start, spec.input.mean, spec.input.std).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(module.parameters(), lr=plan.learning_rate, momentum=0.9, weight_decay=1e-4)
    steps = math.ceil(len(train_set) / plan.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, plan.epochs * steps))
    recipe, random = Recipe.of(spec.input.model_dump()), np.random.default_rng(plan.seed)
    best: dict[str, Tensor] = copy.deepcopy(start.state_dict())
    task = progress.add_task("training", total=plan.epochs * steps)
    for epoch in range(1, plan.epochs + 1):
        module.train()
        for pixels, targets in _batches(train_set, recipe, plan.batch_size, random):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(pixels.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            schedule.step()
            progress.advance(task)
        accuracy, mean_loss, confusion = evaluate(module, validation, recipe, plan.batch_size, device)
        result.epochs = epoch
        if result.best_epoch == 0 or (accuracy, -mean_loss) > (result.accuracy, -result.loss):
            result.accuracy, result.loss, result.confusion, result.best_epoch = accuracy, mean_loss, confusion, epoch
            best = {key: value.detach().cpu().clone() for key, value in start.state_dict().items()}
        note = f"epoch {epoch}: validation accuracy {accuracy:.2%}, best {result.accuracy:.2%} (epoch {result.best_epoch})"
        progress.update(task, description=note)
        if epoch - result.best_epoch >= plan.patience:
            break
    return best


def evaluate(
    module: nn.Module, pictures: LabelledPictures, recipe: Recipe, batch_size: int, device: str = "cpu"
) -> tuple[float, float, list[list[int]]]:
    """Accuracy, mean cross-entropy, and the confusion matrix [true][answered] of a module on uint8 pixels."""
    module.eval()
    confusion, total = np.zeros((len(pictures.labels),) * 2, np.int64), 0.0
    with torch.inference_mode():
        for pixels, targets in _batches(pictures, recipe, batch_size):
            logits = module(pixels.to(device)).float().cpu()
            total += float(nn.functional.cross_entropy(logits, targets, reduction="sum"))
            np.add.at(confusion, (targets.numpy(), logits.argmax(1).numpy()), 1)
    return float(confusion.trace() / confusion.sum()), total / len(pictures), confusion.tolist()


def _batches(
    pictures: LabelledPictures, recipe: Recipe, batch_size: int, random: np.random.Generator | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """uint8 [b, h, w, c] and int64 [b]; shuffled and varied where `random` is given. The next batch is decoded meanwhile."""
    order = random.permutation(len(pictures)) if random else np.arange(len(pictures))
    groups = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    if random and len(groups) > 1 and len(groups[-1]) == 1:
        groups.pop()  # batch norm cannot learn from a single picture
    seeds = [int(random.integers(2**63)) for _ in order] if random else [0] * len(order)

    def load(row: int, seed: int) -> Any:
        body = pictures.files[row].read_bytes()
        return vary(body, recipe, np.random.default_rng(seed)) if random else recipe(body)

    with ThreadPoolExecutor(2, "decode") as pool:
        coming = None
        for i in range(len(groups) + 1):
            now = coming
            if i < len(groups):
                coming = [pool.submit(load, int(row), seeds[int(row)]) for row in groups[i]]
            if now is not None:
                pixels = np.stack([item.result() for item in now])
                yield torch.from_numpy(pixels), torch.from_numpy(pictures.targets[groups[i - 1]])
