"""`slotwise guard`: theirs stays what it is, two runs give the same bytes, and what cannot be guarded is refused."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.guarding.guard_proof import Example, GuardProof
from slotwise.archive.guarding.guarded import guard, guard_code, proof_of
from slotwise.archive.inspection import extract, inspect
from slotwise.bench.bodies import RequestBody
from slotwise.check.real_worker import RealWorker, WorkerFault
from slotwise.deploy.deploy import obtain
from slotwise.errors import SlotwiseError
from slotwise.files import project
from tests.archive.foreign_archives import FUNCTION, legacy_archive, mms_archive, torch_archive, zipped
from tests.support.archives import contents

MANIFEST = "MAR-INF/MANIFEST.json"


def answers(path: Path, kind: str, folder: Path, bodies: list[bytes], **environ: str) -> list[tuple[int, Any]]:
    """What a real worker of that server answers to one batch."""
    info = inspect(path, need_digests=False)
    model_dir = extract(path, folder / "model", trusted=True)
    variables = {**os.environ, "PYTHONPATH": str(model_dir), "PYTHONUNBUFFERED": "1", **environ}
    with RealWorker(kind, model_dir, folder / "run", 60, variables) as worker:
        worker.load(info.name, info.handler, 8)
        return [(answer.code, answer.value()) for answer in worker.predict([RequestBody(body) for body in bodies])]


def test_every_file_stays_what_it_is_and_the_digests_are_right(tmp_path: Path) -> None:
    files = {"weights.bin": bytes(range(256)) * 99, "slotwise/__init__.py": "mine = 1\n", "index_to_name.json": "{}"}
    theirs = torch_archive(tmp_path, FUNCTION, files)
    guarded = guard(theirs)
    assert guarded == tmp_path / "theirs-guarded.mar"
    before, after = contents(theirs), contents(guarded)
    assert {name: after[name] for name in before if name != MANIFEST} == {n: c for n, c in before.items() if n != MANIFEST}
    added = set(after) - set(before)
    assert all(name.startswith("_slotwise_guard/") or name == "MAR-INF/DIGESTS.json" for name in added)
    old, new = json.loads(before[MANIFEST]), json.loads(after[MANIFEST])
    assert new["model"].pop("handler") == "_slotwise_guard:handle"
    assert old["model"].pop("handler") == "theirs_handler.py"
    assert new == old
    assert inspect(guarded).name == "theirs"


def test_of_the_guards_code_only_the_imports_are_renamed() -> None:
    code = guard_code()
    for name in sorted(code.keys() - {"_slotwise_guard/__init__.py"}):
        ours = (project.PACKAGE / "worker" / name.partition("/")[2]).read_text("utf-8")
        pairs = zip(ours.splitlines(), code[name].splitlines(), strict=True)
        changed = [(line, renamed) for line, renamed in pairs if line != renamed]
        expected = [line.replace("from slotwise.worker", "from _slotwise_guard", 1) for line, _ in changed]
        assert expected == [renamed for _, renamed in changed]
        nodes = list(ast.walk(ast.parse(code[name])))
        imported = [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
        imported += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        assert not [module for module in imported if module.partition(".")[0] == "slotwise"]


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"name": "../x"}, "'../x' cannot be a model's name"),
        ({"bad_input": ["TypeError", "ValueError, KeyError"]}, "'ValueError, KeyError' is no exception's name"),
        ({"bad_input": [""]}, "'' is no exception's name"),
    ],
)
def test_what_cannot_be_a_name_is_refused(tmp_path: Path, wish: dict[str, Any], says: str) -> None:
    with pytest.raises(SlotwiseError, match=re.escape(says)):
        guard(torch_archive(tmp_path, FUNCTION), tmp_path / "out.mar", **wish)
    assert not (tmp_path / "out.mar").exists()


def test_two_runs_give_the_same_bytes_and_a_name_can_be_given(tmp_path: Path) -> None:
    theirs = torch_archive(tmp_path, FUNCTION)
    one, two = guard(theirs, tmp_path / "a" / "one.mar"), guard(theirs, tmp_path / "two.mar")
    assert one.read_bytes() == two.read_bytes()
    named = inspect(guard(theirs, tmp_path / "named.mar", name="other", audit=0.5, bad_input=["Their.Error"]))
    assert named.name == "other"
    terms = json.loads(contents(named.path)["_slotwise_guard/guard.json"])
    assert (terms["handler"], terms["audit"], terms["bad_input"]) == ("theirs_handler.py", 0.5, ["Their.Error"])


STREAMING = """
from ts.handler_utils.utils import send_intermediate_predict_response

