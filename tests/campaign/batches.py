"""Good and bad requests mixed in batches of 1 to 64, and each good answer compared with its answer alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.measuring.about import ROOT
from slotwise.archive.build import build
from slotwise.archive.local_model import LocalRequest
from slotwise.bench.bodies import RequestBody, bad_bodies, examples
from tests.campaign.cases import Case, Part
from tests.campaign.hostile_values import mutated
from tests.campaign.served import BATCH, Model, check
from tests.campaign.tally import Tally
from tests.server.conftest import build_handler

TENSORS, NUMBERS = 1600, 300  # of the pool; the rest of its 2,000 are pictures
BREAKING = (b"raise", b"nan", b"mute", b"silent", b"short", b"\xff", b"long -1")  # not "die": it ends the worker, as it should
TURNS = ("mnist", "mnist", "faults", "mnist", "digits", "mnist", "faults", "mnist")
SHARES = (1.0, 0.95, 0.9, 0.5, 0.1)  # of good ones


@contextlib.contextmanager
def start(work: Path, scale: float) -> Iterator[Case]:
    """Give what tries one batch."""
    models = {"mnist": tensors(build("mnist", work / "store")), "digits": pictures(build("digits", work / "store"))}
    faults = build_handler("faults", work / "store", work)
    models["faults"] = Model("faults", faults, [str(number).encode() for number in range(NUMBERS)])
    try:
        yield lambda i, draw, tally: try_batch(models[TURNS[i % len(TURNS)]], i, draw, tally)
    finally:
        for model in models.values():
            model.close()


def tensors(archive: Path) -> Model:
    """The MNIST of tensors, with a pool of its examples under noise."""
    noise = np.random.default_rng(0)
    digits = [np.fromfile(file, "<f4") for file in sorted((ROOT / "models" / "mnist" / "examples").glob("*.f32"))]
    good: list[LocalRequest] = []
    for k in range(TENSORS):
        noisy = digits[k % len(digits)] + noise.normal(0, 0.15, 784).astype("<f4")
        good.append(np.clip(noisy, 0, 1).astype("<f4").tobytes())
    return Model("mnist", archive, good)


def pictures(archive: Path) -> Model:
    """The digits of pictures, with a pool of its examples moved and turned."""
    import io

    from PIL import Image

    good: list[LocalRequest] = []
    for example in examples(str(archive)):
        with Image.open(io.BytesIO(example.data)) as opened:
            picture = opened.convert("L")
        for k in range(10):
            target = io.BytesIO()
            grown = picture.resize((picture.width + 3 * k, picture.height + 2 * k))
            grown.save(target, ("PNG", "JPEG", "WEBP", "BMP", "GIF")[k % 5])
            good.append(target.getvalue())
    return Model("digits", archive, good)


def try_batch(model: Model, i: int, draw: Random, tally: Tally) -> None:
    """One batch; its size goes from 1 to 64 in turn."""
    n = 1 + (i // len(TURNS)) % BATCH
    share = draw.choice(SHARES)
    slots = [draw.randrange(len(model.good)) if draw.random() < share else None for _ in range(n)]
    sent = [bad(model, draw) if k is None else model.good[k] for k in slots]
    answers = model.ready(tally).answer(sent)
    planned = {500, 503} if model.name == "faults" else set()
    for slot, (k, answer) in enumerate(zip(slots, answers, strict=True)):
        check(model, slot, k, answer, i, planned, tally)


def bad(model: Model, draw: Random) -> LocalRequest:
    """A request that should be refused, or that breaks the model."""
    if model.name == "faults":
        return draw.choice(BREAKING)
    example = model.good[draw.randrange(len(model.good))]
    assert isinstance(example, bytes)
    one = draw.choice(bad_bodies(RequestBody(example)))
    data = mutated(draw, example) if draw.random() < 0.5 else one.data
    return data, {"content-type": one.content_type}


PART = Part(
    "batches", "good and bad requests in batches of 1 to 64, each good answer compared with its answer alone", 100_000, start
)
