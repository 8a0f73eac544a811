"""What a training needs to go on where it was stopped, in one file of the model's folder; a finished one leaves none."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slotwise.errors import SlotwiseError
from slotwise.files.disk import written_whole

RESUME = "training.resume"
AGAIN = "leave out --resume to start over"


def save(folder: Path, facts: Mapping[str, Any], random: np.random.Generator, tensors: Mapping[str, Any]) -> None:
    """Write the state after an epoch, in one step. facts: JSON. tensors: state_dicts by name."""
    told = json.dumps({**facts, "random": random.bit_generator.state})
    with written_whole(folder / RESUME) as partial:
        write(partial, {**tensors, "told": told, "torch": torch.random.get_rng_state()})


def load(folder: Path, plan: Mapping[str, Any], learns: Mapping[str, Any], random: np.random.Generator) -> dict[str, Any]:
    """The facts and tensors that `save` wrote; both random generators go on from there.

    learns: what the kept result has to say, too, such as its labels. Raises SlotwiseError where there is nothing to go on with,
    and where it was started with other options, or learned something else.
    """
    try:
        kept: dict[str, Any] = torch.load(folder / RESUME, map_location="cpu", weights_only=True)
        facts: dict[str, Any] = json.loads(kept.pop("told"))
    except FileNotFoundError:
        raise SlotwiseError(f"{folder} holds no training that was stopped", AGAIN) from None
    except Exception as error:
        raise SlotwiseError(f"{folder / RESUME} cannot be read: it is damaged", AGAIN) from error
    changed = [key for key, value in plan.items() if facts["plan"].get(key) != value]
    if changed:
        option, before = f"--{changed[0].replace('_', '-')}", facts["plan"].get(changed[0])
        if before is None:
            raise SlotwiseError(
                f"the training in {folder} was started without {option}", "leave that out, or --resume to start over"
            )
        raise SlotwiseError(
            f"the training in {folder} was started with {option} {before}", f"give {option} {before} again, or {AGAIN}"
        )
    other = [name for name, value in learns.items() if facts["result"].get(name) != value]
    if other:
        hint = f"restore the {other[0]} that it was started with, or {AGAIN}"
        raise SlotwiseError(f"the training in {folder} was started with other {other[0]}", hint)
    random.bit_generator.state = facts.pop("random")
    torch.random.set_rng_state(kept.pop("torch"))
    return {**facts, **kept}


def write(file: Path, content: Any) -> None:
    """torch.save, with an OSError where the disk is full."""
    data = io.BytesIO()
    torch.save(content, data)
    file.write_bytes(data.getbuffer())
