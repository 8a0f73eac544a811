"""Every port is one, and whoever names one means a container's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.k8s.manifests import Document, containers, named, of_kind, picks, pods


def ports(documents: list[Document]) -> Iterator[str]:
    """Numbers within 1..65535; every name or number that is referred to is a container's."""
    for where, port in _numbers(documents):
        if not 1 <= port <= 65535:
            yield f"{where}: {port} is no port"
    for name, _, pod in pods(documents):
        for container in containers(pod):
            for probe, found in _probe_ports(container):
                if found not in _ports([container]):
                    yield f"{name}/{container['name']}: {probe} asks port {found!r}, which the container does not have"
    for service in of_kind(documents, "Service"):
        for entry in service["spec"]["ports"]:
            target = entry.get("targetPort", entry["port"])
            if target not in _selected_ports(documents, service["spec"].get("selector", {})):
                yield f"{named(service)}: targetPort {target!r} is no port of the pods that it selects"
    for policy in of_kind(documents, "NetworkPolicy"):
        known = _selected_ports(documents, policy["spec"]["podSelector"].get("matchLabels", {}))
        for rule in policy["spec"].get("ingress", []):
            for entry in rule.get("ports", []):
                if entry["port"] not in known:
                    yield f"{named(policy)}: lets {entry['port']!r} in, which is no port of the pods"


def _numbers(documents: list[Document]) -> Iterator[tuple[str, int]]:
    for name, _, pod in pods(documents):
        for container in containers(pod):
            for entry in container.get("ports", []):
                yield f"{name}/{container['name']}", entry["containerPort"]
            yield from ((name, port) for _, port in _probe_ports(container) if isinstance(port, int))
    for service in of_kind(documents, "Service"):
        for entry in service["spec"]["ports"]:
            values = (entry["port"], entry.get("targetPort"), entry.get("nodePort"))
            yield from ((named(service), port) for port in values if isinstance(port, int))


def _ports(of: list[Document]) -> set[Any]:
    entries = [entry for container in of for entry in container.get("ports", [])]
    return {entry.get("name") for entry in entries} | {entry["containerPort"] for entry in entries}


def _selected_ports(documents: list[Document], selector: dict[str, str]) -> set[Any]:
    chosen = [pod for _, labels, pod in pods(documents) if picks(selector, labels)]
    return {port for pod in chosen for port in _ports(pod["containers"])}


def _probe_ports(container: Document) -> Iterator[tuple[str, Any]]:
    handlers = [(kind, container.get(kind, {})) for kind in ("startupProbe", "readinessProbe", "livenessProbe")]
    handlers += [(kind, found) for kind, found in container.get("lifecycle", {}).items()]
    for kind, handler in handlers:
        for way in ("httpGet", "tcpSocket"):
            if way in handler:
                yield kind, handler[way]["port"]
