"""KServe's runtime and services: against the schemas of their kinds, and what KServe makes of them against Kubernetes' own."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from slotwise import __version__
from slotwise.frontend.frontend import GatewayOptions
from tests.k8s.manifests import K8S, ROOT
from tests.k8s.rules import fits

SCHEMAS = json.loads((Path(__file__).parent / "kserve.schema.json").read_text("utf-8"))
CONTAINER = ("args", "env", "resources", "image", "volumeMounts", "readinessProbe", "livenessProbe", "securityContext")
OF_A_POD = ("tolerations", "nodeSelector", "affinity", "serviceAccountName", "securityContext", "terminationGracePeriodSeconds")


def loaded(name: str) -> Any:
    return yaml.safe_load((K8S / "kserve" / f"{name}.yaml").read_text("utf-8"))


def check(document: Any) -> None:
    """Raise where the document does not fit the schema of its kind."""
    kind = document["kind"].removeprefix("Cluster")
    schema = {"$ref": f"#/definitions/{kind}", "definitions": SCHEMAS["definitions"]}
    jsonschema.Draft7Validator(schema).validate(document)


def workload(service: Any, runtime: str = "runtime") -> Any:
    """The Deployment that KServe makes: the runtime's container, with what the service's model says of it."""
    spec, predictor = copy.deepcopy(loaded(runtime)["spec"]), service["spec"]["predictor"]
    container, model = spec["containers"][0], predictor["model"]
    container |= {key: model[key] for key in CONTAINER if key in model}
    if "runtimeVersion" in model:
        container["image"] = f"{container['image'].partition(':')[0]}:{model['runtimeVersion']}"
    container["volumeMounts"] += [{"name": "kserve-provision-location", "mountPath": "/mnt/models", "readOnly": True}]
    pod = {"containers": [container], "volumes": [*spec["volumes"], {"name": "kserve-provision-location", "emptyDir": {}}]}
    pod |= {key: predictor[key] for key in OF_A_POD if key in predictor}
    pod["automountServiceAccountToken"] = False  # the cluster's choice: a runtime cannot say it
    everywhere = ("runAsNonRoot", "seccompProfile")  # nor a pod's securityContext; of its only container it is as good
    pod["securityContext"] = {key: container["securityContext"][key] for key in everywhere}
    labels = {"app": service["metadata"]["name"]}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": service["metadata"]["name"]}, "spec": spec}


@pytest.mark.parametrize("name", ["runtime", "cpu", "cuda", "torchserve"])
def test_the_committed_files_fit_their_schemas(name: str) -> None:
    check(loaded(name))


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_what_kserve_makes_of_them_fits_together(name: str) -> None:
    service = loaded(name)
    made = workload(service)
    kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)
    assert fits([made]) == []
    container = made["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"slotwise:{__version__}{'-cuda' if name == 'cuda' else ''}"
    model, runtime = service["spec"]["predictor"]["model"], loaded("runtime")
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in {each["name"] for each in runtime["spec"]["supportedModelFormats"]}
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    assert service["spec"]["predictor"]["timeout"] >= GatewayOptions().timeout_s


def test_kserve_finds_the_container_by_its_name_and_the_gateway_by_its_port() -> None:
    (container,) = loaded("runtime")["spec"]["containers"]
    assert container["name"] == "kserve-container"
    ports = {container[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")}
    assert ports == {port["containerPort"] for port in container["ports"]} == {8000}


PREDICTOR = ("spec", "predictor")


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("runtime", ("spec", "protocolVersions"), ["v3"]),
        ("runtime", ("spec", "supportedModelFormats", 0, "autoselect"), True),
        ("runtime", ("spec", "securityContext"), {}),
        ("runtime", ("apiVersion",), "serving.kserve.io/v1beta1"),
        ("cpu", (*PREDICTOR, "model", "modelFormat"), "mar"),
        ("cpu", (*PREDICTOR, "model", "storageUri"), "models/digits.mar"),
        ("cpu", (*PREDICTOR, "model", "storageURI"), "s3://models/digits.mar"),
        ("cpu", (*PREDICTOR, "minreplicas"), 1),
        ("cpu", ("metadata", "name"), "Digits"),
    ],
)
def test_the_schema_sees_a_planted_fault(name: str, path: tuple[Any, ...], value: Any) -> None:
    document = loaded(name)
    check(document)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        check(document)


def test_the_page_shows_services_that_fit() -> None:
    """docs/kserve.md: TorchServe's own service and ours, and the kubectl lines name files that are there."""
    page = (ROOT / "docs" / "kserve.md").read_text("utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    assert [block["spec"]["predictor"]["model"].get("runtime") for block in blocks] == [None, "slotwise"]
    for block in blocks:
        check(block)
    assert all((ROOT / file).is_file() for file in re.findall(r"-f (\S+)", page))
