"""`slotwise check`: right handlers pass on both servers' real workers, the usual faults fail and are named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from slotwise.archive.build import build
from slotwise.archive.inspection import inspect
from slotwise.bench.bodies import RequestBody
from slotwise.check import conformance
from slotwise.check.conformance import CheckedArchive, CheckReport, PromiseVerdict, check
from slotwise.check.conversation import Conversation
from slotwise.check.promises import answers
from slotwise.check.rows import RowsApart
from slotwise.errors import SlotwiseError
from slotwise.worker.separability.agree import agree

HANDLERS = Path(__file__).parents[1] / "fixtures" / "handlers"
EXAMPLES = {"a.json": [1, 2, 3], "b.json": [4, 5, 6.5], "c.json": [7, 1, 2]}


def built(folder: Path, handler: str, *, examples: bool = True) -> Path:
    """The archive of one of the fixture handlers."""
    folder.mkdir()
    (folder / f"{handler}.py").write_bytes((HANDLERS / f"{handler}.py").read_bytes())
    (folder / "weights.json").write_text(json.dumps({"weights": [1, 10, 100]}))
    for name, values in EXAMPLES.items():
        (folder / name).write_text(json.dumps(values))
    named = list(EXAMPLES) if examples else []
    spec = f'name = "{handler}"\nhandler = "{handler}.py"\nfiles = ["weights.json"]\nexamples = {json.dumps(named)}\n'
    (folder / "model.toml").write_text(spec)
    return build(folder, folder / "store")


def broken(report: CheckReport) -> dict[str, dict[str, str]]:
    """server -> broken promise -> why."""
    return {k: {v.promise: v.why for v in found if v.holds is False} for k, found in report.verdicts.items()}


def test_a_right_handler_passes_on_both_servers(tmp_path: Path) -> None:
    report = check(built(tmp_path / "m", "correct"), batch_size=4)
    assert report.passed
    assert set(report.verdicts) == {"torchserve", "mms"}
    unproven = PromiseVerdict("apart", None, "unproven: ValueError: correct.py has no `handle = ....entry_point()`")
    for found in report.verdicts.values():
        assert [verdict for verdict in found if not verdict.holds] == [unproven], report


@pytest.mark.parametrize(
    ("handler", "server", "promise", "why"),
    [
        ("short_list", "mms", "isolates", "number of batch response mismatched"),
        ("exception_escapes", "torchserve", "refuses", "JSONDecodeError"),
        ("keeps_state", "mms", "memory", "asked in another order"),
        ("misaligned", "mms", "isolates", "the answer of slot"),
        ("batch_mates", "mms", "mates", "alone it gets"),
        ("init_swallowed", "mms", "damage", "weights.json is damaged"),
    ],
)
def test_a_faulty_handler_fails_and_the_report_says_why(
    tmp_path: Path, handler: str, server: str, promise: str, why: str
) -> None:
    report = check(built(tmp_path / "m", handler), batch_size=4, servers=[server])
    assert not report.passed
    assert why in broken(report)[server][promise]


READS = """
import json, os

def handle(data, context):
    folder = context.system_properties["model_dir"]
    if data is None:
        with open(os.path.join(folder, "weights.json")) as file:
            json.load(file)
        return None
    with open(os.path.join(folder, "labels.txt")) as file:
        labels = file.read()
    return [labels for _ in data]
