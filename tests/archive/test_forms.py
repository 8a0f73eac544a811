"""Ordinary networks: any that runs in its training script serves in every form, and what cannot is known at build."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slotwise.archive.build import build
from slotwise.errors import SlotwiseError
from tests.worker.serving import Served

pytestmark = pytest.mark.usefixtures("own_home")

torch = pytest.importorskip("torch")

SIDE, LABELS = 12, ["a", "b", "c"]
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(3, 6, 3)
        self.two = nn.Conv2d(6, 4, 3)
        self.head = nn.Linear(4 * 8 * 8, 3)

    def forward(self, x):
        x = self.two(self.one(x).relu()).relu()
        return self.head(x.view(-1, 4 * 8 * 8))
"""
FORMS = {
    "state_dict": 'state_dict = "weights.pt"\nmodule = "net.py:Net"',
    "torchscript": 'torchscript = "model.pt"',
    "export": 'export = "model.pt2"',
    "onnx": 'onnx = "model.onnx"',
}


def described(folder: Path, weights: str, handler: str = "image_classifier", shape: tuple[int, ...] = (3, SIDE, SIDE)) -> None:
    """A model.toml with these [weights]."""
    text = f'name = "mine"\nhandler = "{handler}"\nlabels = {json.dumps(LABELS)}\n'
    text += f"[input]\nshape = {list(shape)}\nmean = [0.5, 0.5, 0.5]\nstd = [0.2, 0.2, 0.2]\n"
    (folder / "model.toml").write_text(f"{text}[weights]\n{weights}\n")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A network that views its activations as rows, saved in every form, as tutorials do it."""
    from slotwise.worker.engines.torch import build_module

    folder = tmp_path_factory.mktemp("mine")
    (folder / "net.py").write_text(NET)
    torch.manual_seed(0)
    net = build_module(folder / "net.py", "Net").eval()
    example = torch.rand(2, 3, SIDE, SIDE)
    axis = ({0: torch.export.Dim("batch", min=1, max=64)},)
    torch.save(net.state_dict(), folder / "weights.pt")
    torch.jit.script(net).save(str(folder / "model.pt"))
    torch.export.save(torch.export.export(net, (example,), dynamic_shapes=axis), folder / "model.pt2")
    torch.onnx.export(net, (example,), folder / "model.onnx", dynamic_shapes=axis, external_data=False, verbose=False)
    return folder, net


@pytest.fixture
def mine(network: tuple[Path, Any], tmp_path: Path) -> Path:
    """A folder of its own with links to the network's files."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for file in network[0].iterdir():
        (folder / file.name).symlink_to(file)
    return folder


def picture(seed: int) -> tuple[bytes, Any]:
    """A PNG, and the same as float32 [3, h, w], 0..1."""
    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, "PNG")
    return target.getvalue(), pixels.transpose(2, 0, 1).astype(np.float32) / 255


@pytest.mark.parametrize("handler", ["image_classifier", "tensor_classifier"])
@pytest.mark.parametrize("form", FORMS)
def test_a_network_that_views_its_activations_as_rows_serves(
    mine: Path, network: tuple[Path, Any], tmp_path: Path, form: str, handler: str
) -> None:
    described(mine, FORMS[form], handler)
    archive = build(mine, tmp_path / "store")
    assert json.loads(archive.with_name("mine.report.json").read_text())["measured"]["forms"][form]
    served = Served.of(archive, {}, batch_size=4)
    pairs = [picture(seed) for seed in range(4)]
    bodies = [png if handler == "image_classifier" else array.tobytes() for png, array in pairs]
    rows = torch.from_numpy((np.stack([array for _, array in pairs]) - 0.5) / np.float32(0.2)).contiguous()
    with torch.inference_mode():
        expected = network[1](rows).softmax(1).numpy()
    for group in (bodies, bodies[:1]):
        for i, answer in enumerate(served.ask(group)):
            assert answer.code == 200, answer.body
            found = [answer.value["probabilities"][label] for label in LABELS]
            assert np.allclose(found, expected[i], atol=0.03)


