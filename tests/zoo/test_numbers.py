"""models/numbers: every digit of a page is found where it is, in the order of reading, and read as what it is."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slotwise.archive.build import build
from slotwise.files import project
from slotwise.worker import Headers, StagePart
from tests.worker.serving import Served

pytest.importorskip("sklearn")
FOLDER = project.model_folder("numbers")
EXAMPLES = FOLDER / "examples"
DIGITS = json.loads((EXAMPLES / "digits.json").read_text())


def script(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"numbers_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


find, draw = script(FOLDER / "find" / "find.py"), script(FOLDER / "draw.py")


def found(picture: Any) -> list[tuple[int, int, int, int]]:
    return list(find.boxes(find.ink_of(picture)))


@pytest.mark.parametrize("light", [False, True])
def test_each_digit_has_one_box_at_its_place(light: bool) -> None:
    step = draw.SIDE + draw.GAP
    lines = ["0123456789", "987", "5"]
    for seed in range(12):
        boxes = found(draw.page(lines, seed, light=light))
        places = [(row, column) for row, line in enumerate(lines) for column in range(len(line))]
        assert [(int((box[1] + box[3]) / 2 // step), int((box[0] + box[2]) / 2 // step)) for box in boxes] == places


def test_the_examples_are_what_the_script_draws(tmp_path: Path) -> None:
    draw.write_examples(tmp_path)
    for name in [*DIGITS, "digits.json"]:
        if name.endswith(".png"):
            assert np.array_equal(*(np.asarray(Image.open(place / name)) for place in (tmp_path, EXAMPLES)))
        else:
            assert (tmp_path / name).read_text() == (EXAMPLES / name).read_text()


def test_specks_empty_paper_and_a_single_pixel() -> None:
    paper = np.full((60, 60), 250, np.uint8)
    assert found(paper) == []
    paper[30:32, 30:32] = 0
    assert found(paper) == []
    paper[10:30, 10:20] = 0
    assert found(paper) == [(10, 10, 20, 30)]
    assert found(np.zeros((1, 1), np.uint8)) == []


def test_a_part_is_a_picture_with_its_box() -> None:
    handler = find.Find()
    body = (EXAMPLES / "year.png").read_bytes()
    (item,) = handler.decode(body, Headers({}))
    (output,) = handler.load(None, None)([item])
    parts = handler.encode(output, item)
    assert [type(part) for part in parts] == [StagePart] * 4
    assert [one.about["box"] for one in parts] == [list(box) for box in output]
    assert all(Image.open(io.BytesIO(part.body)).format == "PNG" for part in parts)


@pytest.mark.slow
@pytest.mark.long  # digits are trained for it
def test_the_examples_are_read(tmp_path: Path) -> None:
    """One in eight is no picture, and costs nobody else anything."""
    served = Served.of(build("numbers", tmp_path, prove=lambda *_: None), {})
    names = [list(DIGITS)[i % len(DIGITS)] for i in range(8)]
    bodies = [b"no picture" if i == 5 else (EXAMPLES / name).read_bytes() for i, name in enumerate(names)]
    for i, (name, answer) in enumerate(zip(names, served.ask(bodies), strict=True)):
        if i == 5:
            assert 400 <= answer.code < 500
        else:
            assert "".join(one["answer"]["label"] for one in answer.value) == DIGITS[name]