"""


def test_each_data_file_is_damaged_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "reads.py").write_text(READS)
    for name, text in {"weights.json": "[1, 2, 3, 4, 5]", "labels.txt": "cat\ndog", "NOTICE": "mine"}.items():
        (folder / name).write_text(text)

    def damage(*files: str) -> PromiseVerdict:
        spec = f'name = "reads"\nhandler = "reads.py"\nfiles = {json.dumps(files)}\n'
        (folder / "model.toml").write_text(spec)
        archive, example = build(folder, folder / "store"), RequestBody(b"x", name="x")
        with tempfile.TemporaryDirectory(prefix="sw-") as place:  # short: the worker's socket lies in it
            subject = CheckedArchive(archive, inspect(archive), [example], 2, None, 60.0, Path(place), RowsApart(None, ""))
            talk = Conversation(lambda: subject.worker("mms"), subject.examples, 2)
            try:
                answers(talk)
            finally:
                talk.restart()
            return conformance._verdict("damage", lambda: conformance._damage(subject, "mms", talk))

    found = damage("weights.json", "labels.txt", "NOTICE")
    assert (found.holds, found.why) == (False, "it reports itself loaded although labels.txt is damaged")
    (folder / "reads.py").write_text(READS.replace('folder, "labels.txt"', 'folder, "weights.json"'))
    found = damage("weights.json", "NOTICE")
    assert (found.holds, found.why) == (True, "NOTICE damaged: it starts and answers every example as before")
    monkeypatch.setattr(conformance, "MOST_ALONE", 0)
    found = damage("weights.json", "NOTICE")
    assert (found.holds, found.why) == (True, "weights.json, NOTICE: damaged together only")


def test_a_batch_mates_faint_influence_is_found_where_the_tolerance_is_set(tmp_path: Path) -> None:
    archive = built(tmp_path / "m", "faint_mates")
    assert check(archive, batch_size=4, servers=["mms"]).passed, "within 0.02 nobody sees it"
    found = broken(check(archive, batch_size=4, servers=["mms"], tolerance=1e-6))["mms"]
    assert "mates" in found
    assert "partial" in found


def test_a_failed_initialize_that_mms_hides_is_found(tmp_path: Path) -> None:
    faults = broken(check(built(tmp_path / "m", "class_init_fails"), batch_size=4))
    assert "no_such_file.json" in faults["torchserve"]["starts"]
    assert "no_such_file.json" in faults["mms"]["answers"]


def test_without_an_example_there_is_nothing_to_ask(tmp_path: Path) -> None:
    path = built(tmp_path / "m", "correct", examples=False)
    with pytest.raises(SlotwiseError, match="carries no example"):
        check(path)
    with pytest.raises(SlotwiseError, match="a body cannot be read"):
        check(path, [tmp_path / "nope.png"])
    assert check(path, [tmp_path / "m" / "a.json"], batch_size=2, servers=["mms"]).passed


def test_an_archive_of_another_tool_can_be_checked(tmp_path: Path) -> None:
    path = built(tmp_path / "m", "correct")
    foreign = tmp_path / "foreign.mar"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(foreign, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            if not name.startswith("slotwise") and name != "MAR-INF/DIGESTS.json":
                target.writestr(name, source.read(name))
    report = check(foreign, batch_size=2, servers=["mms"])
    assert {verdict.promise: verdict.holds for verdict in report.verdicts["mms"]}["starts"] is True
    assert "refuses" in broken(report)["mms"], (
        "MMS parses the bodies of such an archive, and ends its worker at what is no JSON"
    )


def test_the_command_prints_the_verdicts_and_exits_with_1_where_one_is_broken(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slotwise.cli", "check", "--server", "mms", "--batch-size", "2"]
    good, faulty = built(tmp_path / "good", "correct"), built(tmp_path / "faulty", "init_swallowed")
    fine = subprocess.run([*command, str(good)], capture_output=True, text=True)
    assert (fine.returncode, "BROKEN" in fine.stdout) == (0, False)
    bad = subprocess.run([*command, str(faulty)], capture_output=True, text=True)
    assert bad.returncode == 1
    assert "mms, damage, BROKEN: it reports itself loaded although weights.json is damaged" in bad.stdout
    machine = subprocess.run([*command, "--json", str(faulty)], capture_output=True, text=True)
    assert machine.returncode == 1
    assert json.loads(machine.stdout)["passed"] is False


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_it_at_once_with_its_workers(tmp_path: Path, end: signal.Signals) -> None:
    path = built(tmp_path / "m", "hangs")
    command = [sys.executable, "-m", "slotwise.cli", "check", str(path)]
    process = subprocess.Popen(command, env={**os.environ, "ASKED": str(tmp_path)}, stderr=subprocess.PIPE)
    while len(asked := list(tmp_path.glob("*.pid"))) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    workers = [psutil.Process(int(file.stem)) for file in asked]
    process.send_signal(end)
    try:
        process.communicate(timeout=60)  # half of what one batch may take
    finally:
        process.kill()
    assert process.returncode == 130
    assert not [worker for worker in workers if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE]


def test_answers_agree_within_the_tolerance_of_an_engine() -> None:
    assert agree(
        {"label": "7", "probabilities": {"7": 0.98, "1": 0.01}}, {"label": "7", "probabilities": {"7": 0.975, "2": 0.01}}
    )
    assert agree(
        {"label": "7", "probabilities": {"7": 0.5, "1": 0.5}}, {"label": "1", "probabilities": {"1": 0.501, "7": 0.499}}
    )
    assert not agree({"label": "7", "probabilities": {"7": 0.9}}, {"label": "1", "probabilities": {"1": 0.9}})
    assert not agree({"label": "7", "probabilities": {"7": 0.9}}, {"label": "7", "probabilities": {"7": 0.8}})
    assert agree([1, 2.0001, "a", None, True], [1, 2, "a", None, True])
    assert not agree("a", "b")
    assert not agree([1], [1, 2])
    assert not agree(True, 1)
    assert not agree({"a": 1}, {"a": 1, "b": 2})