def handle(data, context):
    return data
"""
TOKENS = """
def answer(data, context):
    context.stopping_criteria = [None] * len(data)
"""
SEQUENCE = """
class H:
    def initialize(self, context): pass
    def handle(self, data, context):
        return [context.get_sequence_id(i) for i in range(len(data))]
"""
ELSEWHERE = """
from inner.steps import answer

def handle(data, context):
    return answer(data)
"""
COROUTINE = """
async def handle(data, context):
    return data
"""
COPIED = """
from mine import MicroBatching

class H:
    def __init__(self):
        self.handle = MicroBatching(self)
    def initialize(self, context): pass
"""
OURS = """
from slotwise.worker import BatchHandler

class Mine(BatchHandler):
    pass

handle = Mine.entry_point()
"""


@pytest.mark.parametrize(
    ("handler", "files", "config", "why"),
    [
        (TOKENS, {}, "", "it streams its answers: stopping_criteria"),
        (STREAMING.replace("def handle", "async def handle"), {}, "", "handle is a coroutine"),
        (SEQUENCE, {}, "", "its requests depend on one another: get_sequence_id"),
        (COROUTINE, {}, "", "handle is a coroutine"),
        (ELSEWHERE, {"inner/__init__.py": "", "inner/steps.py": TOKENS}, "", r"it streams .* \(inner/steps.py\)"),
        (FUNCTION, {}, "minWorkers: 1\ncontinuousBatching: true\n", "continuousBatching"),
        (FUNCTION, {}, "sequenceBatching: true\n", "depend on one another"),
        (FUNCTION, {}, "asyncCommunication: true\n", "streams"),
        (FUNCTION, {}, "parallelType: tp\n", "several processes answer one batch"),
        ("vllm_handler", {}, "", "vllm_handler streams"),
        (OURS, {}, "", "a BatchHandler"),
        (COPIED, {"mine.py": "class MicroBatching: pass"}, "", "use ts.handler_utils.micro_batching"),
    ],
    ids=range(12),
)
def test_what_cannot_be_guarded_is_refused_with_the_reason(
    tmp_path: Path, handler: str, files: dict[str, str], config: str, why: str
) -> None:
    options = {"config_file": "model-config.yaml"} if config else {}
    theirs = torch_archive(tmp_path, handler, {**files, **({"model-config.yaml": config} if config else {})}, **options)
    with pytest.raises(SlotwiseError, match=f"theirs.mar cannot be guarded: .*{why}"):
        guard(theirs)
    assert not list(tmp_path.glob("*guarded*"))


GENERATES = """
class H:
    def initialize(self, context):
        self.stopping_criteria = [len]
    def handle(self, data, context):
        stopping_criteria = self.stopping_criteria
        given = {"stopping_criteria": stopping_criteria}
        return [self.model.generate(one, stopping_criteria=stopping_criteria, **given) for one in data]
