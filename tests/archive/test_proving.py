"""What a build proves of a network: which mix rows, what it says of them, and that their answers are nobody else's."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from slotwise.archive.build import build
from slotwise.archive.build_proof import _key, ask_worker
from slotwise.archive.inspection import inspect
from slotwise.cli import build_app
from slotwise.errors import SlotwiseError
from slotwise.worker.separability.about import imported_versions
from slotwise.worker.separability.proof import caller, settled
from slotwise.worker.separability.verdict import Verdict
from tests.worker.serving import Served

pytestmark = pytest.mark.usefixtures("own_home")

TOML = 'name = "mixed"\nlabels = ["a", "b", "c"]\n[input]\nshape = [1, 4, 4]\n'
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(16, 3)

    def forward(self, x):
        norm = self.norm
        x = nn.functional.batch_norm(self.one(x), norm.running_mean, norm.running_var, training=True)
        return self.two(x.relu().flatten(1))
"""
HANDLER = """
import numpy as np
from slotwise.worker import BatchHandler

class Mixing(BatchHandler):
    def load(self, model_dir, settings):
        return lambda x: x

    def decode(self, body, headers):
        return [np.frombuffer(body, np.float32)]

    def collate(self, items):
        rows = np.stack(items)
        return (rows - rows.mean(0)) / (rows.std(0) + 1e-3)

handle = Mixing.entry_point()
"""


def state_dict(folder: Path) -> str:
    """BatchNorm in train mode, in a module's own words."""
    torch = pytest.importorskip("torch")
    from slotwise.worker.engines.torch import build_module

    (folder / "net.py").write_text(NET)
    torch.manual_seed(0)
    torch.save(build_module(folder / "net.py", "Net").state_dict(), folder / "weights.pt")
    return 'state_dict = "weights.pt"\nmodule = "net.py:Net"'


