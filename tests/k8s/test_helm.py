"""The Helm chart: rendered by Helm's own library, valid for three Kubernetes, and by default what the overlay cpu is."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.k8s.manifests import HAS_KUBECTL, K8S, Document, of_kind, resolved
from tests.k8s.rules import fits

pytestmark = pytest.mark.slow
chart = pytest.importorskip("helm_python.chart", reason="Helm's library is not installed (make full)")
validator = pytest.importorskip("kubernetes_validate")

FOLDER = K8S / "helm" / "slotwise"
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "mms": {"server": "mms", "profile": "ei", "autoscaling": {"inFlight": ""}},
    "fixed": {"autoscaling": {"enabled": False}, "replicas": 3, "networkPolicy": {"enabled": False}},
    "gpus": {"gpus": 2, "profile": "cuda", "nodeSelector": {"pool": "gpus"}, "tolerations": [{"operator": "Exists"}]},
    "closed": {
        "keys": {"secret": "our-keys"},
        "tls": {"secret": "our-tls"},
        "monitor": "ServiceMonitor",
        "monitorLabels": {"release": "prometheus"},
        "dashboards": True,
        "profileToml": (K8S.parent / "profiles" / "cpu.toml").read_text("utf-8"),
        "gatewayOptions": ["--access-log", "json"],
        "defaultModel": "digits",
    },
    "pods": {"monitor": "PodMonitor", "server": "mms"},
}
HAVE_NO_SCHEMA = ("ServiceMonitor", "PodMonitor")


def rendered(values: dict[str, Any], name: str = "slotwise") -> list[Document]:
    """The documents of a release."""
    texts = chart.Chart.load(FOLDER).render(values, name=name, namespace="slotwise").values()
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def test_helm_finds_nothing_to_say() -> None:
    found = chart.lint(FOLDER)
    assert [message["error"] for message in found["messages"]] == ["icon is recommended"]
    assert found["errors"] == []


@pytest.mark.parametrize("name", CASES)
def test_what_is_rendered_fits_together(name: str) -> None:
    documents = rendered(CASES[name], "my-release")
    known = [document for document in documents if document["kind"] not in HAVE_NO_SCHEMA]
    assert fits(known) == []


@pytest.mark.parametrize("version", ["1.30", "1.33", "1.37"])
def test_each_document_is_valid(version: str) -> None:
    for values in CASES.values():
        for document in rendered(values):
            if document["kind"] not in HAVE_NO_SCHEMA:
                validator.validate(document, version, strict=True)


@pytest.mark.skipif(not HAS_KUBECTL, reason="kubectl is not installed")
def test_by_default_it_is_the_overlay_cpu() -> None:
    ours, theirs = ({kind: list(plain(documents, kind)) for kind in KINDS} for documents in (rendered({}), resolved("cpu")))
    assert ours == theirs


KINDS = ("Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy", "ServiceAccount")


def plain(documents: list[Document], kind: str) -> Iterator[Any]:
    """A kind's documents without labels, and without what only one of the two has: the profile's file, and how it is named."""
    for document in sorted(of_kind(documents, kind), key=lambda one: str(one["metadata"]["name"])):
        one = copy.deepcopy(document)
        one["metadata"] = {"name": one["metadata"]["name"]}
        one = json.loads(json.dumps(one), object_hook=_without_labels)
        if kind == "Deployment":
            pod = one["spec"]["template"]["spec"]
            pod["volumes"] = [volume["name"] for volume in pod["volumes"] if volume["name"] != "settings"]
            for container in [*pod["initContainers"], *pod["containers"]]:
                container.pop("env", None)
                container.pop("imagePullPolicy", None)
                container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] != "settings"]
        yield one


def _without_labels(found: dict[str, Any]) -> dict[str, Any]:
    """Labels, what picks them, and defaults that are written out."""
    gone = ("labels", "matchLabels", "selector", "annotations", "labelSelector", "podSelector")
    keep = {key: value for key, value in found.items() if key not in gone or value == {"matchLabels": {"k8s-app": "kube-dns"}}}
    return {key: value for key, value in keep.items() if (key, value) != ("scheme", "HTTP")}


def test_keys_tls_and_metrics_are_what_the_values_say() -> None:
    documents = rendered(CASES["closed"])
    (deployment,) = of_kind(documents, "Deployment")
    gateway = deployment["spec"]["template"]["spec"]["containers"][1]
    assert gateway["args"] == [
        *("gateway", "--tls-cert", "/tls/tls.crt", "--tls-key", "/tls/tls.key"),
        *("--public", "metrics", "--access-log", "json"),
    ]
    assert gateway["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    (monitor,) = of_kind(documents, "ServiceMonitor")
    assert [each["path"] for each in monitor["spec"]["endpoints"]] == ["/metrics", "/metrics/server"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (service,) = of_kind(documents, "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    boards = [each for each in of_kind(documents, "ConfigMap") if each["metadata"]["labels"].get("grafana_dashboard")]
    assert {name for each in boards for name in each["data"]} == {file.name for file in (K8S / "grafana").glob("*.json")}
    assert all(json.loads(text)["title"] for each in boards for text in each["data"].values())
    (pods,) = of_kind(rendered(CASES["pods"]), "PodMonitor")
    assert [each["path"] for each in pods["spec"]["podMetricsEndpoints"]] == ["/metrics"]  # MMS has none of its own


@pytest.mark.parametrize(
    "values",
    [{"server": "tomcat"}, {"gpus": -1}, {"modells": ""}, {"monitor": "both"}, {"replicas": "two"}, {"keys": {"file": "x"}}],
)
def test_a_value_that_means_nothing_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"schema|specification"):
        rendered(values)
