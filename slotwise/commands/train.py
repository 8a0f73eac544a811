"""train: fine-tune a picture model on a folder of pictures."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotwise.commands.options import ModelFolder
from slotwise.console import Json, emit, out, progress, say, table

if TYPE_CHECKING:
    from slotwise.zoo.training import TrainingResult

LEFT_OUT_SHOWN = 10


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(train)


def train(
    model: ModelFolder,
    data: Annotated[Path, typer.Option(help="Folder with train/CLASS/* and val/CLASS/*.")],
    weights: Annotated[
        str | None,
        typer.Option(help="Where to start: a checkpoint's path, imagenet (torchvision's) or none; else the best that is here."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=0, help="At most this many of the whole network; 0: its last layer alone.")] = 8,
    batch_size: Annotated[int, typer.Option(min=2, help="Pictures a step.")] = 16,
    learning_rate: Annotated[float, typer.Option(min=1e-8, help="Of the first step; it falls to 0 on a cosine.")] = 1e-3,
    patience: Annotated[int, typer.Option(min=1, help="Stop after this many epochs without a better one.")] = 3,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, typer.Option(help="Another seed, another order and other cuts.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training of this model that was stopped.")] = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a model's network; the best epoch's weights and the preprocessing go into the model's folder."""
    from slotwise.errors import SlotwiseError
    from slotwise.files.project import model_folder, own_folder
    from slotwise.model_spec import load_spec

    folder = model_folder(model)
    spec = load_spec(folder)
    if "network" not in spec.options:
        raise SlotwiseError(f"the model {spec.name} is not made for training", 'name a network: [options] network = "resnet18"')
    if device not in ("auto", "cpu", "cuda"):
        raise SlotwiseError(f"there is no device {device!r}", "use auto, cpu or cuda")
    from dataclasses import asdict

    from slotwise.zoo import training

    plan = training.TrainingPlan(weights, epochs, batch_size, learning_rate, patience, device, seed)
    with progress() as bar:
        outcome = training.train(spec, data, own_folder(folder), plan, bar, resume=resume)
    emit(asdict(outcome), as_json, lambda: _show(outcome))
    say(f"next: slotwise build {shlex.quote(model)}")


def _show(outcome: TrainingResult) -> None:
    for line in outcome.left_out[:LEFT_OUT_SHOWN]:
        out().print(f"left out {line}", highlight=False, markup=False)
    if len(outcome.left_out) > LEFT_OUT_SHOWN:
        out().print(f"left out {len(outcome.left_out) - LEFT_OUT_SHOWN} more files")
    frozen = f"{outcome.frozen_accuracy:.2%} with only the last layer trained; " if outcome.frozen_accuracy is not None else ""
    out().print(
        f"{outcome.network}: validation accuracy {outcome.accuracy:.2%} ({frozen}"
        f"best of {outcome.epochs} epochs of the whole network: {outcome.best_epoch or 'none'})\n"
        f"{outcome.train_pictures} pictures to train on, {outcome.validation_pictures} to validate on, "
        f"{len(outcome.left_out)} files left out, {outcome.seconds:.0f} s",
        highlight=False,
    )
    rows = [[label, *counts] for label, counts in zip(outcome.labels, outcome.confusion, strict=True)]
    out().print(table("validation pictures: what they are, and what they were taken for", ["", *outcome.labels], rows))
