"""What a schema cannot see: whether the manifests fit together. Each rule yields one sentence for each fault.

fits(documents)   selectors, targets, ports, volumes, quantities: would it work
strict(documents) the house's own wishes: restricted, read-only, no token, a fixed image
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests.k8s.manifests import Document, containers, named, of_kind, picks, pods
from tests.k8s.port_rules import ports
from tests.k8s.quantities import parse
from tests.k8s.security_rules import restricted

Faults = Iterator[str]
Rule = Callable[[list[Document]], Faults]


def fits(documents: list[Document]) -> list[str]:
    """Every way in which the documents do not fit together."""
    return [fault for rule in FITS for fault in rule(documents)]


def schema(documents: list[Document]) -> Faults:
    """Strictly against the newest schemas; a kind or version without one is a fault, not a warning."""
    import kubernetes_validate as validator

    for document in documents:
        where = f"{document.get('kind')}/{document.get('metadata', {}).get('name')}"
        try:
            validator.validate(document, validator.latest_version(), strict=True)
        except validator.ValidationError as error:
            yield f"{where}: {'.'.join(map(str, error.path))}: {error.message}"
        except (validator.SchemaNotFoundError, KeyError):
            yield f"{where}: unknown apiVersion or kind: {document.get('apiVersion')}"


def names_once(documents: list[Document]) -> Faults:
    keys = Counter((d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in documents)
    yield from (f"{kind}/{name} is there {count} times" for (kind, _, name), count in keys.items() if count > 1)


def selectors(documents: list[Document]) -> Faults:
    """Every selector picks some pod, and a workload's its own."""
    labels = [found for _, found, _ in pods(documents)]
    for workload in of_kind(documents, "Deployment", "StatefulSet", "DaemonSet"):
        own = workload["spec"]["template"]["metadata"].get("labels", {})
        if not picks(workload["spec"]["selector"]["matchLabels"], own):
            yield f"{named(workload)}: its selector does not match its own template's labels"
    for where, selector in _selectors(documents):
        if not selector or not any(picks(selector, found) for found in labels):
            yield f"{where}: the selector {selector} matches no pod"


def _selectors(documents: list[Document]) -> Iterator[tuple[str, dict[str, str]]]:
    for service in of_kind(documents, "Service"):
        yield named(service), service["spec"].get("selector", {})
    for budget in of_kind(documents, "PodDisruptionBudget"):
        yield named(budget), budget["spec"]["selector"].get("matchLabels", {})
    for policy in of_kind(documents, "NetworkPolicy"):
        yield named(policy), policy["spec"]["podSelector"].get("matchLabels", {})
    for name, _, pod in pods(documents):
        for spread in pod.get("topologySpreadConstraints", []):
            yield f"{name}: topology spread", spread["labelSelector"]["matchLabels"]


def autoscalers(documents: list[Document]) -> Faults:
    """The target is there and its number is nobody else's; min <= max; what is measured can be measured."""
    for scaler in of_kind(documents, "HorizontalPodAutoscaler"):
        spec, where = scaler["spec"], named(scaler)
        target = spec["scaleTargetRef"]
        found = [d for d in of_kind(documents, target["kind"]) if d["metadata"]["name"] == target["name"]]
        if not found or found[0]["apiVersion"] != target.get("apiVersion"):
            yield f"{where}: scales {target['kind']}/{target['name']}, which is not there"
            continue
        if spec.get("minReplicas", 1) > spec["maxReplicas"]:
            yield f"{where}: minReplicas {spec['minReplicas']} > maxReplicas {spec['maxReplicas']}"
        if "replicas" in found[0]["spec"]:
            yield f"{where}: {target['name']} sets replicas too; every apply would undo the scaling"
        by_name = {container["name"]: container for container in found[0]["spec"]["template"]["spec"]["containers"]}
        for metric in spec["metrics"]:
            asked = metric.get("containerResource") or metric.get("resource")
            for name in [asked["container"]] if asked and "container" in asked else list(by_name) if asked else []:
                if asked["name"] not in by_name.get(name, {}).get("resources", {}).get("requests", {}):
                    yield f"{where}: measures {asked['name']} of container {name!r}, which requests none"