"""


def test_what_stops_a_model_of_transformers_is_no_context_of_torchserves(tmp_path: Path) -> None:
    guarded = guard(torch_archive(tmp_path, GENERATES))
    assert "once" not in json.loads(contents(guarded)["_slotwise_guard/guard.json"])


def test_a_class_of_theirs_may_be_called_as_one_of_ours(tmp_path: Path) -> None:
    theirs = torch_archive(tmp_path, OURS.replace("slotwise.worker", "base"), {"base.py": "class BatchHandler: pass"})
    assert guard(theirs).is_file()


@pytest.mark.parametrize(
    ("handler", "config", "once"),
    [(STREAMING, "", "pieces"), (SEQUENCE, "sequenceBatching: true\n", "sequence"), (FUNCTION, "", "")],
)
def test_one_that_sends_pieces_or_keeps_sequences_is_asked_once(tmp_path: Path, handler: str, config: str, once: str) -> None:
    theirs = torch_archive(tmp_path, handler, {"model-config.yaml": config}, config_file="model-config.yaml")
    for bare in (False, True):
        made = guard(theirs, tmp_path / f"{bare}.mar", bare=bare, sequences=True)
        assert json.loads(contents(made)["_slotwise_guard/guard.json"]).get("once", "") == once


@pytest.mark.parametrize(("handler", "bare"), [(FUNCTION, True), (STREAMING, False)])
def test_who_must_not_be_asked_twice_is_not_audited(tmp_path: Path, handler: str, bare: bool) -> None:
    theirs = torch_archive(tmp_path, handler)
    with pytest.raises(SlotwiseError, match=r"theirs\.mar cannot be audited: its handler must not be asked twice"):
        guard(theirs, bare=bare, audit=0.5)
    assert guard(theirs, bare=bare).is_file()


@pytest.mark.parametrize(("handler", "more"), [(TOKENS, ""), (TOKENS, "sequenceBatching: true\n"), (FUNCTION, "")])
def test_one_that_is_called_step_by_step_is_for_our_own_host(tmp_path: Path, handler: str, more: str) -> None:
    config = f"continuousBatching: true\n{more}"
    theirs = torch_archive(tmp_path, handler, {"model-config.yaml": config}, config_file="model-config.yaml")
    with pytest.raises(SlotwiseError, match="continuousBatching"):
        guard(theirs)
    for bare in (False, True):
        if handler == TOKENS and not more:
            made = guard(theirs, tmp_path / f"{bare}.mar", bare=bare, sequences=True)
            assert json.loads(contents(made)["_slotwise_guard/guard.json"])["once"] == "steps"
        else:
            with pytest.raises(SlotwiseError, match="its config has continuousBatching: it streams"):
                guard(theirs, tmp_path / f"{bare}.mar", bare=bare, sequences=True)


def test_a_config_that_asks_for_nothing_of_that_kind_is_fine(tmp_path: Path) -> None:
    config = "minWorkers: 1\ncontinuousBatching: false\nparallelType: ''\nhandler:\n  sequenceBatching: true\n"
    guard(torch_archive(tmp_path, FUNCTION, {"model-config.yaml": config}, config_file="model-config.yaml"))


SAID_OTHERWISE = [
    '"sequenceBatching": true',
    "{sequenceBatching: true}",
    "{a: 1, 'sequenceBatching': true}",
    "sequenceBatching: !!bool true",
    "sequenceBatching: &on true",
    "&key parallelType : pp",
    '"parallelType": "pp"',
    "? parallelType\n: pp",
    "\ufeffparallelType: pp",
    "parallelType:\n  pp",
    "# parallelType: no\n---\nparallelType: pp",
    '"parallel\\x54ype": pp',
    "parallelType: pp".encode("utf-16"),
    "parallelType: [",
    "- parallelType: pp\n",
]


def configured(path: Path, config: str | bytes, name: str = "model-config.yaml") -> Path:
    model = {"modelName": "theirs", "handler": "service.py:handle", "configFile": name}
    return zipped(path, {MANIFEST: {"model": model}, "service.py": FUNCTION, name: config})


@pytest.mark.parametrize("reader", ["PyYAML", "none"])
def test_a_config_is_read_however_it_is_written(tmp_path: Path, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`"parallelType": "pp"` was not seen, and a handler of several processes was guarded, and called again."""
    if reader == "none":
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "yaml" else find(name, *more))
    for i, config in enumerate(SAID_OTHERWISE):
        with pytest.raises(SlotwiseError, match=r"depend on one another|several processes|cannot be read"):
            guard(configured(tmp_path / f"{i}.mar", config))
    with pytest.raises(SlotwiseError, match="several processes"):
        guard(configured(tmp_path / "folder.mar", "parallelType: pp", "conf/model-config.yaml"))
    for config in ("", "# sequenceBatching: true\n", "batchSize: 4\n", "{'sequenceBatching': false}", "parallelType: 'no'"):
        guard(configured(tmp_path / "fine.mar", config))


ALIASES = "a: &a [x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(20))


