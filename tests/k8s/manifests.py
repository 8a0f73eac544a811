"""What kubectl would send: overlays resolved by kubectl's kustomize; without kubectl, the base as it is written."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = ("cpu", "cuda", "ei", "text", "text-cuda")
HAS_KUBECTL = shutil.which("kubectl") is not None

Document = dict[str, Any]


@cache
def _resolved(overlay: str) -> str:
    command = ["kubectl", "kustomize", str(K8S / "overlays" / overlay)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=180).stdout


def resolved(overlay: str) -> list[Document]:
    """An overlay's documents, as `kubectl apply -k` would send them."""
    return list(yaml.safe_load_all(_resolved(overlay)))


def base() -> list[Document]:
    """The base's documents; its generated ConfigMaps keep their plain names."""
    kustomization = yaml.safe_load((K8S / "base" / "kustomization.yaml").read_text("utf-8"))
    documents = [
        document
        for file in kustomization["resources"]
        for document in yaml.safe_load_all((K8S / "base" / file).read_text("utf-8"))
    ]
    for generated in kustomization["configMapGenerator"]:
        data = {name: (K8S / "base" / name).read_text("utf-8") for name in generated.get("files", [])}
        data |= dict(literal.split("=", 1) for literal in generated.get("literals", []))
        metadata = {"name": generated["name"]}
        documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    return documents


def of_kind(documents: list[Document], *kinds: str) -> list[Document]:
    """The documents of these kinds."""
    return [document for document in documents if document.get("kind") in kinds]


def pods(documents: list[Document]) -> Iterator[tuple[str, Document, Document]]:
    """Every workload's name, pod labels and pod spec."""
    for document in of_kind(documents, "Deployment", "StatefulSet", "DaemonSet", "Job"):
        template = document["spec"]["template"]
        yield document["metadata"]["name"], template["metadata"].get("labels", {}), template["spec"]


def containers(pod: Document) -> list[Document]:
    """Its containers, those of the initialisation first."""
    return [*pod.get("initContainers", []), *pod.get("containers", [])]


def picks(selector: dict[str, str], labels: dict[str, str]) -> bool:
    """Whether matchLabels match."""
    return bool(selector) and selector.items() <= labels.items()


def named(document: Document) -> str:
    """Kind and name."""
    return f"{document['kind']}/{document['metadata']['name']}"
