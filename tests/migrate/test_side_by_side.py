"""What was migrated answers as it did: each of the twenty that moves, on its own server and, migrated, on ours."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.build import build
from slotwise.migrate.deployment import migrate
from slotwise.migrate.sagemaker import migrate_sagemaker
from tests.migrate.twenty import TWENTY, Told, made
from tests.support.deployments import OURS, TORCHSERVE, deployed
from tests.worker.serving import Served

pytest.importorskip("torch")
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MOVE = [name for name, told in TWENTY.items() if told.verdict != "cannot" and "SageMaker" not in name]
TOOLKIT = ("sagemaker-inference==1.10.1", "sagemaker-pytorch-inference==2.0.25", "six")
ASK = """
import json, sys
sys.path[:0] = sys.argv[1:3]
from sagemaker_inference.transformer import Transformer
from sagemaker_pytorch_serving_container.default_pytorch_inference_handler import DefaultPytorchInferenceHandler

class Slot:
    def get_request_properties(self):
        return headers

class Context:
    system_properties = {"model_dir": sys.argv[3]}
    request_processor = [Slot()]
    def set_response_content_type(self, i, kind):
        self.kind = kind
    def set_response_status(self, **status):
        print(status, file=sys.stderr)

transformer, context, answers = Transformer(DefaultPytorchInferenceHandler()), Context(), []
for body, headers in json.loads(sys.argv[4]):
    (answer,) = transformer.transform([{"body": body.encode()}], context)
    if not hasattr(context, "kind"):
        raise SystemExit(answer)
    answers.append([answer if isinstance(answer, str) else answer.decode(), context.kind])
print(json.dumps(answers))
"""


def answers(program: str, place: Path, folder: Path, told: Told) -> list[Any]:
    """What the models of a deployment answer. Its files lie where it is started."""
    shutil.copytree(folder, place)
    with deployed(program, place, place / "model-store", told.lines, told.options, scheme=told.scheme) as deployment:
        for model in told.models:
            deployment.wait_ready(model)
        token = deployment.headers("inference")
        return [
            deployment.asked("POST", f"{deployment.inference}/predictions/{model}", content=body, headers=headers | token)
            for model in told.models
            for body, headers in told.bodies
        ]


@pytest.mark.server
@pytest.mark.parametrize("name", MOVE)
def test_it_answers_as_it_did(name: str, tmp_path: Path) -> None:
    folder, told = made(tmp_path / "was", name), TWENTY[name]
    migrate(folder, tmp_path / "is", "slotwise-torchserve")
    theirs = answers(TORCHSERVE, tmp_path / "a", folder, told)
    ours = answers(OURS, tmp_path / "b", tmp_path / "is", told)
    for before, after in zip(theirs, ours, strict=True):
        assert (after.status_code, after.content) == (before.status_code, before.content)
        assert before.status_code == 200


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("toolkit")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), *TOOLKIT]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("SageMaker's toolkit cannot be installed: its answers are NOT compared")
    return target


@pytest.mark.parametrize("name", [name for name in TWENTY if "SageMaker" in name])
def test_a_sagemaker_model_answers_as_with_its_toolkit(
    name: str, toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, told = made(tmp_path, name), TWENTY[name]
    asked = json.dumps([[body.decode(), headers] for body, headers in told.bodies])
    command = [sys.executable, "-c", ASK, str(toolkit), str(folder / "code"), str(folder), asked]
    theirs = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    migrate_sagemaker(folder, tmp_path / "is", "model")
    monkeypatch.delitem(sys.modules, "inference", raising=False)
    served = Served.of(build(tmp_path / "is", tmp_path / "store"), {})
    ours = served.ask([body for body, _ in told.bodies], [headers for _, headers in told.bodies])
    for (body, kind), after in zip(json.loads(theirs.splitlines()[-1]), ours, strict=True):
        assert (after.code, after.headers["content-type"]) == (200, kind)
        if kind == "application/json":
            assert json.loads(after.body) == json.loads(body)
        else:
            assert after.body.decode() == body
