"""A model of several: each stage is built, carried and served in one archive, or refused with what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from slotwise.archive import packaging
from slotwise.archive.build import build
from slotwise.archive.input_digests import changed_input, input_digests
from slotwise.archive.inspection import inspect
from slotwise.errors import SlotwiseError
from slotwise.model_spec import ModelSpec, load_spec
from tests.worker.serving import Served

pytestmark = pytest.mark.usefixtures("own_home", "no_proofs")

SPLIT = """
from slotwise.worker import BadRequest, BatchHandler, StagePart


class Split(BatchHandler):
    def load(self, model_dir, settings):
        return list

    def decode(self, body, headers):
        if b"!" in body:
            raise BadRequest("no exclamation")
        return [body]

    def collate(self, items):
        return items

    def encode(self, output, item):
        return [StagePart(word, {"place": i}, "text/plain") for i, word in enumerate(output.split())]


handle = Split.entry_point()
"""
DOUBLE = """
import numpy
import factor
from slotwise.worker import BatchHandler


class Double(BatchHandler):
    def load(self, model_dir, settings):
        return lambda rows: rows * factor.FACTOR

    def decode(self, body, headers):
        return [numpy.float64(body)]


handle = Double.entry_point()
"""
STAGES = '[[stages]]\nname = "split"\nmodel = "split"\n[[stages]]\nname = "double"\nmodel = "../double"\n'


@pytest.fixture(autouse=True)
def _one_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "factor", raising=False)  # a worker's process has one archive


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """words/, with the stage split below it and double beside it."""
    model(tmp_path / "words", "stages", STAGES)
    model(tmp_path / "words" / "split", "split.py")
    model(tmp_path / "double", "double.py", 'files = ["factor.py"]')
    (tmp_path / "words" / "split" / "split.py").write_text(SPLIT)
    (tmp_path / "double" / "double.py").write_text(DOUBLE)
    (tmp_path / "double" / "factor.py").write_text("FACTOR = 2\n")
    return tmp_path / "words"


def model(folder: Path, handler: str, more: str = "") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "model.toml").write_text(f'name = "{folder.name}"\nhandler = "{handler}"\n{more}\n')


def refusal(folder: Path) -> str:
    with pytest.raises(SlotwiseError) as raised:
        build(folder, folder / "store")
    return raised.value.message


def test_one_archive_answers_with_both(both: Path) -> None:
    served = Served.of(build(both, both / "store"), {})
    answers = served.ask([f"{i} {i + 1}".encode() if i % 8 != 5 else b"1 x! 2" for i in range(16)] + [b"1 x 2", b""])
    for i, answer in enumerate(answers[:16]):
        if i % 8 == 5:
            assert (answer.code, answer.value["error"]["message"]) == (400, "no exclamation")
        else:
            assert answer.value == [{"place": 0, "answer": 2.0 * i}, {"place": 1, "answer": 2.0 * i + 2}]
    first, wrong, last = answers[16].value
    assert (first["answer"], wrong["place"], wrong["error"]["code"], last["answer"]) == (2.0, 1, 400, 4.0)
    assert answers[17].value == []


def test_a_changed_stage_is_a_changed_model(both: Path) -> None:
    spec = load_spec(both)
    before = input_digests(both, spec)
    assert changed_input(before, both, spec) == ""
    (both.parent / "double" / "factor.py").write_text("FACTOR = 3\n")
    assert changed_input(before, both, spec) == "stages/double/factor.py"
    assert Served.of(build(both, both / "store"), {}).ask([b"5"])[0].value == [{"place": 0, "answer": 15.0}]


def test_two_builds_at_once_share_no_folder(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, other = packaging._run_archiver, both.parent / "other"
    model(other, "stages", STAGES.replace('"split"\nmodel = "split"', '"first"\nmodel = "../words/split"'))
    (other / "model.toml").write_text((other / "model.toml").read_text().replace('"other"', '"words"'))

    def meanwhile(spec: ModelSpec, handler: Path, work: Path) -> Path:
        if spec.name == "words":
            monkeypatch.setattr(packaging, "_run_archiver", real)
            build(other, other / "store")
        return real(spec, handler, work)

    monkeypatch.setattr(packaging, "_run_archiver", meanwhile)
    archive = build(both, both / "store")
    stages = {entry.name.split("/")[1] for entry in inspect(archive).entries if entry.name.startswith("stages/")}
    assert stages == {"split", "double"}


def test_a_file_that_goes_before_it_is_packed_is_missed(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, factor = packaging._run_archiver, both.parent / "double" / "factor.py"

    def meanwhile(spec: ModelSpec, handler: Path, work: Path) -> Path:
        factor.unlink()
        return real(spec, handler, work)

    monkeypatch.setattr(packaging, "_run_archiver", meanwhile)
    assert refusal(both.parent / "double") == "model double: factor.py was gone when it was packed"


def test_what_is_no_model_of_several(both: Path) -> None:
    model(both, "stages")
    assert "belong together" in refusal(both)
    model(both, "split.py", STAGES)
    assert "belong together" in refusal(both)
    model(both, "stages", STAGES[: STAGES.index("[[stages]]", 5)])
    assert "two or more" in refusal(both)
    model(both, "stages", STAGES.replace('"double"', '"split"'))
    assert "of different names" in refusal(both)
    model(both, "stages", STAGES.replace("../double", "nowhere"))
    assert refusal(both) == "there is no model 'nowhere'"
    model(both, "stages", STAGES)
    (both / "split" / "factor.py").write_text("FACTOR = 7\n")
    model(both / "split", "split.py", 'files = ["factor.py"]')
    assert refusal(both) == "words: the stages split and double both bring factor"
    (both / "split" / "factor.py").unlink()
    for folder in (both / "split" / "factor", both / "split" / "factor" / "tables"):
        folder.mkdir()
    (both / "split" / "factor" / "tables" / "half.py").write_text("FACTOR = 0.5\n")  # a package without __init__.py
    model(both / "split", "split.py", 'files = ["factor"]')
    assert refusal(both) == "words: the stages split and double both bring factor"
    model(both / "split", "split.py")
    model(both.parent / "outer", "stages", STAGES.replace('"split"\nmodel = "split"', '"a"\nmodel = "../words"'))
    assert refusal(both.parent / "outer") == "outer: the stage a has stages of its own"
    model(both.parent / "round", "stages", STAGES.replace('"split"\nmodel = "split"', '"a"\nmodel = "../round"'))
    assert refusal(both.parent / "round") == "round: the stage a has stages of its own"
    assert json.loads(json.dumps(load_spec(both).model_dump()))["stages"][0] == {"name": "split", "model": "split"}
