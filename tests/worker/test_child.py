"""A worker in a child process whose author meddles with its streams, pipes and processes: nobody gets another's answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.earlier_worker import EarlierWorker
from slotwise.archive.guarding.guarded import guard
from slotwise.archive.inspection import extract
from slotwise.archive.local_model import LocalModel
from slotwise.errors import SlotwiseError
from slotwise.worker.hosts.child import Worker, WorkerFailed
from slotwise.worker.hosts.messages import VERSION
from slotwise.worker.hosts.triton import TritonHost
from tests.archive.foreign_archives import torch_archive
from tests.archive.test_renew import FIXTURES, changed
from tests.server.conftest import HERE, build_handler
from tests.worker import triton_backend as backend
from tests.worker.test_triton_host import ask

HARMLESS = ["print", "program", "read", "fork"]
BROKEN = ["hold", "other", "junk", "half", "many", "close", "sweep"]
GUARDED = """
import os, subprocess, sys

def handle(data, context):
    if data is None:
        return
    os.write(1, b'{"id": 2, "answers": []}\\n')
    assert subprocess.run(["cat"], stdout=subprocess.PIPE, timeout=60).stdout == sys.stdin.buffer.read() == b""
    return [int(row["body"]) + 1 for row in data]
"""


@pytest.fixture(scope="module")
def meddlers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_handler("meddlers", tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("work"), handler="meddlers")


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The same handler in an archive of 0.2.0."""
    old = Path(shutil.copy(FIXTURES / "sums-0.2.0.mar", tmp_path / "sums.mar"))
    return changed(old, sums__py=(HERE / "handlers" / "meddlers.py").read_text("utf-8"))


@pytest.fixture
def triton(meddlers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TritonHost]]:
    monkeypatch.setenv("SLOTWISE_STATE", str(tmp_path))
    monkeypatch.setenv("HANGS", str(tmp_path / "hangs"))
    folder, hosts = extract(meddlers, tmp_path / "extracted"), []

    def started(**parameters: str) -> TritonHost:
        hosts.append(TritonHost(backend, backend.arguments(folder, **parameters), folder))
        return hosts[-1]

    yield started
    for host in hosts:
        host.close()


def values(model: LocalModel, *bodies: bytes) -> list[Any]:
    """What each body is answered, in one batch."""
    return [answer.json() for answer in model.answer(bodies)]


@pytest.mark.parametrize("which", ["meddlers", "earlier"])
def test_standard_streams_are_not_the_messages(which: str, request: pytest.FixtureRequest) -> None:
    with LocalModel(request.getfixturevalue(which)) as model:
        assert isinstance(model.worker, EarlierWorker) == (which == "earlier")
        for turn, word in enumerate(HARMLESS):
            assert values(model, b"%d" % turn, word.encode(), b"7") == [turn + 1, 1, 8], word
            assert values(model, b"%d" % (100 + turn)) == [101 + turn], word
        assert model.alive


def test_a_strangers_streams_are_not_the_messages_either(tmp_path: Path) -> None:
    with LocalModel(guard(torch_archive(tmp_path, GUARDED))) as model:
        assert [values(model, b"1", b"2"), values(model, b"3")] == [[2, 3], [4]]


DEEP = """
def handle(data, context):
    if data is None:
        return
    context.set_response_header(0, "X-Tab", "a\tb")
    depth, value = 0, data[0]["body"]
    while isinstance(value, list) and value:
        depth, value = depth + 1, value[0]
    return [depth] * len(data)
"""


def test_deep_json_and_an_odd_header_cost_a_guards_batch_nothing(tmp_path: Path) -> None:
    about = {"content-type": "application/json"}
    with LocalModel(guard(torch_archive(tmp_path, DEEP), audit=1.0)) as model:
        for depth in (100, 900, 990, 5000):
            answers = model.answer([(b"[" * depth + b"]" * depth, about), (b"[1]", about)])
            assert {answer.status for answer in answers} <= {200, 400, 500}
            assert len(answers) == 2
        assert model.alive


@pytest.mark.parametrize("word", BROKEN)
def test_what_is_no_answer_to_this_message_ends_the_child(meddlers: Path, word: str) -> None:
    with LocalModel(meddlers) as model:
        assert values(model, b"1") == [2]
        with pytest.raises(SlotwiseError):
            model.answer([b"1", word.encode()])
        model.child.wait(60)
        with pytest.raises(SlotwiseError):
            model.answer([b"5"])


def test_a_second_answer_is_nobodys(meddlers: Path) -> None:
    with LocalModel(meddlers) as model:
        assert values(model, b"1", b"later") == [2, 1]
        while not model.worker.source.has_more():
            pass
        with pytest.raises(SlotwiseError):
            model.answer([b"5"])
        model.child.wait(60)


def test_on_triton_the_next_batch_goes_to_the_next_child(triton: Callable[..., TritonHost]) -> None:
    host = triton(response_timeout_s="300")
    for turn, word in enumerate(BROKEN):
        assert [status for status, _ in ask(host, b"1", word.encode())] == [500, 500], word
        assert ask(host, b"%d" % turn) == [(200, turn + 1)], word