def exported(folder: Path) -> str:
    """A program that was exported before `eval()`."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 3)]
    axis = ({0: torch.export.Dim("batch", min=1, max=64)},)
    program = torch.export.export(torch.nn.Sequential(*layers).train(), (torch.rand(4, 1, 4, 4),), dynamic_shapes=axis)
    torch.export.save(program, folder / "model.pt2")
    return 'export = "model.pt2"'


def dynamic_int8(folder: Path) -> str:
    """A graph that is quantised with one scale a batch."""
    onnx = pytest.importorskip("onnx")
    quantization = pytest.importorskip("onnxruntime.quantization")
    draw = np.random.default_rng(0)
    layers = [draw.standard_normal(shape).astype(np.float32) for shape in ((16, 16), (16, 3))]
    nodes = [
        onnx.helper.make_node("Flatten", ["x"], ["flat"]),
        onnx.helper.make_node("MatMul", ["flat", "one"], ["hidden"]),
        onnx.helper.make_node("Relu", ["hidden"], ["active"]),
        onnx.helper.make_node("MatMul", ["active", "two"], ["y"]),
    ]
    weights = [onnx.numpy_helper.from_array(layer, name) for layer, name in zip(layers, ("one", "two"), strict=True)]
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", ["batch", 1, 4, 4]), ("y", ["batch", 3]))
    ]
    graph = onnx.helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, folder / "fp32.onnx")
    quantization.quantize_dynamic(folder / "fp32.onnx", folder / "model.onnx")
    return 'onnx = "model.onnx"'


def verdicts(archive: Path) -> dict[str, Verdict]:
    with zipfile.ZipFile(archive) as source:
        listed = json.loads(source.read("slotwise.json"))["separability"]
    return {verdict.about.engine: verdict for verdict in map(Verdict.from_json, listed)}


def rows(count: int) -> list[Any]:
    return list(np.random.default_rng(3).standard_normal((count, 16)).astype(np.float32))


@pytest.mark.parametrize("form", [state_dict, exported, dynamic_int8])
def test_a_network_that_mixes_rows_gives_everybody_their_own_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: Callable[[Path], str]
) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "model.toml").write_text(f'handler = "tensor_classifier"\n{TOML}[weights]\n{form(folder)}\n')
    archive = build(folder, tmp_path / "store")
    found = verdicts(archive)
    assert found
    assert all(verdict.separable is False or verdict.most_rows == 1 for verdict in found.values()), found
    assert "rows run one by one: " in capsys.readouterr().err
    served = Served.of(archive, {})
    assert not list(served.model_dir.glob(".separability.json")), "the verdict of the build is taken over"
    alone, *mates = [row.tobytes() for row in rows(8)]
    loud = (100 * rows(1)[0]).tobytes()
    expected = served.ask([alone])[0].body
    for batch in ([alone, *mates], [alone, loud], [alone, *[loud] * 7]):
        answers = served.ask(batch)
        assert [answer.code for answer in answers] == [200] * len(batch)
        assert answers[0].body == expected


def test_a_handler_that_mixes_rows_is_named_and_refused_where_a_proof_is_required(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "mixing.py").write_text(HANDLER)
    toml = f'handler = "mixing.py"\n{TOML}'
    (folder / "model.toml").write_text(toml)
    archive = build(folder, tmp_path / "store")
    (verdict,) = verdicts(archive).values()
    assert (verdict.separable, verdict.cause) == (False, "mixes rows: a batch of 2, loud mates")
    said = "mixed on function auto cpu: rows run one by one: mixes rows: a batch of 2, loud mates"
    assert said in capsys.readouterr().err
    told = CliRunner().invoke(build_app(), ["inspect", str(archive)]).stdout
    assert "rows on function auto cpu: rows run one by one: mixes rows: a batch of 2, loud mates (" in told
    (folder / "model.toml").write_text(f'separable = "required"\n{toml}')
    with pytest.raises(
        SlotwiseError, match="mixed requires that the rows of a batch are kept apart, but on function"
    ) as raised:
        build(folder, tmp_path / "other")
    assert raised.value.hint == 'with separable = "auto" in model.toml its rows run one by one'
    assert not (tmp_path / "other" / "mixed.mar").exists()


def test_what_was_proven_is_kept_with_the_archive_and_for_the_next_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "fine"
    folder.mkdir()
    (folder / "fine.py").write_text(HANDLER.replace("(rows - rows.mean(0)) / (rows.std(0) + 1e-3)", "rows"))
    (folder / "model.toml").write_text(f'separable = "required"\nhandler = "fine.py"\n{TOML}'.replace("mixed", "fine"))
    archive = build(folder, tmp_path / "store")
    (verdict,) = verdicts(archive).values()
    assert (verdict.separable, verdict.sizes) == (True, (2, 3, 4, 8, 16))
    assert "numpy " in verdict.about.version
    assert inspect(archive).separability == [verdict]
    monkeypatch.setattr("slotwise.archive.build_proof._prove", lambda folder, spec: pytest.fail("proven twice"))
    again = build(folder, tmp_path / "again")
    assert again.read_bytes() == archive.read_bytes()


def test_a_handler_that_cannot_be_loaded_here_is_not_proven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "mixing.py").write_text(HANDLER.replace("return lambda x: x", "raise KeyError('no')"))
    (folder / "model.toml").write_text(f'handler = "mixing.py"\n{TOML}')
    assert verdicts(build(folder, tmp_path / "store")) == {}
    assert "mixed auto auto: mixing.py, line 7: KeyError: 'no'" in capsys.readouterr().err


def test_a_handler_that_ends_its_process_is_tried_in_no_servers_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    ends = "return __import__('os')._exit(3) if len(rows) > 1 else rows"
    (folder / "mixing.py").write_text(HANDLER.replace("return (rows - rows.mean(0)) / (rows.std(0) + 1e-3)", ends))
    (folder / "model.toml").write_text(f'handler = "mixing.py"\n{TOML}')
    archive = build(folder, tmp_path / "store")
    assert "mixed on any engine: rows run one by one: when it is tried, it ends the worker (3)" in (capsys.readouterr().err)
    served = Served.of(archive, {}, batch_size=1)
    assert served.ask([rows(1)[0].tobytes()])[0].code == 200
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slotwise.worker.separability.proof.proven", lambda *args, **options: pytest.fail("it is tried"))
        served.handler.settings = served.handler.settings.but(batch_size=8)
        verdict = settled(served.handler, caller(served.handler), served.model_dir)
    assert verdict.separable is None


def own(folder: Path, collate: str, load: str = "return lambda x: x", head: str = "") -> Path:
    """A handler of the author's own that changes its rows in `collate`, with an example."""
    folder.mkdir(exist_ok=True)
    text = HANDLER.replace("return (rows - rows.mean(0)) / (rows.std(0) + 1e-3)", collate)
    (folder / "mixing.py").write_text(head + text.replace("return lambda x: x", load))
    (folder / "one.f32").write_bytes(rows(1)[0].tobytes())
    (folder / "model.toml").write_text(f'handler = "mixing.py"\nexamples = ["one.f32"]\n{TOML}')
    return folder


