"""What was made with fewer engines, or with others, is completed by the next build and not made anew."""

from __future__ import annotations

import importlib.util
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.build import build
from slotwise.archive.make_script import installed_versions
from slotwise.errors import SlotwiseError
from slotwise.worker.engines import versions

pytestmark = pytest.mark.usefixtures("no_proofs")
pytest.importorskip("torch")
for package in ("onnxruntime", "openvino", "nncf"):
    pytest.importorskip(package)

MODEL = """
name = "small"
handler = "tensor_classifier"
labels = ["a", "b", "c"]
[input]
shape = [4, 4, 1]
dtype = "uint8"
[weights]
onnx = "net.onnx"
openvino_int8 = "int8.xml"
torchscript = "net.pt"
"""
MAKE = """
from pathlib import Path
import numpy as np
import torch
from slotwise.model_spec import load_spec
from slotwise.zoo.vision import PixelNetwork, export


def make(out, weights, progress):
    folder = Path(__file__).parent
    with (folder / "made.log").open("a") as log:
        log.write("made\\n")
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 3)
    pixels = np.random.default_rng(0).integers(0, 255, (16, 4, 4, 1), np.uint8)
    module = PixelNetwork(torch.nn.Sequential(*layers), [0.5], [0.25])
    return {"accuracy": 0.9, **export(load_spec(folder), module, pixels, out, progress, trained=True)}
"""
MEASURE = """
def make(out, weights, progress):
    (out / "net.bin").write_bytes(b"net")
    return {"accuracy": 0.9}


def measure(out, progress):
    assert (out / "net.bin").is_file()
    with open(__file__.replace("make.py", "measured.log"), "a") as log:
        log.write("measured\\n")
    return {"right": 7}
"""


class Machine:
    """What is installed here, as far as slotwise can tell."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.hidden: set[str] = set()
        self.others: dict[str, str] = {}
        find, version = importlib.util.find_spec, versions.version
        patch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in self.hidden else find(name, *more))
        patch.setattr(versions, "version", lambda name: self.others.get(name) or version(name))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    return Machine(monkeypatch)


def model(place: Path, make: str, description: str = MODEL) -> Path:
    place.mkdir()
    (place / "model.toml").write_text(description, "utf-8")
    (place / "make.py").write_text(make, "utf-8")
    return place


def measured(folder: Path, store: Path, **options: Any) -> dict[str, Any]:
    """What the report beside the archive says after a build."""
    report = build(folder, store, **options).with_name("small.report.json")
    return dict(json.loads(report.read_text("utf-8"))["measured"])


def test_engines_and_int8_that_were_not_there_are_completed(machine: Machine, tmp_path: Path) -> None:
    folder, store = model(tmp_path / "small", MAKE), tmp_path / "store"
    machine.hidden = {"openvino", "nncf"}
    first = measured(folder, store)
    assert {"torch-fp32", "onnxruntime-fp32"} <= set(first["engines"])
    assert not [engine for engine in first["engines"] if engine.startswith("openvino")]
    assert first["forms"] == {"torchscript": ["torch"], "onnx": ["onnxruntime"]}

    machine.hidden = set()
    second = measured(folder, store, int8=True)
    assert {"torch-fp32", "onnxruntime-fp32", "openvino-fp32", "openvino-int8"} <= set(second["engines"])
    assert all(verdict["passed"] for verdict in second["engines"].values())
    assert second["forms"] == {"torchscript": ["torch"], "onnx": ["onnxruntime", "openvino"], "openvino_int8": ["openvino"]}
    assert second["engines"]["torch-fp32"] == first["engines"]["torch-fp32"], "what was compared is not compared again"
    assert second["accuracy"] == 0.9
    assert (folder / "made.log").read_text() == "made\n"

    machine.hidden = {"openvino"}
    assert set(measured(folder, store)["engines"]) == set(first["engines"]), "no verdict about what is not installed"


def test_int8_that_was_completed_is_that_of_one_build(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path / "small", MAKE)
    machine.hidden = {"nncf"}
    build(folder, tmp_path / "store")
    machine.hidden = set()
    completed = build(folder, tmp_path / "store")
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "another"))
    at_once = build(folder, tmp_path / "other")
    with zipfile.ZipFile(completed) as one, zipfile.ZipFile(at_once) as other:
        assert "int8.bin" in one.namelist()
        assert one.namelist() == other.namelist()
        assert [name for name in one.namelist() if one.read(name) != other.read(name)] == []


def test_a_verdict_about_another_version_is_not_reported(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = model(tmp_path / "small", MAKE), tmp_path / "store"
    before = measured(folder, store)["engines"]
    for changed in ("torch", "openvino", "python"):
        machine.others[changed] = "9.9"
        if changed == "python":
            monkeypatch.setattr(versions.platform, "python_version", lambda: "9.9")
        after = measured(folder, store)["engines"]
        anew = {engine for engine in before if before[engine]["with"] != after[engine]["with"]}
        assert anew == {engine for engine in before if changed == "python" or engine.startswith(changed)}
        assert all(after[engine]["with"][changed] == "9.9" for engine in anew)
        before = after
    assert (folder / "made.log").read_text() == "made\n"


def test_what_does_not_hold_on_the_engines_of_today_is_made_anew(machine: Machine, tmp_path: Path) -> None:
    folder, store = model(tmp_path / "small", MAKE), tmp_path / "store"
    build(folder, store)
    (kept,) = (tmp_path / "home" / "cache" / "small").glob("*/measured.json")
    sound = (kept.parent / "net.onnx").read_bytes()
    (kept.parent / "net.onnx").write_bytes((kept.parent / "net.onnx").read_bytes()[:40])
    (kept.parent / "net.pt").write_bytes(b"what no torch of today can read")
    machine.others = {"torch": "9.9", "onnxruntime": "9.9", "openvino": "9.9"}
    (kept.parent / "int8.xml").write_text("what no OpenVINO of today can read")
    build(folder, store)
    assert (folder / "made.log").read_text() == "made\nmade\n"
    assert (kept.parent / "net.onnx").read_bytes() == sound


def test_what_a_script_measures_is_measured_again_by_other_versions(machine: Machine, tmp_path: Path) -> None:
    description = 'name = "small"\nhandler = "tensor_classifier"\nfiles = ["net.bin"]\n'
    folder, store = model(tmp_path / "small", MEASURE, description), tmp_path / "store"
    for _ in range(2):
        assert measured(folder, store) == {"accuracy": 0.9, "right": 7, "with": installed_versions()}
    machine.others = {"torch": "9.9"}
    assert measured(folder, store)["with"]["torch"] == "9.9"
    assert (folder / "measured.log").read_text() == "measured\nmeasured\n"


READS = """
from pathlib import Path


