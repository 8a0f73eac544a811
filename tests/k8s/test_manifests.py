"""The manifests fit together, and each planted fault is seen. No cluster and no network is needed."""

from __future__ import annotations

import copy
import re
import tomllib
from typing import Any

import pytest
import yaml

from slotwise import __version__
from slotwise.model_spec import load_spec
from slotwise.profiles import kubernetes
from tests.k8s import manifests
from tests.k8s.manifests import Document, containers, of_kind, pods
from tests.k8s.quantities import parse
from tests.k8s.rules import fits

needs_kubectl = pytest.mark.skipif(not manifests.HAS_KUBECTL, reason="kubectl is not here: overlays are NOT checked")


def test_base_fits_together() -> None:
    assert fits(manifests.base()) == []


@needs_kubectl
@pytest.mark.parametrize("overlay", manifests.OVERLAYS)
def test_overlay_fits_together(overlay: str) -> None:
    assert fits(manifests.resolved(overlay)) == []


TEXT_MODELS = ["captions", "translation"]
CHANGED = ("cuda", "ei", "text", "text-cuda")  # overlays with a target of their own
GONE = object()
POD = "Deployment.spec.template.spec"
HPA = "HorizontalPodAutoscaler.spec"
NAME = "app.kubernetes.io/name"

# What is put where in good manifests, and a word of what must be said about it.
FAULTS: dict[str, tuple[str, Any, str]] = {
    "selector of the service": (f"Service.spec.selector/{NAME}", "x", "matches no pod"),
    "selector of the workload": (f"Deployment.spec.selector.matchLabels/{NAME}", "x", "its own template"),
    "selector of the policy": (f"NetworkPolicy.spec.podSelector.matchLabels/{NAME}", "x", "matches no pod"),
    "port 80800": (f"{POD}.containers.gateway.ports.0.containerPort", 80800, "80800 is no port"),
    "service port 80800": ("Service.spec.ports.0.port", 80800, "80800 is no port"),
    "dangling HPA target": (f"{HPA}.scaleTargetRef.name", "x", "which is not there"),
    "unknown apiVersion": ("HorizontalPodAutoscaler.apiVersion", "autoscaling/v2beta2", "unknown apiVersion"),
    "somebody else's apiVersion": ("Deployment.apiVersion", "apps.example.com/v1", "apiVersion"),
    "no apiVersion": ("Service.apiVersion", GONE, "unknown apiVersion"),
    "min > max": (f"{HPA}.minReplicas", 11, "minReplicas 11 > maxReplicas 10"),
    "2GiB": (f"{POD}.containers.server.resources.limits.memory", "2GiB", "'2GiB' is no quantity"),
    "volume of 2GiB": (f"{POD}.volumes.state.emptyDir.sizeLimit", "2GiB", "'2GiB' is no quantity"),
    "missing volume": (f"{POD}.volumes.tmp", GONE, "'tmp' is mounted but not declared"),
    "unused volume": (f"{POD}.volumes.tmp.name", "spare", "'spare' is never mounted"),
    "missing ConfigMap": ("ConfigMap.metadata.name", "x", "ConfigMap 'slotwise-settings' is not there"),
    "missing key": (f"{POD}.containers.server.env.PROFILE.valueFrom.configMapKeyRef.key", "X", "has no key 'X'"),
    "request > limit": (f"{POD}.containers.server.resources.requests.memory", "4Gi", "more memory than its limit"),
    "request > limit, other units": (f"{POD}.containers.gateway.resources.requests.cpu", "1001m", "more cpu than its"),
    "budget with both fields": ("PodDisruptionBudget.spec.minAvailable", 1, "has minAvailable and maxUnavailable"),
    "budget with neither field": ("PodDisruptionBudget.spec.maxUnavailable", GONE, "has none"),
    "budget that blocks": ("PodDisruptionBudget.spec.maxUnavailable", 0, "no eviction"),
    "undefined port of a probe": (f"{POD}.containers.gateway.readinessProbe.httpGet.port", "htpp", "readinessProbe asks"),
    "undefined port of the service": ("Service.spec.ports.0.targetPort", "htpp", "targetPort 'htpp'"),
    "undefined port of the policy": ("NetworkPolicy.spec.ingress.0.ports.0.port", "htpp", "'htpp' in"),
    "nothing to measure": (f"{HPA}.metrics.1.containerResource.container", "x", "requests none"),
    "replicas set twice": ("Deployment.spec.replicas", 3, "undo the scaling"),
    "misspelt key": (f"{POD}.containers.server.livenesProbe", {}, "livenesProbe"),
    "twice the same": ("NetworkPolicy.metadata.name", "slotwise-fetch", "2 times"),
    "unknown account": (f"{POD}.serviceAccountName", "x", "no ServiceAccount"),
    "a token": (f"{POD}.automountServiceAccountToken", GONE, "token"),
    "a root filesystem to write": (f"{POD}.containers.server.securityContext.readOnlyRootFilesystem", GONE, "written"),
    "capabilities": (f"{POD}.initContainers.models.securityContext.capabilities", GONE, "keeps capabilities"),
    "any image": (f"{POD}.containers.server.image", "registry:5000/slotwise", "no fixed tag"),
    "no limits": (f"{POD}.containers.server.resources.limits", GONE, "has no limits"),
}


def put(documents: list[Document], path: str, value: object) -> None:
    """Put `value` at KIND.key.name-or-index.key; GONE takes away what is there. A last key with dots follows a slash."""
    dotted, _, key = path.partition("/")
    steps = [*dotted.split("."), *([key] if key else [])]
    place: Any = {document["kind"]: document for document in reversed(documents)}
    for step in steps[:-1]:
        place = place[_index(place, step)]
    last = _index(place, steps[-1])
    if value is GONE:
        del place[last]
    else:
        place[last] = value