@pytest.mark.parametrize(
    "config",
    [
        "a: !!timestamp x",
        "a: !!bool x",
        "a: !!int ''",
        "a: 2001-99-99",
        "a: &a [*a]",
        ALIASES,
        "[" * 5000,
        "2001-01-01: x",
        "batchSize: 4",
    ],
    ids=range(9),
)
def test_a_config_that_nobody_can_read_is_none(tmp_path: Path, config: str) -> None:
    model = {"modelName": "theirs", "handler": "service.py", "configFile": "model-config.yaml"}
    files = {MANIFEST: {"model": model}, "service.py": FUNCTION, "model-config.yaml": config}
    info = inspect(zipped(tmp_path / "theirs.mar", files), need_digests=False)
    assert info.config == ({"batchSize": 4} if config.startswith("batchSize") else {})
    assert asdict(info)["config"] == info.config


@pytest.mark.parametrize("source", ["-" * 20_000 + "1", "(" * 5000, "a." * 20_000 + "b", "\0"], ids=range(4))
def test_a_handler_that_python_cannot_parse_is_guarded_as_it_is(tmp_path: Path, source: str) -> None:
    theirs = zipped(tmp_path / "theirs.mar", {MANIFEST: {"model": {"modelName": "theirs", "handler": "x.py"}}, "x.py": source})
    assert contents(guard(theirs))["x.py"] == source.encode()


def test_a_workflow_a_guarded_archive_and_what_is_none_are_refused(tmp_path: Path) -> None:
    for name in ("flow.war", "flow.mar"):
        flow = zipped(tmp_path / name, {"WAR-INF/MANIFEST.json": {}, MANIFEST: {"workflow": {"workflowName": "flow"}}})
        with pytest.raises(SlotwiseError, match="is a workflow archive"):
            guard(flow)
    compiled = {"runtime": "LSP", "model": {"modelName": "m", "handler": "libhandler.so"}}
    with pytest.raises(SlotwiseError, match="no Python"):
        guard(zipped(tmp_path / "lsp.mar", {MANIFEST: compiled}))
    guarded = guard(torch_archive(tmp_path, FUNCTION))
    with pytest.raises(SlotwiseError, match="is guarded already"):
        guard(guarded)
    with pytest.raises(SlotwiseError, match="would be overwritten"):
        guard(tmp_path / "theirs.mar", tmp_path / "theirs.mar")
    (tmp_path / "no.mar").write_bytes(b"no zip")
    with pytest.raises(SlotwiseError, match=r"is a folder, not a \.mar"):
        guard(tmp_path)
    with pytest.raises(SlotwiseError, match="there is no archive"):
        guard(tmp_path / "nowhere.mar")
    with pytest.raises(SlotwiseError, match="truncated or damaged"):
        guard(tmp_path / "no.mar")
    with pytest.raises(SlotwiseError, match="has no MAR-INF"):
        guard(zipped(tmp_path / "empty.mar", {"a.txt": "b"}))


NAMES = {
    "function": """
import json

def run(data, context):
    return data and [2 * json.loads(row["body"]) for row in data]
""",
    "class": """
import json
from collections import Counter

class Theirs:
    def initialize(self, context):
        self.by = 2

    def handle(self, data, context):
        return [self.by * json.loads(row["body"]) for row in data]
""",
    "own slotwise": """
import json
import slotwise

class Theirs:
    def initialize(self, context):
        assert slotwise.mine

    def handle(self, data, context):
        return [slotwise.mine * json.loads(row["body"]) for row in data]
""",
}


@pytest.mark.parametrize("kind", ["torchserve", "mms"])
@pytest.mark.parametrize("names", NAMES)
def test_theirs_is_found_as_the_server_does(tmp_path: Path, kind: str, names: str) -> None:
    options = {"function": "run"} if names == "function" else {}
    theirs = torch_archive(tmp_path, NAMES[names], {"slotwise/__init__.py": "mine = 2\n"}, **options)
    got = answers(guard(theirs), kind, tmp_path / "w", [b"1", b"no", b"3"])
    assert [code for code, _ in got] == [200, 400, 200]
    assert [value for code, value in got if code == 200] == [2, 6]