def test_channels_last_is_taken_where_it_gives_the_same_answers(mine: Path, tmp_path: Path) -> None:
    """The same network with flatten instead of view runs in both layouts."""
    described(mine, FORMS["state_dict"])
    (mine / "net.py").unlink()
    (mine / "net.py").write_text(NET.replace("x.view(-1, 4 * 8 * 8)", "x.flatten(1)"))
    fine = Served.of(build(mine, tmp_path / "one"), {"precision": "fp32"})
    assert fine.handler.engine.layout is torch.channels_last
    (mine / "net.py").write_text(NET)
    viewed = Served.of(build(mine, tmp_path / "two"), {"precision": "fp32"})
    assert viewed.handler.engine.layout is torch.contiguous_format
    body = picture(1)[0]
    assert fine.ask([body])[0].value["probabilities"] == pytest.approx(viewed.ask([body])[0].value["probabilities"], abs=1e-4)


def test_channels_last_that_answers_otherwise_is_dropped(mine: Path, tmp_path: Path) -> None:
    """A network that looks at its memory: runs in both layouts, with other answers."""
    described(mine, FORMS["state_dict"])
    (mine / "net.py").unlink()
    rows = "x.as_strided((x.shape[0], 4 * 8 * 8), (4 * 8 * 8, 1))"
    (mine / "net.py").write_text(NET.replace("x.view(-1, 4 * 8 * 8)", rows))
    served = Served.of(build(mine, tmp_path / "store"), {"precision": "fp32"})
    assert served.handler.engine.layout is torch.contiguous_format


@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_cannot_serve_is_one_line_at_build(mine: Path, tmp_path: Path, form: str) -> None:
    described(mine, FORMS[form], shape=(3, 13, 11))
    with pytest.raises(SlotwiseError) as raised:
        build(mine, tmp_path / "store")
    assert "\n" not in raised.value.message
    assert "input.shape" in f"{raised.value.message} {raised.value.hint}"
    assert not (tmp_path / "store").exists()


def test_every_form_is_run_not_only_the_one_that_auto_would_take(mine: Path, tmp_path: Path) -> None:
    (mine / "model.pt2").unlink()
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIDE * SIDE, 3))
    program = torch.export.export(net, (torch.zeros(4, 3, SIDE, SIDE),))  # its batch axis is fixed
    torch.export.save(program, mine / "model.pt2")
    described(mine, f"{FORMS['onnx']}\n{FORMS['export']}")
    with pytest.raises(SlotwiseError, match=r"model\.pt2 cannot serve on torch"):
        build(mine, tmp_path / "store")


@pytest.mark.parametrize("swapped", [False, True])
def test_two_forms_of_one_model_answer_alike_or_are_refused(mine: Path, tmp_path: Path, swapped: bool) -> None:
    """The graph was exported with its labels in another order: each form alone is fine."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    described(mine, f"{FORMS['state_dict']}\n{FORMS['onnx']}")
    if swapped:
        graph = onnx.load(mine / "model.onnx")
        head = next(one for one in graph.graph.node if graph.graph.output[0].name in one.output)
        head.output[0] = "before"
        graph.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2, 0]), "order"))
        graph.graph.node.append(onnx.helper.make_node("Gather", ["before", "order"], [graph.graph.output[0].name], axis=1))
        (mine / "model.onnx").unlink()
        onnx.save(graph, mine / "model.onnx")
        with pytest.raises(SlotwiseError, match=r"weights\.pt on torch and model\.onnx on onnxruntime .* differ by .*%"):
            build(mine, tmp_path / "store", prove=lambda *_: None)
    else:
        assert build(mine, tmp_path / "store", prove=lambda *_: None).is_file()


def test_scores_that_no_label_fits_are_said_at_build(mine: Path, tmp_path: Path) -> None:
    described(mine, FORMS["torchscript"])
    (mine / "model.toml").write_text((mine / "model.toml").read_text().replace('"c"]', '"c", "d"]'))
    with pytest.raises(SlotwiseError, match="3 scores, but there are 4 labels"):
        build(mine, tmp_path / "store")


def test_a_handler_of_its_own_may_feed_the_network_otherwise(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (mine / "own.py").write_text("def handle(data, context):\n    return data and ['fine'] * len(data)\n")
    described(mine, FORMS["torchscript"], "own.py", shape=(3, 5, 5))
    assert build(mine, tmp_path / "store").is_file()
    assert "model.pt cannot serve on torch" in capsys.readouterr().err
