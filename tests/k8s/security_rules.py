"""What the house wishes of every pod."""

from __future__ import annotations

from collections.abc import Iterator

from tests.k8s.manifests import Document, containers, pods


def restricted(documents: list[Document]) -> Iterator[str]:
    """The "restricted" pod security standard and more: read-only root, no token, an image with a fixed tag, limits."""
    for name, _, pod in pods(documents):
        context = pod.get("securityContext", {})
        if pod.get("automountServiceAccountToken") is not False:
            yield f"{name}: mounts a service account's token"
        if not context.get("runAsNonRoot") or context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{name}: is not runAsNonRoot with the runtime's seccomp profile"
        if any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{name}: shares a namespace with its host"
        for container in containers(pod):
            where, own = f"{name}/{container['name']}", container.get("securityContext", {})
            if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
                yield f"{where}: may become privileged"
            if not own.get("readOnlyRootFilesystem"):
                yield f"{where}: its root filesystem can be written"
            if own.get("capabilities", {}) != {"drop": ["ALL"]}:
                yield f"{where}: keeps capabilities"
            if container["image"].rpartition("/")[2].partition(":")[2] in ("", "latest"):
                yield f"{where}: its image has no fixed tag"
            if not {"cpu", "memory"} <= container.get("resources", {}).get("limits", {}).keys():
                yield f"{where}: has no limits"
