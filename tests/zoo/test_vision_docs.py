"""docs/vision.md and engines.md: commands run (training without the download), and what is said of limits and formats is so."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from slotwise import model_spec
from slotwise.worker import engines
from slotwise.worker.inputs import images
from slotwise.worker.tables import table_library
from tests.support.insects import draw
from tests.support.pages import Typed, typed

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "vision.md").read_text("utf-8")
COMMANDS = re.findall(r"^    (slotwise [^#\n]*)", PAGE, re.MULTILINE)


def run(command: str, tmp_path: Path, more: str = "") -> Typed:
    """Type the command in `tmp_path`/folder."""
    (folder := tmp_path / "folder").mkdir(exist_ok=True)
    return typed([f"{command} {more}"], folder, tmp_path / "output.txt", SLOTWISE_HOME=str(ROOT / ".slotwise"))


def test_the_digits_command_builds(tmp_path: Path) -> None:
    assert COMMANDS[0].strip() == "slotwise build digits"
    done = run(COMMANDS[0], tmp_path)
    assert done.code == 0, done.printed


def test_the_training_command_trains(tmp_path: Path) -> None:
    """In a folder of its own: a model of the current folder comes first."""
    shutil.copytree(
        ROOT / "models" / "ants_bees",
        tmp_path / "folder" / "models" / "ants_bees",
        ignore=shutil.ignore_patterns("*.pt", "*.npz"),
    )
    for i in range(8):
        folder = tmp_path / "folder" / "hymenoptera_data" / ("train" if i < 4 else "val") / ("bees" if i % 2 else "ants")
        draw(folder, "bee" if i % 2 else "ant", i)
    command = next(command for command in COMMANDS if " train " in command)
    done = run(command, tmp_path, "--epochs 1 --batch-size 4")
    assert done.code == 0, done.printed
    assert "validation accuracy" in done.printed[0]
    assert {"weights.pt", "training.json", "validation.npz"} <= {
        file.name for file in (tmp_path / "folder" / "models" / "ants_bees").iterdir()
    }


@pytest.mark.parametrize(
    "arguments", ["train digits --data .", "train ants_bees --data nowhere", "train ants_bees --data . --device tpu"]
)
def test_what_cannot_be_trained_is_one_line_and_a_hint(arguments: str, tmp_path: Path) -> None:
    done = run(f"slotwise {arguments}", tmp_path)
    assert done.code == 1
    assert [line.split(":")[0] for line in done.printed[0].strip().splitlines()] == ["error", "hint"]


def test_limits_formats_and_order_are_the_codes_own() -> None:
    assert f"over {images.MAX_PIXELS // 10**6} million pixels" in PAGE
    assert f"over {images.MAX_BYTES >> 20} MiB" in PAGE
    assert f"over {images.MAX_SCANS} scans" in PAGE
    assert f"over {images.MAX_SECONDS:g} s" in PAGE
    names = {"WEBP": "WebP"}
    assert all(names.get(name, name) in PAGE for name in images.FORMATS)
    engines_page = (ROOT / "docs" / "engines.md").read_text("utf-8")
    assert "openvino, onnxruntime, torch; on CUDA torch" in engines_page
    assert [engines.ORDER["cpu"], engines.ORDER["cuda"]] == [("openvino", "onnxruntime", "torch"), ("torch",)]
    forms = [name for name in model_spec.Weights.model_fields if name not in ("module", *table_library.ENGINES)]
    assert all(f"`{name}`" in engines_page for name in forms)
