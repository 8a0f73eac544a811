"""A stranger's handler is started as its server starts it, faults included; whole archives are in test_guarded.py."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from slotwise.worker.guard import foreign_handler as theirs
from tests.worker.strangers import ask, context, guard

ONE = """
class One:
    def initialize(self, context):
        raise RuntimeError("no weights")

    def handle(self, data, context):
        return ["served on"] * len(data)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_two_classes_and_no_function_are_refused_in_the_servers_own_words(folder: Path) -> None:
    (folder / "two_classes.py").write_text(ONE + ONE.replace("One", "Other"))
    with pytest.raises(ValueError, match="Expected only one class in custom service code or a function entry point"):
        theirs.start("two_classes.py", context("torchserve", []), "torchserve")


def test_mms_serves_on_after_an_initialize_that_failed_and_torchserve_does_not(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "no_weights.py").write_text(ONE)
    assert theirs.start("no_weights.py", context("mms", []), "mms")([{}], None) == ["served on"]
    assert caplog.messages == ["the handler's initialize failed"]
    with pytest.raises(RuntimeError, match="no weights"):
        theirs.start("no_weights.py", context("torchserve", []), "torchserve")


def test_a_module_that_is_not_there_is_named() -> None:
    for server in ("mms", "torchserve"):
        with pytest.raises(ModuleNotFoundError, match="'nowhere_at_all'"):
            theirs.start("nowhere_at_all.py", context(server, []), server)


def test_where_torchserve_has_loaded_no_envelope_nothing_is_put_around_theirs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "plain_function.py").write_text("def handle(data, context):\n    return data\n")
    importlib.import_module(f"{theirs.ENVELOPES}.base")
    for name in [name for name in sys.modules if name.startswith(f"{theirs.ENVELOPES}.") and not name.endswith(".base")]:
        monkeypatch.delitem(sys.modules, name)
    handle = theirs.start("plain_function.py", context("torchserve", []), "torchserve")
    assert handle is importlib.import_module("plain_function").handle


def test_behind_an_envelope_no_request_gets_a_result_of_anothers_instance(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchServe's json envelope cuts the results of a batch by counting: one that theirs leaves out moves all behind it."""
    handler = "def handle(data, context):\n    return data and [one.upper() for one in data if one]\n"
    (folder / "leaves_out.py").write_text(handler)
    envelope = importlib.import_module(f"{theirs.ENVELOPES}.json").JSONEnvelope
    for name in ("parse_input", "format_output"):
        monkeypatch.setattr(envelope, name, getattr(envelope, name))
    for name in [name for name in sys.modules if name.startswith(f"{theirs.ENVELOPES}.")]:
        if not name.endswith((".base", ".json")):
            monkeypatch.delitem(sys.modules, name)
    guarded = guard(theirs.start("leaves_out.py", context("torchserve", []), "torchserve"))
    bodies = [{"body": {"instances": instances}} for instances in (["a", ""], ["b", "c"], ["d"])]
    alone = [ask(guarded, [body])[0].value for body in bodies]
    assert alone == [{"predictions": ["A"]}, {"predictions": ["B", "C"]}, {"predictions": ["D"]}]
    assert [slot.value for slot in ask(guarded, bodies)] == alone
