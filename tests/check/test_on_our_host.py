"""`slotwise check` on a worker as our own host starts it, and a new model of ONNX, which needs no torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwise.archive.build import build
from slotwise.archive.guarding.guarded import guard
from slotwise.archive.inspection import inspect
from slotwise.archive.scaffold import new as scaffold
from slotwise.bench.bodies import RequestBody
from slotwise.check import conformance, framed_worker
from slotwise.check.conformance import CheckedArchive, check
from slotwise.check.rows import RowsApart
from slotwise.check.worker_process import WorkerFault
from slotwise.errors import SlotwiseError
from tests.archive.foreign_archives import FUNCTION, torch_archive
from tests.check.test_check import broken


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of what `slotwise new` writes without torch."""
    place = tmp_path_factory.mktemp("colours")
    files = scaffold.new(str(place / "colours"), "onnx")
    assert sorted(file.name for file in files) == ["blue.png", "green.png", "model.onnx", "model.toml", "red.png"]
    return build(place / "colours", place / "store")


def test_a_new_model_of_onnx_keeps_every_promise(colours: Path) -> None:
    report = check(colours, batch_size=4, servers=["slotwise"])
    (verdicts,) = report.verdicts.values()
    assert {verdict.promise for verdict in verdicts if verdict.holds} == set(conformance.SENTENCES), report


def test_our_host_is_asked_where_there_is_no_other(colours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert conformance.present() == ["torchserve", "mms"]
    monkeypatch.setattr(conformance, "installed", lambda kind: "1" if kind == "slotwise" else None)
    assert conformance.present() == ["slotwise"]
    with pytest.raises(SlotwiseError, match="mms: not installed here"):
        check(colours, servers=["mms"])


def test_a_guarded_archive_of_a_stranger_keeps_what_theirs_cannot(tmp_path: Path) -> None:
    theirs = torch_archive(tmp_path, FUNCTION)
    bodies = []
    for number in (1, 2, 3):
        bodies.append(tmp_path / f"{number}.txt")
        bodies[-1].write_text(str(number))
    report = check(theirs, bodies, batch_size=4, servers=["slotwise"])
    assert "only a server can run it" in broken(report)["slotwise"]["starts"]
    report = check(guard(theirs), bodies, batch_size=4, servers=["slotwise"])
    kept = {verdict.promise for verdict in report.verdicts["slotwise"] if verdict.holds}
    assert {"starts", "answers", "partial", "isolates", "order", "mates", "memory"} <= kept, report


def test_a_worker_that_gives_nothing_is_named(colours: Path, tmp_path: Path) -> None:
    subject = CheckedArchive(colours, inspect(colours), [], 4, None, 60.0, tmp_path, RowsApart(None, "", 0.0))
    picture = RequestBody(b"no picture")
    with subject.worker("slotwise") as worker:
        assert [answer.code for answer in worker.predict([picture, picture])] == [400, 400]
        worker.process.kill()
        with pytest.raises(WorkerFault, match="the worker ended"):
            worker.predict([picture])
    with subject.worker("slotwise") as worker:
        assert isinstance(worker, framed_worker.FramedWorker)
        worker.timeout_s = 0.001
        with pytest.raises(WorkerFault, match="no answer in 0 s"):
            for _ in worker._frames(0):  # nobody has asked: it only beats
                pass
