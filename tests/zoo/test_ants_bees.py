"""`slotwise train ants_bees` from EfficientNet-Lite0, on a stand-in of real cuts: what it learns, and what folders it takes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from slotwise import console
from slotwise.errors import SlotwiseError
from slotwise.model_spec import load_spec
from slotwise.zoo import efficientnet, training
from slotwise.zoo.image_folder import LabelledPictures, _class_folders
from slotwise.zoo.start import start_of

MODELS = Path(__file__).parents[2] / "models"
SPEC = load_spec(MODELS / "ants_bees")
PHOTOS = {"ants": ("gravel", "brick"), "bees": ("flower", "temple")}  # of models/efficientnet/calibration


def cut(label: str, number: int) -> Image.Image:
    """A real cut, 120x120; every number another one."""
    name = PHOTOS[label][number % 2]
    with Image.open(MODELS / "efficientnet" / "calibration" / f"{name}.jpg") as photo:
        random = np.random.default_rng(number)
        left, top = (int(random.integers(side - 120)) for side in photo.size)
        return photo.crop((left, top, left + 120, top + 120))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 cuts to train on and 12 to validate on, as JPEG."""
    folder = tmp_path_factory.mktemp("hymenoptera_data")
    for part, numbers in (("train", range(12)), ("val", range(12, 18))):
        for label in PHOTOS:
            (folder / part / label).mkdir(parents=True)
            for number in numbers:
                cut(label, number).save(folder / part / label / f"{number}.jpg")
    return folder


def learn(data: Path, out: Path, **plan: object) -> training.TrainingResult:
    """Train into `out`."""
    with console.progress() as bar:
        return training.train(SPEC, data, out, training.TrainingPlan(device="cpu", **plan), bar)  # type: ignore[arg-type]


def test_the_last_layer_is_enough_and_every_training_gives_the_same_weights(data: Path, tmp_path: Path) -> None:
    results = [learn(data, tmp_path / name, epochs=0) for name in ("first", "second")]
    assert [result.network for result in results] == [efficientnet.NAME] * 2
    assert results[0].accuracy == results[0].frozen_accuracy >= 0.9
    assert results[0].best_epoch == results[0].epochs == 0
    first, second = (torch.load(tmp_path / name / "weights.pt", weights_only=True) for name in ("first", "second"))
    assert all(torch.equal(first[key], second[key]) for key in first)
    published = efficientnet.pretrained()
    assert all(torch.equal(first[key], published[key]) for key in published if not key.startswith("_fc"))


def test_the_whole_network_is_kept_only_where_it_does_better(data: Path, tmp_path: Path) -> None:
    result = learn(data, tmp_path, epochs=1, learning_rate=10.0)  # ruins it
    assert result.epochs == 1
    assert result.best_epoch == 0
    assert result.accuracy == result.frozen_accuracy
    assert sum(map(sum, result.confusion)) == result.validation_pictures == 12


def test_where_training_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_of(SPEC, None).network == start_of(SPEC, "none").network == efficientnet.NAME
    assert start_of(SPEC, str(efficientnet.weights_file())).network == efficientnet.NAME
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "resnet.pt")
    assert start_of(SPEC, "imagenet").network == start_of(SPEC, str(tmp_path / "resnet.pt")).network == "resnet18"
    assert start_of(SPEC, "imagenet").mean != start_of(SPEC, None).mean
    monkeypatch.setattr(efficientnet, "PACKAGE", "a_package_that_is_not_installed")
    assert (start_of(SPEC, None).network, start_of(SPEC, None).weights) == ("resnet18", "imagenet")


def large(folder: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (900, 900, 3), np.uint8)
    Image.fromarray(noise).save(folder / "ants" / "large.png")
    assert (folder / "ants" / "large.png").stat().st_size > 2_000_000


def nested(folder: Path) -> None:
    (folder / "ants" / "red" / "small").mkdir(parents=True)
    cut("ants", 0).save(folder / "ants" / "red" / "small" / "0.jpg")


def linked(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    cut("ants", 0).save(folder / "elsewhere" / "0.jpg")
    (folder / "elsewhere").rename(folder.parent / "elsewhere")
    (folder / "ants" / "more").symlink_to(folder.parent / "elsewhere")
    (folder / "ants" / "round").symlink_to(folder / "ants")  # a circle ends


def broken(folder: Path) -> None:
    whole = (folder / "ants" / "0.jpg").read_bytes()
    (folder / "ants" / "cut.jpg").write_bytes(whole[:500])
    (folder / "ants" / "gone.jpg").symlink_to(folder / "nowhere.jpg")
    (folder / "ants" / "notes.txt").write_text("not a picture")


@pytest.mark.parametrize(
    ("change", "more", "left_out"),
    [
        (lambda folder: cut("ants", 0).save(folder / "ants" / "0.gif"), 1, []),
        (large, 1, []),
        (nested, 1, []),
        (linked, 1, []),
        (
            broken,
            0,
            ["cut.jpg: the picture is truncated or damaged", "gone.jpg: No such file", "notes.txt: the body is not a pict"],
        ),
    ],
    ids=["a GIF", "2 MB", "nested", "linked", "broken"],
)
def test_what_lies_in_a_folder(
    change: Callable[[Path], object], more: int, left_out: list[str], data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "train"
    shutil.copytree(data / "train", folder)
    change(folder)
    found = LabelledPictures.find(folder, SPEC.labels)
    assert len(found) == 24 + more
    assert len(found.left_out) == len(left_out)
    assert all(expected in line for expected, line in zip(left_out, found.left_out, strict=True))
    assert all("\n" not in line for line in found.left_out)


def test_a_folder_is_of_one_label(tmp_path: Path) -> None:
    for name in ("news", "old"):
        (tmp_path / "train" / name).mkdir(parents=True)
    with pytest.raises(SlotwiseError, match=r"lacks a folder for the label new$") as error:
        _class_folders(tmp_path / "train", ["new", "news", "old"])
    assert "train/new, train/newss, train/olds" in error.value.hint


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        (lambda folder: shutil.rmtree(folder / "train" / "bees"), "lacks a folder for the label bee", "train/ants, train/bees"),
        (lambda folder: [file.unlink() for file in (folder / "train" / "ants").iterdir()], "no pictures in", "JPEG or PNG"),
        (lambda folder: shutil.rmtree(folder / "train"), "there is no folder", "train/ants"),
        (lambda folder: (folder / "train" / "wasps").mkdir(), "wasps is no label of the model", "train/bees"),
        (lambda folder: shutil.move(folder, folder.parent / "deeper" / "data"), "there is no folder", "deeper"),
    ],
    ids=["one class", "empty", "no train", "a class too many", "a folder deeper"],
)
def test_folders_that_cannot_be_learnt_from(
    change: Callable[[Path], object], message: str, hint: str, data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    change(folder)
    asked = folder if folder.exists() else tmp_path / "data"
    if not folder.exists():
        (tmp_path / "deeper" / "data").rename(tmp_path / "deeper" / "hymenoptera_data")
        asked = tmp_path / "deeper"
    with pytest.raises(SlotwiseError, match=message) as error:
        learn(asked, tmp_path / "out", epochs=0)
    assert hint in error.value.hint
    assert "\n" not in error.value.message + error.value.hint