def test_archives_of_mms_new_and_old(tmp_path: Path) -> None:
    new = guard(mms_archive(tmp_path / "new.mar", FUNCTION))
    assert [code for code, _ in answers(new, "mms", tmp_path / "new", [b"1", b"no"])] == [200, 400]
    old = legacy_archive(tmp_path / "old.model")
    info = inspect(guard(old, tmp_path / "old-guarded.mar"))
    assert (info.name, info.version) == ("theirs", "1.0")
    assert contents(info.path)["MANIFEST.json"] == contents(old)["MANIFEST.json"]
    got = answers(info.path, "mms", tmp_path / "old", [b"1", b"no", b"3", b"4"])
    assert got[0::2] == [(200, 2), (200, 6)]
    assert got[1][0] == 400


def test_an_envelope_fails_only_for_who_sent_the_bad_one(tmp_path: Path) -> None:
    handler = "def handle(data, context):\n    return data and [2 * one for one in data]\n"
    guarded = guard(torch_archive(tmp_path, handler))
    model_dir = extract(guarded, tmp_path / "model")
    script = f"""
import json, sys
sys.path.insert(0, {str(model_dir)!r})
from ts.model_loader import TsModelLoader
from ts.context import RequestProcessor
service = TsModelLoader().load("theirs", {str(model_dir)!r}, "_slotwise_guard:handle", None, 8, "json", True, None)
bodies = [{{"instances": [1, 2]}}, {{"no": 1}}, {{"instances": [3]}}]
raw = service.context
raw.request_processor, raw.request_ids = [RequestProcessor({{}}) for _ in bodies], dict(enumerate("abc"))
said = service._entry_point([{{"body": body}} for body in bodies], raw)
print(json.dumps([[raw.get_response_status(i)[0], json.loads(one)] for i, one in enumerate(said)]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    said = json.loads(done.stdout.splitlines()[-1]) if done.stdout else done.stderr
    assert said[0] == [200, {"predictions": [2, 4]}], said
    assert said[1][0] == 500
    assert said[2] == [200, {"predictions": [6]}]


def test_mms_serves_on_after_a_body_that_is_not_what_it_says(tmp_path: Path) -> None:
    handler = "def handle(data, context):\n    return data and [row['body'] for row in data]\n"
    guarded = guard(mms_archive(tmp_path / "theirs.mar", handler))
    model_dir = extract(guarded, tmp_path / "model")
    with RealWorker("mms", model_dir, tmp_path / "run", 60, {**os.environ, "PYTHONPATH": str(model_dir)}) as worker:
        worker.load("theirs", inspect(guarded).handler, 8)
        bodies = [
            RequestBody(b"[1]", "application/json"),
            RequestBody(b"no", "application/json"),
            RequestBody(b"\xff", "text/plain"),
        ]
        got = [(answer.code, answer.value()) for answer in worker.predict(bodies)]
        assert got[0] == (200, [1])
        assert [code for code, _ in got] == [200, 400, 400]
        assert [answer.code for answer in worker.predict(bodies[:1])] == [200]


def test_a_changed_file_does_not_start_and_a_new_one_does_no_harm(tmp_path: Path) -> None:
    guarded = guard(torch_archive(tmp_path, FUNCTION, {"weights.bin": b"1"}))
    model_dir = extract(guarded, tmp_path / "model")
    (model_dir / "installed_by_the_server.py").write_text("")
    environ = {**os.environ, "PYTHONPATH": str(model_dir)}
    with RealWorker("torchserve", model_dir, tmp_path / "run", 60, environ) as worker:
        worker.load("theirs", "_slotwise_guard:handle", 8)
    (model_dir / "MAR-INF" / ".verified").unlink()
    (model_dir / "weights.bin").write_bytes(b"2")
    changed = pytest.raises(WorkerFault, match=r"weights\.bin is not the file that was built")
    with RealWorker("torchserve", model_dir, tmp_path / "again", 60, environ) as worker, changed:
        worker.load("theirs", "_slotwise_guard:handle", 8)


def slotwise(*arguments: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "slotwise.cli", *map(str, arguments)], capture_output=True, text=True, cwd=cwd)


def test_inspect_and_check_say_what_an_archive_of_another_tool_lacks(tmp_path: Path) -> None:
    torch_archive(tmp_path, FUNCTION)
    legacy_archive(tmp_path / "old.model")
    torch_archive(tmp_path, "image_classifier", {"model.pt": b"x"}, serialized_file="model.pt", model_name="stock")
    for name in ("theirs.mar", "old.model", "stock.mar"):
        for command in ("inspect", "check"):
            done = slotwise(command, name, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, "")
            assert "foreign: no digests" in done.stdout
            assert "foreign: no guard" in done.stdout
            assert ("image_classifier is TorchServe's own" in done.stdout) == (name == "stock.mar")
            assert ("before 1.0" in done.stdout) == (name == "old.model")
    assert json.loads(slotwise("inspect", "theirs.mar", "--json", cwd=tmp_path).stdout)["foreign"]


def test_check_shows_theirs_and_the_guarded_one_side_by_side(tmp_path: Path) -> None:
    theirs = torch_archive(tmp_path, FUNCTION)
    guard(theirs)
    for number in (1, 22):
        (tmp_path / f"{number}.bin").write_text(str(number))
    bodies = ["--body", "1.bin", "--body", "22.bin", "--server", "mms"]
    done = slotwise("check", "theirs.mar", "theirs-guarded.mar", *bodies, cwd=tmp_path)
    isolates = next(line for line in done.stdout.splitlines() if "isolates" in line)
    assert [word for word in isolates.split() if word in ("BROKEN", "holds")] == ["BROKEN", "holds"], done.stdout
    assert "theirs-guarded.mar, mms" in done.stdout


def test_the_command_prints_one_line(tmp_path: Path) -> None:
    torch_archive(tmp_path, FUNCTION)
    done = slotwise("guard", "theirs.mar", "--out", "safe.mar", "--audit", "0.001", cwd=tmp_path)
    first, second = done.stdout.splitlines()
    assert (done.returncode, first, done.stderr) == (0, "guarded theirs.mar: safe.mar", "")
    assert second.startswith("unproven: ")
    assert json.loads(slotwise("guard", "theirs.mar", "--json", cwd=tmp_path).stdout)["sha256"]
    torch_archive(tmp_path, TOKENS, model_name="stream")
    done = slotwise("guard", "stream.mar", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].startswith("error: stream.mar cannot be guarded: it streams its answers")


def test_what_was_guarded_and_refuted_is_served_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, store, said = torch_archive(tmp_path, FUNCTION), tmp_path / "store", list[str]()
    refuted = GuardProof(False, "a.txt: its answer changes", ("0" * 64,), (2,))
    monkeypatch.setattr("slotwise.archive.guarding.guarded.prove_guarded", lambda *_: refuted)
    guarded = guard(theirs, audit=0.5, bad_input=["TypeError"], examples=[Example("a.txt", b"1")])
    before = guarded.read_bytes()
    assert obtain(str(theirs), tmp_path, guarded=True, say=said.append).path.read_bytes() == before
    assert "REFUTED" in said[-1]
    for _ in range(2):  # it is taken into the store, and there it stays
        assert obtain(str(theirs), store, guarded=True, say=said.append).path.read_bytes() == before
    guarded.unlink()
    assert obtain(str(theirs), store, guarded=True).path.read_bytes() == before


def test_of_another_archive_it_is_guarded_anew_and_another_file_is_left(tmp_path: Path) -> None:
    said = list[str]()
    guarded = guard(torch_archive(tmp_path, FUNCTION), audit=0.5)
    theirs = torch_archive(tmp_path, FUNCTION + "\nother = 1\n")
    assert proof_of(obtain(str(theirs), tmp_path, guarded=True, say=said.append).path) == GuardProof()
    assert "anew" in said[-1]
    shutil.copyfile(project.PACKAGE.parent / "tests" / "fixtures" / "sums-0.2.0.mar", guarded)
    before = guarded.read_bytes()
    with pytest.raises(SlotwiseError, match="is there already, and no guarded archive"):
        obtain(str(theirs), tmp_path, guarded=True)
    with pytest.raises(SlotwiseError, match="is there already, and no guarded archive"):
        guard(theirs)
    assert guarded.read_bytes() == before
    assert proof_of(guard(theirs, guarded)) == GuardProof()  # who names it means it
