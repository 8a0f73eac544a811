"""`slotwise export triton --native`: the graph alone, with a configuration that Triton's own message type takes.

There is no Triton with a backend for ONNX on the machines that run this: the graph is run by ONNX Runtime itself.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.build import build
from slotwise.archive.inspection import inspect
from slotwise.archive.triton.native import export_native
from slotwise.cli import build_app
from slotwise.errors import SlotwiseError
from slotwise.worker.separability.about import About
from slotwise.worker.separability.verdict import Verdict
from tests.archive.test_triton_repository import profile
from tests.server.conftest import build_handler

graphs = pytest.importorskip("tests.archive.graphs")
onnxruntime = pytest.importorskip("onnxruntime")
model_config = pytest.importorskip("tritonclient.grpc.model_config_pb2")
text_format = pytest.importorskip("google.protobuf.text_format")
from tests.archive.test_network_output import LOGITS, ROW, described, products  # noqa: E402

PROVEN = Verdict(True, sizes=(2, 3, 4, 8, 16), about=About("onnxruntime fp32 cpu", "onnxruntime", "any"))


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def info(tmp_path: Path) -> ArchiveInfo:
    products(described(tmp_path) / "net.onnx")
    return replace(inspect(build(tmp_path, tmp_path / "store")), separability=[PROVEN])


def config_of(folder: Path) -> Any:
    """Its config.pbtxt, as Triton reads it."""
    return text_format.Parse((folder / "config.pbtxt").read_text("utf-8"), model_config.ModelConfig())


def test_triton_is_told_of_the_graphs_own_tensors_and_of_the_profiles_batches(info: ArchiveInfo, tmp_path: Path) -> None:
    written = export_native(info, profile(batch_size=13, max_batch_delay_ms=0.15, initial_workers=5), tmp_path / "repository")
    config = config_of(written.folder)
    assert (config.name, config.platform, config.max_batch_size) == ("net", "onnxruntime_onnx", 13)
    (given,), (found,) = config.input, config.output
    assert (given.name, given.data_type, list(given.dims)) == ("x", model_config.TYPE_FP32, [4])
    assert (found.name, found.data_type, list(found.dims)) == ("y", model_config.TYPE_FP32, [3])
    assert list(config.dynamic_batching.preferred_batch_size) == [13]
    assert config.dynamic_batching.max_queue_delay_microseconds == 150
    assert [(group.count, group.kind) for group in config.instance_group] == [(5, model_config.ModelInstanceGroup.KIND_CPU)]
    assert (written.folder / found.label_filename).read_text() == "a\nb\nc\n"
    session = onnxruntime.InferenceSession(str(written.folder / "1" / "model.onnx"))
    outputs = session.run([found.name], {given.name: np.stack([ROW] * 13)})[0]
    assert outputs.tolist() == [pytest.approx(LOGITS.tolist(), abs=1e-5)] * 13
    assert written.notes == []


@pytest.mark.parametrize(
    ("verdicts", "size"),
    [
        ([], 1),
        ([replace(PROVEN, separable=None)], 1),
        ([replace(PROVEN, separable=False, most_rows=1, cause="mates change it")], 1),
        ([replace(PROVEN, separable=None, most_rows=4)], 4),
        ([replace(PROVEN, most_rows=8)], 8),
        ([replace(PROVEN, sizes=(2, 3, 4, 6))], 6),
        ([replace(PROVEN, separable=False, about=About("torch fp32 cpu")), PROVEN], 13),
        ([replace(PROVEN, about=About("openvino fp32 cpu")), replace(PROVEN, about=About("openvino bf16 cpu"))], 1),
    ],
)
def test_no_more_rows_run_at_once_than_are_proven_to_keep_apart(
    info: ArchiveInfo, tmp_path: Path, verdicts: list[Verdict], size: int
) -> None:
    written = export_native(replace(info, separability=verdicts), profile(batch_size=13), tmp_path / "repository")
    assert (config_of(written.folder).max_batch_size, written.batch_size) == (size, size)
    assert config_of(written.folder).HasField("dynamic_batching") == (size > 1)
    assert any("proven" in note for note in written.notes) == (size in (1, 4, 6))


def test_a_fixed_batch_is_no_batch_of_tritons(info: ArchiveInfo, tmp_path: Path) -> None:
    folder = tmp_path / "fixed"
    folder.mkdir()
    nodes = [graphs.node("MatMul", "x w", "y")]
    shapes = {"y": (graphs.FLOAT, [1, 3])}
    graphs.save(folder / "net.onnx", nodes, shapes, {"w": np.ones((4, 3), np.float32)}, [1, 4])
    data = (folder / "net.onnx").read_bytes()
    archive = tmp_path / "fixed.mar"
    with zipfile.ZipFile(archive, "w") as mar:
        mar.writestr("net.onnx", data)
    written = export_native(replace(info, path=archive), profile(batch_size=13), tmp_path / "repository")
    config = config_of(written.folder)
    assert (config.max_batch_size, list(config.input[0].dims), list(config.output[0].dims)) == (0, [1, 4], [1, 3])
    assert not config.HasField("dynamic_batching")
    assert "fixed" in written.notes[0]


def test_what_a_handler_did_is_said_to_be_left_to_the_clients(info: ArchiveInfo, tmp_path: Path) -> None:
    for changes, notes in (
        ({"input": {"mean": [0.13], "std": [0.31]}}, ["clients apply mean [0.13] and std [0.31] themselves"]),
        ({"handler": "image_classifier"}, ["clients send tensors: nobody decodes pictures"]),
        ({"handler": "own.py"}, ["own.py does not run there"]),
    ):
        changed = replace(info, model={**info.model, **changes})
        assert export_native(changed, profile(), tmp_path / "repository").notes == notes


def test_an_archive_without_a_graph_is_refused(tmp_path: Path) -> None:
    archive = inspect(build_handler("faults", tmp_path, tmp_path / "work"))
    with pytest.raises(SlotwiseError, match="carries no ONNX graph"):
        export_native(archive, profile(), tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize(
    "weights", [{"onnx": "missing"}, {"onnx": "slotwise.json"}, {"onnx": 7}, {"onnx": "model.toml"}, "text", [1]]
)
def test_an_archive_that_no_build_wrote_is_refused_in_one_line(info: ArchiveInfo, tmp_path: Path, weights: Any) -> None:
    with pytest.raises(SlotwiseError):
        export_native(replace(info, model={**info.model, "weights": weights}), profile(), tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


def test_what_a_graph_keeps_beside_itself_goes_along_and_nothing_from_elsewhere(info: ArchiveInfo, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    for location, fits in (("net.data", True), ("../net.data", False), ("/net.data", False)):
        graph = onnx.load(tmp_path / "net.onnx")
        tensor = graph.graph.initializer[0]
        onnx.external_data_helper.set_external_data(tensor, location)
        tensor.ClearField("raw_data")
        archive = tmp_path / "beside.mar"
        with zipfile.ZipFile(archive, "w") as mar:
            mar.writestr("net.onnx", graph.SerializeToString())
            mar.writestr("net.data", b"weights")
        changed = replace(info, path=archive)
        if fits:
            assert (export_native(changed, profile(), tmp_path / "repository").folder / "1/net.data").read_bytes() == b"weights"
        else:
            with pytest.raises(SlotwiseError, match="not beside it"):
                export_native(changed, profile(), tmp_path / "repository")


def test_the_command_says_what_it_wrote(info: ArchiveInfo, tmp_path: Path) -> None:
    out = tmp_path / "repository"
    options = ["--native", "--out", str(out), "--name", "other", "--json"]
    done = CliRunner().invoke(build_app(), ["export", "triton", str(info.path), *options])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["batch_size"] >= 1
    assert config_of(out / "other").name == "other"


def test_a_label_of_two_lines_is_refused(info: ArchiveInfo, tmp_path: Path) -> None:
    """Each later class would get its neighbour's name."""
    broken = replace(info, model={**info.model, "labels": ["a\nb", "c", "d"]})
    with pytest.raises(SlotwiseError, match="a label holds a line break"):
        export_native(broken, profile(), tmp_path / "repository")
    assert not (tmp_path / "repository" / "net").exists()


def test_a_graph_with_several_inputs_is_refused(info: ArchiveInfo, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(tmp_path / "net.onnx")
    graph.graph.input.append(onnx.helper.make_tensor_value_info("mask", onnx.TensorProto.FLOAT, ["n", 4]))
    archive = tmp_path / "several.mar"
    with zipfile.ZipFile(archive, "w") as mar:
        mar.writestr("net.onnx", graph.SerializeToString())
    with pytest.raises(SlotwiseError, match="the graph has several inputs: x, mask"):
        export_native(replace(info, path=archive), profile(), tmp_path / "repository")
