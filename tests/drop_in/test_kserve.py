"""KServe's runtime for TorchServe with our image: what KServe makes of it is valid, and its command line serves a folder."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from slotwise import __version__
from slotwise.profiles.ports import Ports
from tests.drop_in.stores import archive
from tests.k8s.manifests import ROOT
from tests.k8s.rules import fits
from tests.k8s.test_kserve import loaded, workload
from tests.support.deployments import deployed

SNAPSHOT = {
    "name": "startup.cfg",
    "modelCount": 1,
    "models": {
        "enveloped": {
            "1.0": {
                "defaultVersion": True,
                "marName": "enveloped.mar",
                "minWorkers": 1,
                "maxWorkers": 5,
                "batchSize": 4,
                "maxBatchDelay": 10,
                "responseTimeout": 120,
            }
        }
    },
}
CALLS = {  # by the envelope that KServe names for the protocol: a call, and what the handler got of it
    "kserve": (
        "/v1/models/enveloped:predict",
        {"instances": [{"data": "a"}, {"data": "b"}]},
        {"predictions": [{"got": {"data": "a"}}, {"got": {"data": "b"}}]},
    ),
    "kservev2": (
        "/v2/models/enveloped/infer",
        {"id": "one", "inputs": [{"name": "x", "shape": [2], "datatype": "INT64", "data": [1, 2]}]},
        None,
    ),
}


def container() -> Any:
    (one,) = loaded("torchserve")["spec"]["containers"]
    return one


def test_what_kserve_makes_of_it_is_valid() -> None:
    page = (ROOT / "docs" / "kserve.md").read_text("utf-8")
    service = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])  # TorchServe's own
    made = workload(service, "torchserve")
    kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)
    assert fits([made]) == []
    assert container()["image"] == f"slotwise-torchserve:{__version__}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("envelope", CALLS)
def test_its_command_line_serves_a_folder_of_kserves(tmp_path: Path, envelope: str, program: str) -> None:
    """Ours, and with the old runtime TorchServe: the folder stays as it is."""
    pytest.importorskip("ts")
    archive(tmp_path / "models" / "model-store", "enveloped", "enveloped")
    free = Ports.free()
    ports = replace(free, management=free.inference)  # as KServe's own examples have them: 8085 is both
    lines = ("enable_envvars_config=true", "enable_metrics_api=true", f"model_snapshot={json.dumps(SNAPSHOT)}")
    (variable,) = container()["env"]
    assert variable["value"] == "{{.Labels.serviceEnvelope}}"
    environ = {variable["name"]: envelope}
    word, *options = container()["args"]
    assert (word, options[:2]) == ("torchserve", ["--start", "--foreground"])
    assert options[-2:] == ["--model-store=/mnt/models/model-store", "--ts-config=/mnt/models/config/config.properties"]
    with deployed(
        program, tmp_path / "d", tmp_path / "models" / "model-store", lines, options[2:-2], environ, ports=ports
    ) as deployment:
        deployment.wait_ready("enveloped")
        path, content, due = CALLS[envelope]
        headers = {"content-type": "application/json"}
        answer = deployment.asked("POST", deployment.inference + path, content=json.dumps(content).encode(), headers=headers)
        assert answer.status_code == 200
        if due is None:
            assert answer.json()["id"] == "one"
            assert answer.json()["model_name"] == "enveloped"
        else:
            assert answer.json() == due
        assert deployment.asked("GET", f"{deployment.inference}/ping").json() == {"status": "Healthy"}
        assert deployment.call("GET", "/models/enveloped").json()[0]["batchSize"] == 4