def test_a_proof_that_an_accident_has_ended_is_made_again(tmp_path: Path) -> None:
    accident = tmp_path / "accident"
    dies = f"__import__('os').path.exists({str(accident)!r}) and __import__('os').kill(__import__('os').getpid(), 9)"
    folder = own(tmp_path / "mixed", f"{dies}; return rows - rows.mean(0)")
    accident.touch()
    (verdict,) = verdicts(build(folder, tmp_path / "store")).values()
    assert (verdict.separable, verdict.most_rows) == (None, 1)
    accident.unlink()
    (verdict,) = verdicts(build(folder, tmp_path / "store")).values()
    assert (verdict.separable, verdict.most_rows) == (False, 1)


def test_a_proof_that_is_interrupted_has_ended_before_its_folder_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children: list[subprocess.Popen[str]] = []

    def interrupted(child: subprocess.Popen[str], **_: object) -> None:
        """As Popen's own at Ctrl-C: it has waited for a moment, and will wait no more."""
        children.append(child)
        child._sigint_wait_secs = 0  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask_worker(tmp_path, 4)
    assert [child.returncode for child in children] == [-signal.SIGKILL]


def test_what_a_handler_starts_does_not_hold_up_its_proof(tmp_path: Path) -> None:
    load = "__import__('subprocess').Popen(['sleep', '600']); return lambda x: x"
    began = time.monotonic()
    (verdict,) = verdicts(build(own(tmp_path / "mixed", "return rows", load), tmp_path / "store")).values()
    assert verdict.separable
    assert time.monotonic() - began < 300


def test_an_answer_that_depends_on_how_many_there_are_is_refuted(tmp_path: Path) -> None:
    (verdict,) = verdicts(build(own(tmp_path / "mixed", "return rows / len(rows)"), tmp_path / "store")).values()
    assert (verdict.separable, verdict.most_rows) == (False, 1)
    assert "whatever its mates are" in verdict.cause


