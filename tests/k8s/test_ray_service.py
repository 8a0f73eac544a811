"""The RayService that a profile renders to, against the schema of its kind; its pods against Kubernetes' own."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from slotwise import __version__
from slotwise.profiles.kubernetes import RAY_SERVICE, ray_service
from slotwise.profiles.profile import load_profile
from tests.k8s.manifests import ROOT

SCHEMA = json.loads((Path(__file__).parent / "rayservice.schema.json").read_text("utf-8"))
NEWEST = kubernetes_validate.latest_version()


def documents(**changes: str) -> tuple[Any, Any]:
    """The RayService and its NetworkPolicy, for the cpu profile with these changes."""
    text = (ROOT / RAY_SERVICE).read_text("utf-8")
    service, policy = yaml.safe_load_all(ray_service(text, load_profile("cpu", changes, {}, cores=0)))
    return service, policy


def pods(service: Any) -> list[Any]:
    cluster = service["spec"]["rayClusterConfig"]
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def test_the_committed_file_fits_its_schema() -> None:
    service, policy = yaml.safe_load_all((ROOT / RAY_SERVICE).read_text("utf-8"))
    jsonschema.validate(service, SCHEMA)
    kubernetes_validate.validate(policy, NEWEST, strict=True)
    assert f"\nray=={service['spec']['rayClusterConfig']['rayVersion']}\n" in (ROOT / "constraints.txt").read_text("utf-8")
    for pod in pods(service):
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
        kubernetes_validate.validate(document, NEWEST, strict=True)
        assert pod["securityContext"]["runAsNonRoot"]
        assert [container["image"] for container in pod["containers"]] == [f"slotwise:{__version__}-ray"]
        assert all(container["securityContext"]["capabilities"] == {"drop": ["ALL"]} for container in pod["containers"])


def test_token_authentication_is_on_and_the_serve_config_names_the_applications() -> None:
    service, _ = documents()
    assert service["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    assert [one["route_prefix"] for one in config["applications"]] == ["/", "/predictions/digits"]
    assert {one["import_path"].partition(":")[0] for one in config["applications"]} == {"slotwise.server.ray.app"}


def test_the_profile_decides_how_many_pods_there_are() -> None:
    group = documents(num_replicas="6", num_cpus="1", num_gpus="0.5")[0]["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    assert (group["replicas"], group["maxReplicas"]) == (3, 3)
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    service, _ = documents(min_replicas="2", max_replicas="8", num_cpus="2")
    group = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    assert (group["minReplicas"], group["maxReplicas"]) == (2, 8)
    assert service["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("rayClusterConfig", "authOptions", "mode"), "none"),
        (("rayClusterConfig", "workerGroupSpecs", 0, "minReplica"), 1),
        (("rayClusterConfig", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
        (("upgradeStrategy", "type"), "Rolling"),
        (("serveConfig",), "x"),
    ],
)
def test_the_schema_sees_a_planted_fault(path: tuple[Any, ...], value: Any) -> None:
    service = copy.deepcopy(documents()[0])
    place = service["spec"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(service, SCHEMA)
