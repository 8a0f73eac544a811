"""`slotwise train`: from a folder of pictures to served answers, without any download."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.progress import Progress

from slotwise import console
from slotwise.archive.build import build
from slotwise.check.conformance import check
from slotwise.errors import SlotwiseError
from slotwise.model_spec import ModelSpec, load_spec
from slotwise.worker.inputs.images import Recipe
from slotwise.zoo import checkpoint, trained, training
from slotwise.zoo.image_folder import LabelledPictures
from slotwise.zoo.networks import network
from slotwise.zoo.start import start_of
from tests.support.insects import draw
from tests.worker.serving import Served

PLAN = training.TrainingPlan(weights="none", epochs=10, batch_size=6, learning_rate=0.01, patience=10, device="cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder with 24 pictures to train on, 12 to validate on and two files that are none."""
    folder = tmp_path_factory.mktemp("data")
    for i in range(36):
        draw(folder / ("train" if i < 24 else "val") / ("bees" if i % 2 else "ants"), "bee" if i % 2 else "ant", i)
    (folder / "train" / "ants" / "Thumbs.db").write_bytes(b"not a picture")
    (folder / "val" / "bees" / "cut.jpg").write_bytes((folder / "val" / "bees" / "35.png").read_bytes()[:60])
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """models/ants_bees with smaller pictures, as a user's own folder."""
    folder = tmp_path_factory.mktemp("own") / "ants_bees"
    folder.mkdir()
    given = Path(__file__).parents[2] / "models" / "ants_bees"
    text = (given / "model.toml").read_text("utf-8")
    text = text.replace("[3, 224, 224]", "[3, 48, 48]").replace("resize = 256", "resize = 56")
    text = text.replace('network = "efficientnet_lite0"', 'network = "resnet18"')
    (folder / "model.toml").write_text(text.replace('openvino_int8 = "int8.xml"\n', ""), "utf-8")
    (folder / "make.py").write_text((given / "make.py").read_text("utf-8"), "utf-8")
    return folder


@pytest.fixture(scope="module")
def outcome(model: Path, data: Path) -> training.TrainingResult:
    """The training, once."""
    with console.progress() as progress:
        return training.train(load_spec(model), data, model, PLAN, progress)


