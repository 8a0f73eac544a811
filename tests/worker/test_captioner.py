"""Captions in this process: pictures, their preprocessing, batches against rows alone, and the build."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slotwise.archive.build import build
from slotwise.worker import Headers, Request
from slotwise.worker.engines.git import GitEngine
from tests.worker.drawings import caption, draw, everything, picture
from tests.worker.serving import Served


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built archive."""
    return build("captions", tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def served(captions: Path) -> Iterator[Served]:
    """The handler as the profile cpu starts it."""
    made = Served.of(captions, {})
    yield made
    shutil.rmtree(made.model_dir.parent)


def test_the_examples_are_described(served: Served) -> None:
    folder = served.model_dir / "examples"
    bodies = [(folder / name).read_bytes() for name in ("red-circle.png", "two-shapes.jpg")]
    answers = served.ask(bodies)
    assert [answer.value for answer in answers] == [
        {"caption": "a red circle"},
        {"caption": "a blue square and a yellow triangle"},
    ]
    assert "demonstration" in answers[0].headers["x-model-note"]
    (plain,) = served.ask(bodies[:1], [{"Accept": "text/plain"}])
    assert plain.body == b"a red circle"
    assert plain.headers["content-type"].startswith("text/plain")


def test_most_unseen_drawings_are_described_right(served: Served) -> None:
    known = everything()[::9]
    answers = served.ask([picture(shapes, seed=2 * 10**6 + i) for i, shapes in enumerate(known)])
    right = sum(answer.value["caption"] == caption(shapes) for answer, shapes in zip(answers, known, strict=True))
    assert right >= 0.8 * len(known)


def test_any_batch_gives_the_captions_of_pictures_alone(served: Served) -> None:
    bodies = [picture(shapes, seed=i, side=40 + 17 * i) for i, shapes in enumerate(everything()[::40])]
    noise = np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8)
    bodies += [_png(Image.fromarray(noise)), _png(Image.new("RGB", (1, 1))), _png(Image.new("L", (3000, 2), 128))]
    alone = [served.ask([body])[0].value for body in bodies]
    for order in (range(len(bodies)), range(len(bodies) - 1, -1, -1)):
        assert [answer.value for answer in served.ask([bodies[i] for i in order])] == [alone[i] for i in order]


def test_a_list_of_one_picture_is_answered_by_a_list_of_one() -> None:
    from handlers.captioner import Captioner

    handler, caption = Captioner(), {"caption": "a red circle"}
    for body in (b'["AAAA"]', b'{"instances": ["AAAA"]}'):
        assert handler.respond(Request(body), [caption]) == ([caption], "application/json")
    for body in (b'"AAAA"', b"\x89"):
        assert handler.respond(Request(body), [caption]) == (caption, "application/json")
    assert handler.respond(Request(b'"AAAA"', Headers({"accept": "text/plain"})), [caption])[0] == "a red circle"


def test_one_bad_picture_costs_only_itself(served: Served) -> None:
    good = picture([("green", "square")], seed=0)
    for position in range(8):
        for bad, code in ((b"", 400), (b"no picture", 400), (good[: len(good) // 2], 400)):
            bodies = [good] * 8
            bodies[position] = bad
            answers = served.ask(bodies)
            assert [answer.code for answer in answers] == [code if i == position else 200 for i in range(8)]
            assert {answer.value["caption"] for answer in answers if answer.code == 200} == {"a green square"}


def test_pictures_become_the_processors_pixels(served: Served) -> None:
    from transformers import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil.from_pretrained(served.model_dir / "model")
    engine = served.handler.engine
    for shapes, side in (([("red", "circle")], 64), ([("blue", "square"), ("black", "triangle")], 256)):
        drawn = draw(shapes, side, 1)
        wanted = processor(images=drawn, return_tensors="np")["pixel_values"][0]  # [3, h, w]
        pixels = served.handler.decode(_png(drawn), {})[0].pixels  # [h, w, 3]
        ours = (pixels.transpose(2, 0, 1) - engine.mean.numpy()[0]) / engine.std.numpy()[0]
        assert np.abs(ours - wanted).max() < 0.02


def test_the_profile_chooses(captions: Path, served: Served) -> None:
    assert (served.handler.engine.name, served.handler.engine.precision) == ("transformers", "fp32")
    shared = Served.of(captions, {}, batch_size=4, profile="ei")
    assert shared.handler.engine.device == "cpu", "there is no GPU here"
    assert shared.ask([picture([("red", "circle")], seed=5)])[0].value == {"caption": "a red circle"}
    shutil.rmtree(shared.model_dir.parent)
    with pytest.raises(ValueError, match="onnxruntime"):
        Served.of(captions, {"engine": "onnxruntime"})


def test_bf16_is_served_only_where_it_keeps_the_captions(captions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Served.of(captions, {"precision": "bf16"}, batch_size=1)
    assert kept.handler.engine.precision == "bf16"
    shutil.rmtree(kept.model_dir.parent)
    monkeypatch.setattr(GitEngine, "__call__", lambda self, pictures: [[int(self.precision == "bf16")]] * len(pictures))
    with pytest.raises(ValueError, match="bf16 is refused here: it changes captions"):
        Served.of(captions, {"precision": "bf16"}, batch_size=1)


def test_weights_of_a_folder_are_served_like_the_trained_ones(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    made = Served.of(build("captions", tmp_path / "store", weights=str(served.model_dir / "model")), {})
    (answer,) = made.ask([picture([("red", "circle")], seed=5)])
    assert answer.value == {"caption": "a red circle"}
    assert "x-model-note" not in answer.headers
    shutil.rmtree(made.model_dir.parent)


def _png(drawn: Any) -> bytes:
    sink = io.BytesIO()
    drawn.save(sink, "png")
    return sink.getvalue()
