"""What a build proves of a network: which mix rows, what it says of them, and that their answers are nobody else's."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from slotwise.archive.build import build
from slotwise.archive.inspection import inspect
from slotwise.cli import build_app
from slotwise.errors import SlotwiseError
from slotwise.worker.separability.proof import caller, settled
from slotwise.worker.separability.verdict import Verdict
from tests.worker.serving import Served

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


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))


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
    assert "mixed on any engine: nobody knows whether mates change a row: when it is tried, it ends the worker (3)" in (
        capsys.readouterr().err
    )
    served = Served.of(archive, {}, batch_size=1)
    assert served.ask([rows(1)[0].tobytes()])[0].code == 200
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slotwise.worker.separability.proof.proven", lambda *args, **options: pytest.fail("it is tried"))
        served.handler.settings = served.handler.settings.but(batch_size=8)
        verdict = settled(served.handler, caller(served.handler), served.model_dir)
    assert verdict.separable is None
