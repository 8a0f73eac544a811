"""Archives as TorchServe's own examples and tests are written, on a TorchServe as installed and on ours: the same answers."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.drop_in.one_batch import in_one_batch
from tests.drop_in.stores import archive
from tests.server.guarded_models import fitting
from tests.support.deployments import OURS, TORCHSERVE, Deployment, deployed

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

NETWORK = """
import torch

class Digits(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 10))
"""
EXAMPLE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 8, 3, 1)
        self.fc1 = torch.nn.Linear(8 * 13 * 13, 10)

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        return torch.log_softmax(self.fc1(torch.flatten(x, 1)), dim=1)
"""
MODELS = ("digits", "mnist", "traced", "graph", "micro")
SETTINGS = {
    name: {"1.0": {"defaultVersion": True, "marName": f"{name}.mar", "batchSize": 8, "maxBatchDelay": 100}} for name in MODELS
}
LINES = ("default_workers_per_model=1", "metrics_mode=prometheus", f"models={json.dumps(SETTINGS)}")


def torch_store(store: Path, work: Path) -> None:
    """An image classifier of a network and its weights, TorchScript, ONNX, and micro-batches."""
    work.mkdir()
    (work / "model.py").write_text(NETWORK)
    net = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 10)).eval()
    torch.manual_seed(0)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter)
    torch.save(net.state_dict(), work / "weights.pt")
    (work / "index_to_name.json").write_text(json.dumps({str(i): f"digit {i}" for i in range(10)}))
    weights = {"model_file": work / "model.py", "serialized_file": work / "weights.pt"}
    extra = [work / "index_to_name.json", *fitting(work / "needs").glob("*.py")]
    archive(store, "digits", "image_classifier", **weights, extra_files=",".join(map(str, extra)))
    (work / "mnist").mkdir()
    (work / "mnist" / "mnist.py").write_text(EXAMPLE)
    module: dict[str, Any] = {"__name__": "mnist"}
    exec(EXAMPLE, module)
    torch.save(module["Net"]().state_dict(), work / "mnist" / "mnist_cnn.pt")
    example = {"model_file": work / "mnist" / "mnist.py", "serialized_file": work / "mnist" / "mnist_cnn.pt"}
    archive(store, "mnist", "mnist_handler", **example, extra_files=",".join(map(str, extra[1:])))
    linear = torch.nn.Linear(4, 3).eval()
    torch.jit.trace(linear, torch.zeros(1, 4)).save(str(work / "traced.pt"))
    archive(store, "traced", "tensors", serialized_file=work / "traced.pt")
    named = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
    torch.onnx.export(linear, (torch.zeros(2, 4),), str(work / "graph.onnx"), dynamo=False, **named)
    archive(store, "graph", "tensors", serialized_file=work / "graph.onnx")
    archive(store, "micro", "micro")
    archive(store, "enveloped", "enveloped")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same store twice."""
    place = tmp_path_factory.mktemp("s")
    torch_store(place / "theirs", place / "work")
    shutil.copytree(place / "theirs", place / "ours")
    return place / "theirs", place / "ours"


@contextmanager
def both(stores: tuple[Path, Path], place: Path, models: Sequence[str], *lines: str) -> Iterator[tuple[Deployment, Deployment]]:
    options = ("--ncs", "--models", ",".join(f"{model}.mar" for model in models))
    with (
        deployed(TORCHSERVE, place / "a", stores[0], (*LINES, *lines), options) as theirs,
        deployed(OURS, place / "b", stores[1], (*LINES, *lines), options) as ours,
    ):
        for deployment in (theirs, ours):
            for model in models:
                deployment.wait_ready(model)
        yield theirs, ours


@pytest.fixture(scope="module")
def pair(stores: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, Deployment]]:
    with both(stores, tmp_path_factory.mktemp("d"), MODELS) as deployments:
        yield deployments


def digit(i: int) -> bytes:
    """A grey picture as MNIST has them."""
    data = io.BytesIO()
    Image.linear_gradient("L").resize((28, 28)).rotate(40 * i).save(data, "PNG")
    return data.getvalue()


def picture(i: int) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (64, 64), (20 * i, 255 - 20 * i, 60)).save(data, "PNG")
    return data.getvalue()


BODIES: dict[str, tuple[list[bytes], bytes]] = {  # good ones, and a bad one
    "digits": ([picture(i) for i in range(7)], b"this is no picture"),
    "mnist": ([digit(i) for i in range(7)], b"this is no picture"),
    "traced": ([json.dumps([i, i + 1, 2, 3]).encode() for i in range(7)], b"[1, 2"),
    "graph": ([json.dumps([i, i + 1, 2, 3]).encode() for i in range(7)], b"[1, 2"),
    "micro": ([str(i).encode() for i in range(7)], b"seven"),
}


def ask(deployment: Deployment, path: str, body: bytes, **headers: str) -> httpx.Response:
    about = {**deployment.headers("inference"), **{name.replace("_", "-"): value for name, value in headers.items()}}
    return deployment.asked("POST", deployment.inference + path, headers=about, content=body)


def close(one: Any, other: Any) -> bool:
    """Whether two answers are the same, but for the last digits of numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == other or (isinstance(one, float) and isinstance(other, float) and one == pytest.approx(other, abs=1e-5))