def make(out, weights, progress):
    here = Path(__file__).parent
    rows = [file.read_text() for file in sorted(here.rglob("*.csv")) + ([Path(weights)] if weights else [])]
    (out / "net.bin").write_text("".join(rows))
    with (here / "log.txt").open("a") as log:
        log.write("made")
    return {}
"""


@pytest.fixture
def reading(machine: Machine, tmp_path: Path) -> Path:
    """A model whose make.py copies every .csv of its folder, and leaves a log there."""
    folder = model(tmp_path / "small", READS, 'name = "small"\nhandler = "h.py"\nfiles = ["net.bin"]\n')
    (folder / "h.py").write_text("from slotwise.worker import BatchHandler\nhandle = BatchHandler\n")
    for name in ("rows.csv", "more/deep/rows.csv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("first")
    return folder


def kept_in(folder: Path, weights: Path | None = None) -> tuple[str, int]:
    """What a build takes of make.py, and how often that ran until now. Its archive is written into the folder, too."""
    archive = build(folder, folder / "model_store", None if weights is None else str(weights))
    with zipfile.ZipFile(archive) as source:
        return source.read("net.bin").decode(), (folder / "log.txt").read_text().count("made")


@pytest.mark.parametrize("name", ["rows.csv", "more/deep/rows.csv"])
def test_data_that_has_changed_is_read_again(reading: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert [kept_in(reading), kept_in(reading)] == [("firstfirst", 1)] * 2, "what it writes itself is no input"
    assert "what its make.py made earlier is taken" in " ".join(capsys.readouterr().err.split())
    before = (reading / name).stat()
    (reading / name).write_text("later")
    os.utime(reading / name, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert sorted([kept_in(reading)[0][:5], kept_in(reading)[0][5:]]) == ["first", "later"]
    assert kept_in(reading)[1] == 2
    (reading / "log.txt").write_text("made" * 5)  # a person's now
    assert kept_in(reading)[1] == 6


EDITS = """
import subprocess
from pathlib import Path


def make(out, weights, progress):
    here = Path(__file__).parent
    for name in ("data.csv", "labels.json"):  # what a person does meanwhile
        if (here.parent / f"new-{name}").exists():
            subprocess.run(["mv", here.parent / f"new-{name}", here / name], check=True)
    (out / "net.bin").write_text((here / "data.csv").read_text() + (here / "labels.json").read_text())
"""


def test_what_was_changed_while_it_was_read_is_not_kept(reading: Path, tmp_path: Path) -> None:
    (reading / "make.py").write_text(EDITS)
    (reading / "log.txt").touch()
    for name in ("data.csv", "labels.json"):
        (reading / name).write_text("1")
    (tmp_path / "new-data.csv").write_text("2")
    assert kept_in(reading)[0] == "21"
    (reading / "data.csv").write_text("1")
    assert kept_in(reading)[0] == "11"
    (tmp_path / "new-labels.json").write_text("3")
    (reading / "data.csv").write_text("4")
    with pytest.raises(SlotwiseError, match=r"labels\.json was changed while its make\.py ran"):  # the archive would name it
        kept_in(reading)
    assert kept_in(reading)[0] == "43"


def test_data_behind_a_link_counts(reading: Path, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a.csv").write_text("1")
    (reading / "link").symlink_to(tmp_path / "far")
    before = kept_in(reading)
    (tmp_path / "far" / "a.csv").write_text("2")
    assert kept_in(reading)[1] == before[1] + 1


def test_weights_of_the_same_size_and_time_are_others(reading: Path, tmp_path: Path) -> None:
    weights = tmp_path / "w.pt"
    weights.write_text("one")
    assert kept_in(reading, weights)[0].endswith("one")
    before = weights.stat()
    weights.write_text("two")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kept_in(reading, weights)[0].endswith("two")