def _index(place: Any, step: str) -> Any:
    if isinstance(place, dict):
        return step
    return int(step) if step.isdigit() else next(i for i, entry in enumerate(place) if entry["name"] == step)


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_caught(name: str) -> None:
    path, value, expected = FAULTS[name]
    documents = copy.deepcopy(manifests.base())
    put(documents, path, value)
    found = fits(documents)
    assert any(expected in fault for fault in found), found


@needs_kubectl
def test_faults_in_an_overlay_are_caught_after_resolving() -> None:
    documents = manifests.resolved("cuda")
    put(documents, f"{POD}.containers.server.resources.limits/nvidia.com/gpu", 0)
    assert any("more nvidia.com/gpu" in fault for fault in fits(documents))


@pytest.mark.parametrize(
    ("text", "value"), [("500m", "0.5"), ("2Gi", 2**31), ("1e3", 1000), ("1E", 10**18), (2, 2), (".5", "0.5"), ("1k", 1000)]
)
def test_quantity(text: object, value: object) -> None:
    assert parse(text) == parse(str(value))


@pytest.mark.parametrize("text", ["2GiB", "2gi", "", "m", "1 Gi", "two", None, True, "1mi"])
def test_not_a_quantity(text: object) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_images_carry_this_version() -> None:
    tags = {entry["image"] for _, _, pod in pods(manifests.base()) for entry in containers(pod)}
    assert tags == {f"slotwise:{__version__}"}
    for overlay in CHANGED:
        text = (manifests.K8S / "overlays" / overlay / "kustomization.yaml").read_text("utf-8")
        assert re.findall(r"newTag: ([\d.]+)", text) == [__version__]


def test_settings_are_the_profiles() -> None:
    files = kubernetes.rendered(manifests.ROOT)
    profiles = ["k8s/base/cpu.toml", "k8s/overlays/cuda/cuda.toml", "k8s/overlays/ei/ei.toml"]
    targets = ["k8s/base/hpa.yaml", *(f"k8s/overlays/{overlay}/kustomization.yaml" for overlay in CHANGED)]
    assert sorted(files) == sorted([*profiles, *targets, kubernetes.RAY_SERVICE])
    assert {path: (manifests.ROOT / path).read_text("utf-8") for path in files} == files


@needs_kubectl
@pytest.mark.parametrize("overlay", manifests.OVERLAYS)
def test_a_pod_is_full_when_each_of_its_workers_has_a_full_batch(overlay: str) -> None:
    documents = manifests.resolved(overlay)
    settings = next(d["data"] for d in of_kind(documents, "ConfigMap") if "PROFILE" in d["data"])
    profile = settings["PROFILE"]
    assert profile == {"text": "cpu", "text-cuda": "cuda"}.get(overlay, overlay)
    wanted = [tomllib.loads(settings[f"{profile}.toml"])["registration"]]
    if overlay.startswith("text"):  # what its models ask for themselves; a pod is full when one of them is
        wanted = [wanted[0] | load_spec(manifests.ROOT / "models" / name).profiles.get(profile, {}) for name in TEXT_MODELS]
    metric = of_kind(documents, "HorizontalPodAutoscaler")[0]["spec"]["metrics"][0]["pods"]
    assert int(metric["target"]["averageValue"]) == min(each["batch_size"] * each["initial_workers"] for each in wanted)


@needs_kubectl
@pytest.mark.parametrize("overlay", ["text", "text-cuda"])
def test_the_text_overlays_serve_what_their_image_carries(overlay: str) -> None:
    documents = manifests.resolved(overlay)
    models = next(d["data"]["models.toml"] for d in of_kind(documents, "ConfigMap") if "models.toml" in d["data"])
    files = [entry["file"] for entry in tomllib.loads(models)["archive"]]
    assert files == [f"/models/{name}.mar" for name in TEXT_MODELS]
    built = yaml.safe_load((manifests.ROOT / "compose.text.yaml").read_text("utf-8"))["services"]["slotwise"]
    assert built["build"]["args"]["MODELS"].split() == TEXT_MODELS
    assert {c["image"].partition(":")[0] for _, _, pod in pods(documents) for c in containers(pod)} == {built["image"]}


@needs_kubectl
def test_the_text_overlay_for_gpus_has_one_pod_or_two_by_load_memory_and_gpu() -> None:
    (spec,) = (document["spec"] for document in of_kind(manifests.resolved("text-cuda"), "HorizontalPodAutoscaler"))
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 2)
    names = [metric.get("containerResource", {}).get("name") or metric["pods"]["metric"]["name"] for metric in spec["metrics"]]
    assert names == ["slotwise_pod_in_flight_requests", "cpu", "memory", "slotwise_pod_gpu_utilization"]
    adapter = yaml.safe_load((manifests.K8S / "prometheus" / "adapter.yaml").read_text("utf-8"))["rules"]
    assert {rule["name"]["as"] for rule in adapter} == {name for name in names if name.startswith("slotwise")}
    (server,) = (c for _, _, pod in pods(manifests.resolved("text-cuda")) for c in containers(pod) if c["name"] == "server")
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 1


@needs_kubectl
def test_the_rendered_file_is_what_its_overlay_renders() -> None:
    kept = list(yaml.safe_load_all((manifests.K8S / "deployment.yaml").read_text("utf-8")))
    assert kept == manifests.resolved("text-cuda"), "kubectl kustomize k8s/overlays/text-cuda, below the file's first lines"


def test_the_rendered_file_fits_together_without_kubectl() -> None:
    assert fits(list(yaml.safe_load_all((manifests.K8S / "deployment.yaml").read_text("utf-8")))) == []