@pytest.mark.parametrize("model", MODELS)
def test_alone_the_answers_are_the_same(pair: tuple[Deployment, Deployment], model: str) -> None:
    for body in BODIES[model][0]:
        theirs, ours = (ask(one, f"/predictions/{model}", body) for one in pair)
        assert (theirs.status_code, ours.status_code) == (200, 200)
        assert close(theirs.json(), ours.json())
        assert theirs.headers.get("content-type") == ours.headers.get("content-type")


@pytest.mark.parametrize("path", [*(f"/predictions/{model}" for model in MODELS), "/explanations/digits"])
def test_one_bad_of_eight_costs_nobody_else_an_answer(pair: tuple[Deployment, Deployment], path: str) -> None:
    model = path.rpartition("/")[2]
    good, bad = BODIES[model]
    alone = [ask(pair[0], path, body).json() for body in good]
    for place in (0, 3, 7):
        bodies = [*good[:place], bad, *good[place:]]
        answers = in_one_batch(pair[1], model, lambda body: ask(pair[1], path, body), good[0], bodies)
        refused = answers.pop(place)
        assert [answer.status_code for answer in answers] == [200] * 7
        assert all(close(one, answer.json()) for one, answer in zip(alone, answers, strict=True))
        assert refused.status_code in (400, 500)
        assert set(refused.json()) == {"code", "type", "message"}


def test_explanations_are_the_same(pair: tuple[Deployment, Deployment]) -> None:
    pytest.importorskip("captum")
    for path in ("/explanations/digits", "/explanations/digits/1.0"):
        theirs, ours = (ask(one, path, picture(3)) for one in pair)
        assert (theirs.status_code, ours.status_code) == (200, 200), (theirs.text, ours.text)
        assert close(theirs.json(), ours.json())


ENVELOPES = {
    "json": [
        ("/predictions/enveloped", {"instances": [{"a": 1}]}),
        ("/predictions/enveloped", {"instances": [[1, 2], [3, 4]]}),
    ],
    "kserve": [("/v1/models/enveloped:predict", {"instances": [{"data": 1}, {"data": 2}]})],
    "kservev2": [
        (
            "/v2/models/enveloped/infer",
            {"id": "one", "inputs": [{"name": "x", "shape": [2], "datatype": "INT64", "data": [1, 2]}]},
        )
    ],
}


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_behind_an_envelope_the_answers_are_the_same(stores: tuple[Path, Path], tmp_path: Path, envelope: str) -> None:
    with both(stores, tmp_path, ["enveloped"], f"service_envelope={envelope}") as pair:
        for path, content in ENVELOPES[envelope]:
            body = json.dumps(content).encode()
            theirs, ours = (ask(one, path, body, content_type="application/json") for one in pair)
            assert (theirs.status_code, _without_id(theirs)) == (ours.status_code, _without_id(ours))
            assert ours.status_code == 200


def _without_id(answer: httpx.Response) -> Any:
    try:
        content = answer.json()
    except ValueError:
        return answer.text
    return {key: value for key, value in content.items() if key != "id"} if isinstance(content, dict) else content
