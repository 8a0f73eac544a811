"""EfficientNet-Lite0: the published network and weights, and an archive that knows a cat on every engine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from slotwise.archive.build import build
from slotwise.archive.input_digests import changed_input
from slotwise.archive.inspection import inspect
from slotwise.archive.make_script import without_int8, without_missing_int8
from slotwise.errors import SlotwiseError
from slotwise.model_spec import load_spec
from slotwise.worker.engines.processor import has_int8
from slotwise.zoo import efficientnet
from slotwise.zoo.networks import network
from tests.worker.serving import Served

FOLDER = Path(__file__).parents[2] / "models" / "efficientnet"
CATS = {"tabby", "tiger cat", "Egyptian cat"}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's archive."""
    return build("efficientnet", tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("size", [224])
def test_the_network_is_the_published_one(size: int) -> None:
    published = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
    published.load_state_dict(efficientnet.pretrained())
    ours, pictures = network(efficientnet.NAME, 1000, "imagenet"), torch.rand(2, 3, size, size) * 2 - 1
    with torch.inference_mode():
        torch.testing.assert_close(ours(pictures), published.eval()(pictures))


def test_weights_that_are_not_the_published_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / efficientnet.PACKAGE
    shutil.copytree(efficientnet.weights_file().parents[1], package)
    with (package / efficientnet.FILE).open("r+b") as file:
        file.seek(1000)
        file.write(b"changed")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SlotwiseError, match="not the published one"):
        efficientnet.pretrained()


@pytest.mark.parametrize(
    ("engine", "precision"), [("torch", "fp32"), ("onnxruntime", "fp32"), ("openvino", "fp32"), ("openvino", "int8")]
)
def test_photos_get_their_labels_on_every_engine(archive: Path, engine: str, precision: str) -> None:
    served = Served.of(archive, {"engine": engine, "precision": precision}, batch_size=4)
    photos = ("chelsea.png", "coffee.jpg", "rocket.jpg")
    cat, coffee, rocket = served.ask([(FOLDER / "examples" / name).read_bytes() for name in photos])
    assert cat.value["label"] in CATS
    assert len(cat.value["probabilities"]) == 5
    assert coffee.value["label"] == "espresso"
    if precision == "int8" and not has_int8():
        pytest.skip("this processor has no VNNI: sums of int8 saturate, and the rocket may be something else")
    assert rocket.value["label"] in ("missile", "projectile", "space shuttle")


def test_the_archive_says_whose_weights_and_photos_it_carries(archive: Path) -> None:
    with zipfile.ZipFile(archive) as source:
        notice = source.read("NOTICE.txt").decode()
    assert efficientnet.SHA256 in notice
    assert "License: UNKNOWN" in notice
    assert "Apache Software License 2.0" in notice
    names = [file.stem for folder in ("examples", "calibration") for file in (FOLDER / folder).iterdir()]
    assert all(f"    {name} " in notice for name in names)


def test_an_archive_that_was_built_without_nncf_is_not_outdated(archive: Path) -> None:
    info = inspect(archive)
    assert changed_input(info.inputs, FOLDER, load_spec(FOLDER)) == ""


def test_int8_is_left_out_only_where_nothing_could_write_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load_spec(FOLDER)
    assert without_missing_int8(spec, [tmp_path]) == spec  # nncf is here: its absence is an error of make.py
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert without_missing_int8(spec, [tmp_path]) == without_int8(spec)
    (tmp_path / "int8.xml").touch()
    assert without_missing_int8(spec, [tmp_path]) == spec


def test_int8_is_one_word(tmp_path: Path) -> None:
    """It prints how far int8 agrees with fp32, and the archive serves in int8 with no setting."""
    command = [sys.executable, "-m", "slotwise.cli", "build", "efficientnet", "--int8", "--json", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    built = json.loads(done.stdout)
    assert built["int8"]["pictures"] >= 64
    assert built["int8"]["sure_same_label"] >= 0.97
    info = inspect(Path(built["archive"]))
    assert {(each["engine"], each["precision"]) for each in info.profiles.values() if each["device"] == "cpu"} == {
        ("openvino", "int8")
    }
    assert changed_input(info.inputs, FOLDER, load_spec(FOLDER)) == ""
    served = Served.of(info.path, {}, batch_size=2)
    assert served.handler.engine.precision == "int8"
    assert served.ask([(FOLDER / "examples" / "chelsea.png").read_bytes()])[0].value["label"] in CATS