def test_another_version_of_what_it_imports_is_another_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, folder = tmp_path / "site", tmp_path / "model"
    (library / "later").mkdir(parents=True)
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / "MAR-INF" / "MANIFEST.json").write_text('{"model": {"handler": "mine.py:handle"}}')
    (folder / "mine.py").write_text("import json, numpy, pytest\nfrom beside import x\n")
    (folder / "beside.py").write_text("def x():\n    import later.on\n    from nowhere import y\n")
    monkeypatch.syspath_prepend(str(library))
    found = []
    for text in ("a = 1", "a = 2"):
        (library / "later" / "__init__.py").write_text(text)
        found.append((_key(folder), imported_versions(folder)))
    (first, imported), (second, others) = found
    assert first != second
    assert [line.split()[0] for line in imported] == [line.split()[0] for line in others] == ["later", "pytest"]
    assert imported[1] == f"pytest {pytest.__version__}"


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("net.py", "from blocks import Norm\n"),  # a given handler does not import it: weights.module names it
        ("mine/layers.py", "def late():\n    import blocks.norm\n"),
        ("mine/blocks.py", "from . import blocks\nimport blocks\n"),  # not the one beside it
        ("stages/first/net.py", "import blocks\n"),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_another_version_of_what_any_module_of_the_archive_imports_is_another_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, text: str, listed: bool
) -> None:
    library, folder = tmp_path / "site", tmp_path / "model"
    for parent in (library, folder / "MAR-INF", (folder / place).parent, folder / "slotwise"):
        parent.mkdir(parents=True, exist_ok=True)
    (folder / place).write_text(text)
    (folder / "slotwise" / "ours.py").write_text("import pytest\n")
    if listed:
        (folder / "MAR-INF" / "DIGESTS.json").write_text(json.dumps({"files": {place: "", "slotwise/ours.py": ""}}))
        (folder / "blocks.py").write_text("installed = 'there by the server, for the archive'")
    monkeypatch.syspath_prepend(str(library))
    found = []
    for value in (1, 2):
        (library / "blocks.py").write_text(f"a = {value}")
        found.append((_key(folder), *imported_versions(folder)))
    assert [line.split()[0] for _, *lines in found for line in lines] == ["blocks", "blocks"]
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


def test_of_a_package_without_a_version_every_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, folder = tmp_path / "site", tmp_path / "model"
    (library / "blocks" / "inner").mkdir(parents=True)
    folder.mkdir()
    (folder / "net.py").write_text("from blocks.inner.norm import Norm\n")
    monkeypatch.syspath_prepend(str(library))
    found = []
    for file, text in (("__init__.py", "a"), ("inner/norm.py", "a"), ("inner/norm.py", "b"), ("inner/kernel.so", "abc")):
        (library / "blocks" / file).write_text(text)
        importlib.invalidate_caches()
        found += imported_versions(folder)
    assert [line.split()[0] for line in found] == ["blocks"] * 4
    assert len(set(found)) == 4
    (library / "blocks" / "__init__.py").unlink()
    importlib.invalidate_caches()
    assert imported_versions(folder) not in ([], [found[-1]]), "also one without a module of its own"


def test_of_a_package_that_is_edited_where_it_lies_every_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, folder = tmp_path / "site", tmp_path / "model"
    (library / "edited-1.0.dist-info").mkdir(parents=True)
    (library / "edited-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: edited\nVersion: 1.0\n")
    url = library / "edited-1.0.dist-info" / "direct_url.json"
    folder.mkdir()
    (folder / "net.py").write_text("import edited\n")
    monkeypatch.syspath_prepend(str(library))
    found = []
    for editable in (True, False):
        url.write_text(json.dumps({"url": "file:///src", "dir_info": {"editable": True} if editable else {}}))
        for text in ("a = 1", "a = 2"):
            (library / "edited.py").write_text(text)
            importlib.invalidate_caches()
            found += imported_versions(folder)
    assert found[2:] == ["edited 1.0"] * 2
    assert found[0] != found[1]


def test_what_a_handler_writes_beside_itself_is_not_packed(tmp_path: Path) -> None:
    writes = "(model_dir / 'compiled.bin').write_bytes(b'x'); return lambda x: x"
    archive = build(own(tmp_path / "mixed", "return rows", writes), tmp_path / "store")
    with zipfile.ZipFile(archive) as packed:
        assert "compiled.bin" not in packed.namelist()
    changes = "(model_dir / 'mixing.py').write_text('changed'); return lambda x: x"
    with pytest.raises(SlotwiseError, match=r"its handler changes mixing\.py"):
        build(own(tmp_path / "mixed", "return rows", changes), tmp_path / "store")
