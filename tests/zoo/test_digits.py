"""The digits model as a user meets it: built, unpacked, asked with pictures of every kind."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageOps

from slotwise.archive.build import build
from tests.worker.serving import Served

MODEL = Path(__file__).parents[2] / "models" / "digits"
ENGINES = ["torch", "onnxruntime", "openvino"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive; trained once, then from the cache."""
    return build("digits", tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def served(built: Path) -> Served:
    return Served.of(built, {}, batch_size=8)


@pytest.fixture(scope="module")
def make() -> Any:
    """models/digits/make.py."""
    sys.path.insert(0, str(MODEL))
    try:
        spec = importlib.util.spec_from_file_location("digits_make", MODEL / "make.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(MODEL))
        sys.modules.pop("net", None)
    return module


def example(label: int) -> Image.Image:
    with Image.open(MODEL / "examples" / f"{label}.png") as picture:
        return picture.convert("L")


def body(picture: Image.Image, kind: str = "PNG") -> bytes:
    target = io.BytesIO()
    picture.save(target, kind)
    return target.getvalue()


def test_the_build_reports_accuracy_and_agreement(built: Path) -> None:
    measured = json.loads(built.with_name("digits.report.json").read_text("utf-8"))["measured"]
    assert measured["accuracy"] >= 0.98
    assert measured["held_out"] == 360
    for engine in ENGINES:
        assert measured["engines"][f"{engine}-fp32"]["passed"]
        assert measured["engines"][f"{engine}-fp32"]["top1_agreement"] >= 0.99


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_reads_the_examples(built: Path, engine: str) -> None:
    served = Served.of(built, {"engine": engine, "precision": "fp32"}, batch_size=10)
    assert (served.handler.engine.name, served.handler.engine.precision) == (engine, "fp32")
    answers = served.ask([(MODEL / "examples" / f"{label}.png").read_bytes() for label in range(10)])
    assert [answer.value["label"] for answer in answers] == list("0123456789")
    assert all(len(answer.value["probabilities"]) == 5 for answer in answers)


@pytest.mark.parametrize(
    "change", ["as it is", "dark on light", "tiny", "huge", "with a margin", "in a corner", "jpeg", "colour"]
)
def test_a_digit_is_found_whatever_its_paper(served: Served, change: str) -> None:
    changes: dict[str, Any] = {
        "as it is": lambda p: p,
        "dark on light": ImageOps.invert,
        "tiny": lambda p: p.resize((12, 12), Image.Resampling.BILINEAR),
        "huge": lambda p: p.resize((1500, 1500), Image.Resampling.BICUBIC),
        "with a margin": lambda p: ImageOps.invert(ImageOps.expand(p, 200)),
        "in a corner": lambda p: ImageOps.expand(p, (10, 10, 300, 150)),
        "jpeg": lambda p: ImageOps.invert(p).resize((300, 300)),
        "colour": lambda p: ImageOps.colorize(p, (240, 235, 220), (30, 40, 120)),
    }
    kind = "JPEG" if change == "jpeg" else "PNG"
    bodies = [body(changes[change](example(label)), kind) for label in range(10)]
    labels = [answer.value["label"] for half in (bodies[:5], bodies[5:]) for answer in served.ask(half)]
    assert labels == list("0123456789")


def test_held_out_digits_as_pictures(served: Served, make: Any) -> None:
    pictures, labels = make.handwriting()
    _, test = make.split(labels)
    rows = list(test[:160])
    bodies = [body(ImageOps.invert(Image.open(io.BytesIO(make.png(pictures[i], side=40 + i % 90))))) for i in rows]
    answers = [answer for i in range(0, len(rows), 8) for answer in served.ask(bodies[i : i + 8])]
    right = np.mean([int(answer.value["label"]) == labels[i] for i, answer in zip(rows, answers, strict=True)])
    assert right >= 0.98


def test_a_digit_drawn_with_a_thin_line(served: Served) -> None:
    paper = Image.new("RGB", (280, 280), "white")
    ImageDraw.Draw(paper).line([(80, 60), (200, 60), (130, 220)], fill="black", width=16, joint="curve")
    assert served.ask([body(paper)])[0].value["label"] == "7"


def test_a_blank_picture_is_answered_and_harms_nobody(served: Served) -> None:
    blank, seven = served.ask([body(Image.new("L", (28, 28), 255)), body(example(7))])
    assert (blank.code, seven.value["label"]) == (200, "7")


def test_batched_answers_equal_single_ones(served: Served) -> None:
    bodies = [body(example(label)) for label in (3, 8, 8, 0, 5)]
    together = [answer.value for answer in served.ask(bodies)]
    alone = [served.ask([one])[0].value for one in bodies]
    for a, b in zip(together, alone, strict=True):
        assert a["label"] == b["label"]
        assert a["probabilities"] == pytest.approx(b["probabilities"], abs=1e-4)


def test_the_same_build_twice_gives_the_same_weights(make: Any) -> None:
    import torch

    from slotwise import console

    pictures, labels = make.handwriting()
    items = torch.from_numpy(np.stack([make.RECIPE(make.png(picture)) for picture in pictures[:256]]))
    with pytest.MonkeyPatch.context() as patch, console.progress() as progress:
        patch.setattr(make, "EPOCHS", 1)
        first, second = (make.fit(items, torch.from_numpy(labels[:256]), progress).state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)