def test_on_triton_a_second_answer_costs_nobody_anything(triton: Callable[..., TritonHost]) -> None:
    host = triton(response_timeout_s="300")
    assert ask(host, b"1", b"later") == [(200, 2), (200, 1)]
    while host.worker._current.quiet:
        pass
    assert ask(host, b"7") == [(200, 8)]


def test_on_triton_half_an_answer_is_waited_for_as_long_as_a_batch_may_take(triton: Callable[..., TritonHost]) -> None:
    host = triton(response_timeout_s="2")
    assert [status for status, _ in ask(host, b"1", b"stall")] == [500, 500]


AUDITED = '{"audit": 1.0}'


@pytest.mark.parametrize("which", ["meddlers", "earlier"])
def test_an_audit_of_numbers_that_no_float_holds_shifts_nobodys_answer(which: str, request: pytest.FixtureRequest) -> None:
    numbers: list[tuple[str, float, str, int | None]] = []
    archive, environ = request.getfixturevalue(which), {"SLOTWISE_OVERRIDES": AUDITED}
    with LocalModel(archive, environ=environ, measured=lambda *number: numbers.append(number)) as model:
        assert values(model, b"grow")[0] > 10**899
        if which == "earlier":  # its second message is found before the next question, or is the answer to it
            with pytest.raises(SlotwiseError):
                [values(model, b"%d" % turn) for turn in range(100)]
            assert model.child.wait(60)
        else:
            assert [values(model, b"%d" % turn) for turn in range(20)] == [[turn + 1] for turn in range(20)]
            assert ("slotwise_audit_mismatch_total", 1, "", None) in numbers


def test_on_triton_an_audit_of_such_numbers_shifts_nobodys_answer(triton: Callable[..., TritonHost]) -> None:
    host = triton(SLOTWISE_OVERRIDES=AUDITED)
    assert ask(host, b"grow")[0][0] == 200
    assert [ask(host, b"%d" % turn) for turn in range(20)] == [[(200, turn + 1)] for turn in range(20)]


def test_a_load_that_hangs_ends_with_its_time(meddlers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hangs").touch()
    monkeypatch.setenv("HANGS", str(tmp_path / "hangs"))
    with pytest.raises(SlotwiseError, match=r"meddlers\.mar: the worker did not start within 2 s"):
        LocalModel(meddlers, start_timeout_s=2)


def test_on_triton_a_load_that_hangs_holds_up_nobody(triton: Callable[..., TritonHost], tmp_path: Path) -> None:
    host = triton(response_timeout_s="2")
    (tmp_path / "hangs").touch()
    ask(host, b"half")
    (status, body), *_ = ask(host, b"1")
    assert (status, body["message"]) == (503, "the worker does not start: it is still starting")
    host.close()  # it does not wait for the start
    with pytest.raises(Exception, match="the worker did not start within 1 s"):
        triton(start_timeout_s="1")


def test_a_host_of_an_earlier_release_is_told_what_to_do(meddlers: Path, tmp_path: Path) -> None:
    folder = extract(meddlers, tmp_path / "extracted")
    command = [sys.executable, "-P", "-m", "slotwise.worker.hosts.local"]
    start = json.dumps({"start": {"batch_size": 8}}).encode() + b"\n"
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, input=start, capture_output=True)
    assert json.loads(done.stdout) == {"error": "this archive is of a later release of slotwise: upgrade the one that loads it"}


def test_an_archive_of_a_later_release_says_so(meddlers: Path, tmp_path: Path) -> None:
    new = changed(Path(shutil.copy(meddlers, tmp_path)), slotwise__json=json.dumps({"worker": 4, "slotwise": "9.0.0"}))
    with pytest.raises(SlotwiseError, match=r"is of slotwise 9\.0\.0"):
        LocalModel(new)


def test_an_earlier_worker_that_answers_twice_is_ended(earlier: Path) -> None:
    """Its second answer is an error: one that says so is not asked again."""
    with LocalModel(earlier) as model:
        assert values(model, b"1") == [2]
        with pytest.raises(SlotwiseError):
            model._asked(lambda: model.worker.answer({"requests": [{"bytes": "many"}]}, [], 1))
        model.child.wait(60)


def test_a_worker_that_speaks_another_version_is_ended_and_never_asked(tmp_path: Path) -> None:
    (tmp_path / "speaks.py").write_text(
        "import os, sys\n"
        "os.read(int(sys.argv[1]), 1 << 16)\n"
        'os.write(int(sys.argv[2]), b\'{"id": 1, "version": 99, "started": {}}\\n\')\n'
        "sys.stdin = open(int(sys.argv[1]))\n"
        "sys.stdin.read()\n"
    )
    worker = Worker(sys.executable, "speaks", tmp_path, {**os.environ, "PYTHONPATH": str(tmp_path)})
    with pytest.raises(WorkerFailed, match=rf"speaks version 99 of the messages, its host {VERSION}"):
        worker.start(8, 120)
    assert worker.child.wait(60)
    worker.close()
