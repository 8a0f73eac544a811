"""Fine-tune a picture model on a folder of pictures: train/CLASS/*, val/CLASS/*.

Where training starts from weights, the last layer is fitted first, to what the rest of the network, left as it is, makes of the
pictures. Then all of it is trained, and kept where that answers the validation pictures better.
Validation uses the serving code itself to turn a file into the network's input, so what is measured here is what is served.
The best epoch's weights, the preprocessing and what was measured go into the model's folder, each better epoch at once;
`slotwise build` takes them. A training that was stopped can go on (slotwise.zoo.checkpoint).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from slotwise.errors import SlotwiseError
from slotwise.files.disk import check_writable, written_whole
from slotwise.interrupts import held
from slotwise.model_spec import ModelSpec
from slotwise.worker.environment.digests import file_sha256
from slotwise.worker.environment.settings import has_cuda
from slotwise.worker.inputs.images import Recipe
from slotwise.zoo import checkpoint, frozen_body
from slotwise.zoo.image_folder import LabelledPictures, batches, digest
from slotwise.zoo.start import Start, start_of
from slotwise.zoo.trained import COUNT, DIGEST, FACTS, KEPT, WEIGHTS, preprocessing

if TYPE_CHECKING:
    from rich.progress import Progress

LEARNS = ("labels", "network", "input", "data")  # of a result: with another one, kept weights answer something else


@dataclass(frozen=True)
class TrainingPlan:
    """How to train. weights: where to start, PATH, "imagenet", "none" or None for the best that is here (see start.py).

    epochs: of the whole network, after its last layer. patience: epochs without a better one.
    """

    weights: str | None = None
    epochs: int = 8
    batch_size: int = 16
    learning_rate: float = 1e-3
    patience: int = 3
    device: str = "auto"
    seed: int = 0


@dataclass
class TrainingResult:
    """What came of it. confusion[true][answered] counts validation pictures, in the order of `labels`.

    data: a digest of every picture and its class's folder. best_epoch: 0 where the network with only its last layer trained
    answers best; frozen_accuracy: what that reached.
    """

    labels: list[str]
    network: str
    input: dict[str, Any]
    plan: dict[str, Any]
    data: str = ""
    frozen_accuracy: float | None = None
    accuracy: float = 0.0
    loss: float = math.inf
    best_epoch: int = 0
    epochs: int = 0
    confusion: list[list[int]] = field(default_factory=list)
    train_pictures: int = 0
    validation_pictures: int = 0
    left_out: list[str] = field(default_factory=list)
    seconds: float = 0.0


def train(
    spec: ModelSpec, data: Path, folder: Path, plan: TrainingPlan, progress: Progress, *, resume: bool = False
) -> TrainingResult:
    """Train, keep the best by validation accuracy (then loss), and write weights.pt and training.json to `folder`.

    resume: go on with the training in `folder` that was stopped. Raises SlotwiseError for a folder that cannot be written, and
    for data or weights that do not fit the model.
    """
    check_writable(folder)
    _check_described(spec)
    recipe = Recipe.of(spec.input.model_dump())
    train_set, validation = (LabelledPictures.find(data / part, spec.labels, recipe) for part in ("train", "val"))
    start = start_of(spec, plan.weights)
    if not start.mean or not start.std:
        raise SlotwiseError(
            f"the model {spec.name} does not say what its network takes", "mean and std in [input] of model.toml"
        )
    if start.weights == "none" and not plan.epochs:
        raise SlotwiseError("the last layer alone is not trained without weights", "--epochs 1 or more, or other --weights")
    result = TrainingResult(list(spec.labels), start.network, preprocessing(spec, start), asdict(plan))
    result.data = digest(data, [*train_set.files, *validation.files])
    result.train_pictures, result.validation_pictures = len(train_set), len(validation)
    result.left_out = train_set.left_out + validation.left_out
    with _repeatable(plan.seed):
        run = _Run(spec, train_set, validation, plan, start, result, progress, folder)
        if start.weights != "none" and not resume:
            run.fit_last_layer()
        run.fine_tune(resume)
    if not run.best:
        raise SlotwiseError("the network answers with what is no number", "train with a smaller --learning-rate")
    run.keep()
    (folder / checkpoint.RESUME).unlink(missing_ok=True)
    return result


def _check_described(spec: ModelSpec) -> None:
    """Raise SlotwiseError where model.toml does not say what is to be learned, or from what."""
    if not spec.labels:
        raise SlotwiseError(f"the model {spec.name} has no labels", 'name them in model.toml: labels = ["ant", "bee"]')
    if len(spec.input.shape) != 3:
        hint = "[input] of model.toml: shape = [3, 224, 224]"
        raise SlotwiseError(f"the model {spec.name} does not say what its network takes", hint)


@contextmanager
def _repeatable(seed: int) -> Iterator[None]:
    """The same weights of the same pictures and seed, on as many threads."""
    before = torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)


def device_of(requested: str) -> str:
    """cpu or cuda; "auto" is cuda where torch sees one."""
    available = has_cuda()
    if requested == "cuda" and not available:
        raise SlotwiseError("torch sees no CUDA device here", "leave out --device, or use --device cpu")
    return "cuda" if available and requested != "cpu" else "cpu"


class _Run:
    """One training: the network, and the best of it so far."""

    def __init__(
        self,
        spec: ModelSpec,
        train_set: LabelledPictures,
        validation: LabelledPictures,
        plan: TrainingPlan,
        start: Start,
        result: TrainingResult,
        progress: Progress,
        folder: Path,
    ) -> None:
        self.folder, self.started = folder, time.monotonic()
        self.train_set, self.validation, self.plan, self.result, self.progress = train_set, validation, plan, result, progress
        self.device = device_of(plan.device)
        self.recipe, self.random = Recipe.of(spec.input.model_dump()), np.random.default_rng(plan.seed)
        module = start.module(len(spec.labels), pretraining=True)
        self.module = module.to(self.device, memory_format=torch.channels_last)
        self.published = start.weights != "none"
        self.best: dict[str, Tensor] = {}
        size = sum(tensor.nbytes for tensor in module.state_dict().values())
        check_writable(folder, 6 * size >> 20)  # the best, and twice what --resume needs

    def fit_last_layer(self) -> None:
        """Fit the last layer to the features that the rest gives, and see how far that goes."""
        task = self.progress.add_task("last layer", total=frozen_body.ROUNDS * len(self.train_set))
        frozen_body.fit_last_layer(
            self.module, self.train_set, self.recipe, self.random, self.device, lambda n: self.progress.advance(task, n)
        )
        self._look(0)
        self.result.frozen_accuracy = self.result.accuracy
        self.progress.update(task, description=f"last layer: validation accuracy {self.result.accuracy:.2%}")

    def fine_tune(self, resume: bool) -> None:
        """Train the whole network, epoch by epoch, until `patience` of them were no better."""
        plan, steps = self.plan, math.ceil(len(self.train_set) / self.plan.batch_size)
        optimizer = torch.optim.SGD(self.module.parameters(), lr=plan.learning_rate, momentum=0.9, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, plan.epochs * steps))
        states = {"module": self.module, "optimizer": optimizer, "schedule": schedule}
        if resume:
            self._go_on(states)
        done = self.result.epochs
        task = self.progress.add_task("training", total=plan.epochs * steps, completed=done * steps)
        for epoch in range(done + 1, plan.epochs + 1):
            self._learn()
            for pixels, targets in batches(self.train_set, self.recipe, plan.batch_size, self.random):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.module(pixels.to(self.device)), targets.to(self.device))
                loss.backward()
                optimizer.step()
                schedule.step()
                self.progress.advance(task)
            accuracy, best = self._look(epoch), self.result.best_epoch
            self._save(states)
            note = f"epoch {epoch}: validation accuracy {accuracy:.2%}, best {self.result.accuracy:.2%} (epoch {best})"
            self.progress.update(task, description=note)
            if epoch - best >= plan.patience:
                break

    def _learn(self) -> None:
        """Training mode; batch norm keeps published statistics, which a few pictures would only blur."""
        self.module.train()
        for part in self.module.modules():
            if self.published and isinstance(part, nn.BatchNorm2d):
                part.eval()

    def _look(self, epoch: int) -> float:
        """Answer the validation pictures, and keep the weights where none did better."""
        accuracy, loss, confusion = evaluate(self.module, self.validation, self.recipe, self.plan.batch_size, self.device)
        result = self.result
        result.epochs, result.seconds = epoch, round(time.monotonic() - self.started, 1)
        if math.isfinite(loss) and (not self.best or (accuracy, -loss) > (result.accuracy, -result.loss)):
            result.accuracy, result.loss, result.confusion, result.best_epoch = accuracy, loss, confusion, epoch
            self.best = {key: value.detach().cpu().clone() for key, value in self.module.network.state_dict().items()}
            self.keep()
        return accuracy

    def keep(self) -> None:
        """Write the best so far: all three files, or none."""
        pictures = [self.recipe(file.read_bytes()) for file in self.validation.spread(COUNT)]
        with held():
            self.folder.mkdir(parents=True, exist_ok=True)
            places = [written_whole(self.folder / name) for name in (WEIGHTS, KEPT, FACTS)]
            with places[0] as weights, places[1] as kept, places[2] as facts:
                checkpoint.write(weights, self.best)
                with kept.open("wb") as file:
                    np.savez_compressed(file, pixels=np.stack(pictures))
                known = {**asdict(self.result), DIGEST: file_sha256(weights)}
                facts.write_text(json.dumps(known, indent=2) + "\n", "utf-8")

    def _save(self, states: Mapping[str, Any]) -> None:
        """Write what `--resume` goes on from."""
        tensors = {name: part.state_dict() for name, part in states.items()}
        facts = {"plan": asdict(self.plan), "result": asdict(self.result)}
        checkpoint.save(self.folder, facts, self.random, {**tensors, "best": self.best})

    def _go_on(self, states: Mapping[str, Any]) -> None:
        """Take up what a training that was stopped had come to."""
        learns = {name: getattr(self.result, name) for name in LEARNS}
        kept = checkpoint.load(self.folder, asdict(self.plan), learns, self.random)
        for name, part in states.items():
            part.load_state_dict(kept[name])
        self.best = kept["best"]
        vars(self.result).update(kept["result"])
        self.started -= self.result.seconds


def evaluate(
    module: nn.Module, pictures: LabelledPictures, recipe: Recipe, batch_size: int, device: str = "cpu"
) -> tuple[float, float, list[list[int]]]:
    """Accuracy, mean cross-entropy, and the confusion matrix [true][answered] of a module on uint8 pixels."""
    module.eval()
    confusion, total = np.zeros((len(pictures.labels),) * 2, np.int64), 0.0
    with torch.inference_mode():
        for pixels, targets in batches(pictures, recipe, batch_size):
            logits = module(pixels.to(device)).float().cpu()
            total += float(nn.functional.cross_entropy(logits, targets, reduction="sum"))
            np.add.at(confusion, (targets.numpy(), logits.argmax(1).numpy()), 1)
    return float(confusion.trace() / confusion.sum()), total / len(pictures), confusion.tolist()