@pytest.fixture(scope="module")
def built(model: Path, outcome: training.TrainingResult, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The archive of the trained model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTWISE_HOME", str(tmp_path_factory.mktemp("home")))
        yield build(model, tmp_path_factory.mktemp("store"))


def test_training_learns_counts_and_reports(outcome: training.TrainingResult, model: Path) -> None:
    assert outcome.accuracy >= 0.9
    assert (outcome.train_pictures, outcome.validation_pictures, len(outcome.left_out)) == (24, 12, 2)
    assert sum(map(sum, outcome.confusion)) == 12
    assert 1 <= outcome.best_epoch <= outcome.epochs <= PLAN.epochs
    assert json.loads((model / "training.json").read_text("utf-8"))["accuracy"] == outcome.accuracy


@pytest.mark.parametrize("engine", ["torch", "onnxruntime", "openvino"])
def test_served_answers_are_the_training_sides(built: Path, model: Path, data: Path, engine: str) -> None:
    spec = load_spec(model)
    module, recipe = start_of(spec, str(model / "weights.pt")).module(2), Recipe.of(spec.input.model_dump())
    files = [file for file in sorted((data / "val").rglob("*")) if file.is_file() and file.name != "cut.jpg"]
    served = Served.of(built, {"engine": engine, "precision": "fp32"}, batch_size=8)
    answers = [answer for i in range(0, 12, 6) for answer in served.ask([file.read_bytes() for file in files[i : i + 6]])]
    for file, answer in zip(files, answers, strict=True):
        with torch.inference_mode():
            wanted = module(torch.from_numpy(np.array(recipe(file.read_bytes())[None]))).softmax(1)[0].numpy()
        assert answer.value["label"] == spec.labels[int(wanted.argmax())]
        assert [answer.value["probabilities"][label] for label in spec.labels] == pytest.approx(wanted.tolist(), abs=2e-3)


def test_the_bare_label_as_text(built: Path, data: Path) -> None:
    served = Served.of(built, {}, batch_size=2)
    body = next((data / "val" / "ants").glob("*")).read_bytes()
    answer = served.ask([body], [{"Accept": "text/plain"}])[0]
    assert answer.body in (b"ant", b"bee")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.body.decode() == served.ask([body])[0].value["label"]


def test_the_trained_archive_keeps_its_promises(built: Path) -> None:
    report = check(built, batch_size=4)
    assert report.passed, report


def test_other_preprocessing_than_in_training_is_refused(model: Path, outcome: training.TrainingResult, tmp_path: Path) -> None:
    text = (model / "model.toml").read_text("utf-8")
    try:
        (model / "model.toml").write_text(text.replace("resize = 56", "resize = 64"), "utf-8")
        with pytest.raises(SlotwiseError, match="another resize"), console.progress() as progress:
            trained.make(model, tmp_path, None, progress)
    finally:
        (model / "model.toml").write_text(text, "utf-8")


def test_what_a_training_keeps_belongs_together(
    model: Path, outcome: training.TrainingResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk leaves all three files as they were; weights that are exchanged have no figures."""
    picture = tmp_path / "picture"
    picture.write_bytes(b"")
    kept = tmp_path / "kept"
    run: Any = SimpleNamespace(
        folder=kept,
        recipe=lambda body: np.zeros((2, 2, 3), np.uint8),
        validation=SimpleNamespace(spread=lambda count: [picture]),
        best={"w": torch.tensor(1.0)},
        result=outcome,
    )

    def files() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in kept.iterdir()}

    training._Run.keep(run)
    before, run.best = files(), {"w": torch.tensor(2.0)}
    monkeypatch.setattr(training, "asdict", full)
    with pytest.raises(OSError, match="No space"):
        training._Run.keep(run)
    assert files() == before
    monkeypatch.undo()
    text = (model / "weights.pt").read_bytes()
    try:
        training.checkpoint.write(model / "weights.pt", torch.load(kept / "weights.pt"))
        with pytest.raises(SlotwiseError, match="is about other weights"):
            trained._check_training(model, load_spec(model), start_of(load_spec(model), "none"))
    finally:
        (model / "weights.pt").write_bytes(text)


def full(_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_best_epoch_is_kept_and_training_stops_early(model: Path, data: Path, tmp_path: Path) -> None:
    plan = training.TrainingPlan(weights="none", epochs=9, batch_size=8, learning_rate=1e-12, patience=1, device="cpu")
    with console.progress() as progress:
        outcome = training.train(load_spec(model), data, tmp_path / "out", plan, progress)
    assert outcome.epochs < 9


def test_a_stopped_training_goes_on_as_if_nothing_had_been(model: Path, data: Path, tmp_path: Path) -> None:
    plan, spec = replace(PLAN, epochs=3), load_spec(model)
    with console.progress() as shown:
        whole = training.train(spec, data, tmp_path / "whole", plan, shown)
    folder = tmp_path / "stopped"

    class Stop(Exception):
        """A stand-in for Ctrl-C: it comes with the last word about the second epoch."""

    class StoppingProgress(Progress):
        def update(self, *args: Any, description: str = "", **fields: Any) -> None:
            if description.startswith("epoch 2"):
                raise Stop

    with pytest.raises(Stop):
        training.train(spec, data, folder, plan, StoppingProgress(disable=True))
    facts = json.loads((folder / "training.json").read_text())  # the best epoch was kept at once
    assert (facts["epochs"], facts["best_epoch"]) in ((1, 1), (2, 2))
    assert torch.load(folder / "weights.pt", weights_only=True)
    with console.progress() as shown, pytest.raises(SlotwiseError, match="was started with --epochs 3"):
        training.train(spec, data, folder, replace(plan, epochs=4), shown, resume=True)
    with console.progress() as shown:
        rest = training.train(spec, data, folder, plan, shown, resume=True)
    assert replace(rest, seconds=0) == replace(whole, seconds=0)
    for key, tensor in torch.load(folder / "weights.pt").items():
        assert torch.equal(tensor, torch.load(tmp_path / "whole" / "weights.pt")[key]), key
    assert not (folder / "training.resume").exists()
    with console.progress() as shown, pytest.raises(SlotwiseError, match="holds no training that was stopped"):
        training.train(spec, data, folder, plan, shown, resume=True)


def test_a_stopped_training_without_weights_is_not_told_to_give_some(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    checkpoint.save(tmp_path, {"plan": {"weights": None}, "result": {}}, random, {})
    with pytest.raises(SlotwiseError, match="was started without --weights") as raised:
        checkpoint.load(tmp_path, {"weights": "w.pt"}, {}, random)
    assert raised.value.hint == "leave that out, or --resume to start over"


@pytest.mark.parametrize("other", ["labels", "network", "input", "data"])
def test_a_training_of_something_else_does_not_go_on(other: str, model: Path, data: Path, tmp_path: Path) -> None:
    plan, spec, folder = replace(PLAN, epochs=2, patience=1), load_spec(model), tmp_path / "stopped"

    def stopped(*_: Any) -> float:
        raise KeyboardInterrupt

    look = training._Run._look
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training._Run, "_look", lambda run, epoch: look(run, epoch) if epoch < 2 else stopped())
        with pytest.raises(KeyboardInterrupt):
            training.train(spec, data, folder, plan, Progress(disable=True))
    if other == "data":
        data = Path(shutil.copytree(data, tmp_path / "data"))
        ant = min((data / "train" / "ants").glob("[0-9]*"))
        ant.rename(data / "train" / "bees" / ant.name)
    changed = {
        "labels": {"labels": spec.labels[::-1]},
        "network": {"options": {**spec.options, "network": "resnet34"}},
        "input": {"input": spec.input.model_copy(update={"interpolation": "nearest"})},
    }
    before = (folder / "training.json").read_bytes()
    with pytest.raises(SlotwiseError, match=f"was started with other {other}"):
        training.train(spec.model_copy(update=changed.get(other, {})), data, folder, plan, Progress(disable=True), resume=True)
    assert (folder / "training.json").read_bytes() == before


def test_what_would_not_be_served_is_nothing_to_learn_from(data: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(data / "train", tmp_path / "train"))
    Image.new("RGB", (400, 300)).save(folder / "ants" / "large.png")
    os.mkfifo(folder / "bees" / "pipe.png")
    recipe = Recipe.of({"shape": [3, 48, 48], "max_pixels": 100_000})
    found = LabelledPictures.find(folder, ["ant", "bee"], recipe)
    assert len(found) == 24
    reasons = {line.split("/")[-1].split(": ")[0]: line for line in found.left_out}
    assert set(reasons) == {"Thumbs.db", "large.png", "pipe.png"}
    assert reasons["pipe.png"].endswith("no regular file")


@pytest.mark.parametrize(
    ("described", "plan", "message"),
    [
        ({}, {"epochs": 0}, "the last layer alone is not trained without weights"),
        ({}, {"epochs": 1, "learning_rate": 1e12}, "answers with what is no number"),
        ({"labels": []}, {}, "has no labels"),
        ({"input": {"shape": []}}, {}, "does not say what its network takes"),
        ({"input": {"mean": []}}, {}, "does not say what its network takes"),
    ],
)
def test_a_training_of_nothing_is_one_line_and_leaves_what_was_there(
    described: dict[str, Any], plan: dict[str, Any], message: str, model: Path, data: Path, tmp_path: Path
) -> None:
    spec, before = load_spec(model), tmp_path / "weights.pt"
    before.write_bytes(b"of an earlier training")
    other = {**described, **({"input": spec.input.model_copy(update=described["input"])} if "input" in described else {})}
    with console.progress() as shown, pytest.raises(SlotwiseError, match=message):
        training.train(spec.model_copy(update=other), data, tmp_path, replace(PLAN, **plan), shown)
    assert before.read_bytes() == b"of an earlier training"


def test_a_folder_that_cannot_be_written_is_known_before_the_training(model: Path, data: Path) -> None:
    with console.progress() as shown, pytest.raises(SlotwiseError, match=r"^/proc/mine cannot be written: "):
        training.train(load_spec(model), data, Path("/proc/mine"), PLAN, shown)


def test_pretrained_weights_start_with_a_new_last_layer(tmp_path: Path) -> None:
    whole = network("resnet18", 10, "none")
    torch.save({"state_dict": whole.state_dict()}, tmp_path / "ten.pt")
    made = network("resnet18", 2, str(tmp_path / "ten.pt"), pretraining=True)
    assert torch.equal(made.conv1.weight, whole.conv1.weight)
    assert made.fc.weight.shape == (2, 512)
    with pytest.raises(SlotwiseError, match="do not fit"):
        network("resnet18", 2, str(tmp_path / "ten.pt"))


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda folder: (folder / "train" / "ants").rename(folder / "train" / "spiders"), "no label"),
        (lambda folder: [file.unlink() for file in (folder / "val" / "bees").iterdir()], "no pictures"),
        (lambda folder: [file.unlink() for file in (folder / "val").rglob("*.*")] and None, "no pictures"),
    ],
)
def test_data_that_do_not_fit_are_one_clear_error(break_it: object, said: str, model: Path, tmp_path: Path) -> None:
    for i in range(4):
        draw(tmp_path / ("train" if i < 2 else "val") / ("bees" if i % 2 else "ants"), "bee", i)
    break_it(tmp_path)  # type: ignore[operator]
    with pytest.raises(SlotwiseError, match=said), console.progress() as progress:
        training.train(load_spec(model), tmp_path, tmp_path / "out", PLAN, progress)


def test_weights_that_are_none_are_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "junk.pt").write_bytes(b"junk")
    with pytest.raises(SlotwiseError, match="no checkpoint"):
        network("resnet18", 2, str(tmp_path / "junk.pt"))
    with pytest.raises(SlotwiseError, match="no weights file"):
        network("resnet18", 2, str(tmp_path / "absent.pt"))
    with pytest.raises(SlotwiseError, match="no network"):
        network("resnet19", 2, "none")


def test_an_untrained_model_must_be_asked_for(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "models" / "ants_bees"
    spec: ModelSpec = load_spec(folder)
    assert list(spec.labels) == ["ant", "bee"]
    (tmp_path / "model.toml").write_text((folder / "model.toml").read_text("utf-8"), "utf-8")
    with pytest.raises(SlotwiseError, match="not trained yet"), console.progress() as progress:
        trained.make(tmp_path, tmp_path / "out", None, progress)