def quantities(documents: list[Document]) -> Faults:
    """Every quantity can be read, and no request is above its limit."""
    for name, _, pod in pods(documents):
        for container in containers(pod):
            where, resources = f"{name}/{container['name']}", container.get("resources", {})
            read: dict[tuple[str, str], Any] = {}
            for kind, resource, text in ((k, r, t) for k in ("requests", "limits") for r, t in resources.get(k, {}).items()):
                try:
                    read[kind, resource] = parse(text)
                except ValueError as error:
                    yield f"{where}: {kind}.{resource}: {error}"
            for kind, resource in read:
                limit = read.get(("limits", resource))
                if kind == "requests" and limit is not None and read[kind, resource] > limit:
                    yield f"{where}: requests more {resource} than its limit"
        for volume in pod.get("volumes", []):
            for size in [volume.get("emptyDir", {}).get("sizeLimit")]:
                try:
                    parse(size if size is not None else "1")
                except ValueError as error:
                    yield f"{name}: volume {volume['name']}: {error}"


def volumes(documents: list[Document]) -> Faults:
    """Every mount has its volume, every volume its use, and every ConfigMap is there with the keys that are asked."""
    maps = {document["metadata"]["name"]: document.get("data", {}) for document in of_kind(documents, "ConfigMap")}
    for name, _, pod in pods(documents):
        declared = {volume["name"] for volume in pod.get("volumes", [])}
        used = {mount["name"] for container in containers(pod) for mount in container.get("volumeMounts", [])}
        yield from (f"{name}: volume {volume!r} is mounted but not declared" for volume in sorted(used - declared))
        yield from (f"{name}: volume {volume!r} is never mounted" for volume in sorted(declared - used))
        for config, key in _configs(pod):
            if config not in maps:
                yield f"{name}: ConfigMap {config!r} is not there"
            elif key is not None and key not in maps[config]:
                yield f"{name}: ConfigMap {config!r} has no key {key!r}"


def _configs(pod: Document) -> Iterator[tuple[str, str | None]]:
    """Every ConfigMap that a pod refers to, with the key where it asks for one."""
    for volume in pod.get("volumes", []):
        if "configMap" in volume:
            yield volume["configMap"]["name"], None
    for container in containers(pod):
        for source in container.get("envFrom", []):
            if "configMapRef" in source:
                yield source["configMapRef"]["name"], None
        for variable in container.get("env", []):
            reference = variable.get("valueFrom", {}).get("configMapKeyRef")
            if reference:
                yield reference["name"], reference["key"]


def budgets(documents: list[Document]) -> Faults:
    """Exactly one of the two numbers, and not one that blocks every eviction."""
    least = [scaler["spec"].get("minReplicas", 1) for scaler in of_kind(documents, "HorizontalPodAutoscaler")]
    for budget in of_kind(documents, "PodDisruptionBudget"):
        given = {key: budget["spec"][key] for key in ("minAvailable", "maxUnavailable") if key in budget["spec"]}
        if len(given) != 1:
            yield f"{named(budget)}: needs one of minAvailable and maxUnavailable, has {' and '.join(given) or 'none'}"
        elif given.get("maxUnavailable") in (0, "0%") or (least and given.get("minAvailable", -1) in (min(least), "100%")):
            yield f"{named(budget)}: allows no eviction at all"


def accounts(documents: list[Document]) -> Faults:
    known = {document["metadata"]["name"] for document in of_kind(documents, "ServiceAccount")}
    for name, _, pod in pods(documents):
        if pod.get("serviceAccountName", "default") not in known | {"default"}:
            yield f"{name}: there is no ServiceAccount {pod['serviceAccountName']!r}"


FITS: tuple[Rule, ...] = (
    schema,
    names_once,
    selectors,
    ports,
    autoscalers,
    quantities,
    volumes,
    budgets,
    accounts,
    restricted,
)
