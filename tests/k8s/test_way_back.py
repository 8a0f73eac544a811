"""The page's own steps on KServe and back, by kubectl, on a stand-in of the cluster's API, which keeps one object."""

from __future__ import annotations

import copy
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.k8s.manifests import ROOT

GROUP, VERSION, PLURAL, NAME = "serving.kserve.io", "v1alpha1", "clusterservingruntimes", "kserve-torchserve"
PATH = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
THEIRS = {  # as KServe's own release has it
    "apiVersion": f"{GROUP}/{VERSION}",
    "kind": "ClusterServingRuntime",
    "metadata": {"name": NAME},
    "spec": {
        "annotations": {"prometheus.kserve.io/port": "8082", "prometheus.kserve.io/path": "/metrics"},
        "supportedModelFormats": [{"name": "pytorch", "version": "1", "autoSelect": True, "priority": 2}],
        "protocolVersions": ["v1", "v2", "grpc-v2"],
        "containers": [
            {
                "name": "kserve-container",
                "image": "pytorch/torchserve-kfs:0.9.0",
                "args": [
                    *("torchserve", "--start", "--model-store=/mnt/models/model-store"),
                    "--ts-config=/mnt/models/config/config.properties",
                ],
                "env": [{"name": "TS_SERVICE_ENVELOPE", "value": "{{.Labels.serviceEnvelope}}"}],
                "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}},
            }
        ],
    },
}

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here: the steps are NOT tried")


class Cluster:
    """Keeps the one runtime; whoever writes another version than the newest is refused."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = copy.deepcopy(THEIRS)
        self.kept["metadata"] |= {"resourceVersion": "1", "uid": "5f7ec5d8-0b7b-4f4e-8f7c-0d8a4f2a9b11", "generation": 1}

    def put(self, new: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        metadata = self.kept["metadata"]
        if new["metadata"].get("resourceVersion", metadata["resourceVersion"]) != metadata["resourceVersion"]:
            message = f'Operation cannot be fulfilled on {PLURAL}.{GROUP} "{NAME}": the object has been modified'
            return 409, {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "reason": "Conflict",
                "code": 409,
                "message": message,
            }
        newer = {"resourceVersion": str(int(metadata["resourceVersion"]) + 1), "uid": metadata["uid"]}
        self.kept = {**new, "metadata": {**new["metadata"], **newer}}
        return 200, self.kept

    def answer(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        if path == f"{PATH}/{NAME}":
            if method == "GET":
                return 200, self.kept
            return self.put(merged(self.kept, body) if method == "PATCH" else body)
        return (200, DISCOVERY[path]) if path in DISCOVERY else (404, {"kind": "Status", "apiVersion": "v1", "code": 404})


VERSIONS = [{"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}]
KIND = {"name": PLURAL, "singularName": "clusterservingruntime", "namespaced": False, "kind": "ClusterServingRuntime"}
DISCOVERY: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": GROUP, "versions": VERSIONS, "preferredVersion": VERSIONS[0]}],
    },
    f"/apis/{GROUP}/{VERSION}": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{VERSION}",
        "resources": [{**KIND, "verbs": ["get", "list", "patch", "update"]}],
    },
    "/openapi/v3": {"paths": {PATH[1 : -len(PLURAL) - 1]: {"serverRelativeURL": "/openapi/v3/own"}}},
    "/openapi/v3/own": {
        "openapi": "3.0.0",
        "info": {"title": "own", "version": "1"},
        "paths": {
            f"{PATH}/{{name}}": {
                "patch": {
                    "parameters": [{"name": "fieldValidation", "in": "query"}],
                    "responses": {},
                    "x-kubernetes-group-version-kind": {"group": GROUP, "version": VERSION, "kind": KIND["kind"]},
                }
            }
        },
    },
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
}


def merged(old: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merged(new.get(key), value)
    return new


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def kubeconfig(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    class Api(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, content = cluster.answer(self.command, self.path.partition("?")[0], json.loads(body) if body else None)
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_PATCH = do_POST = answer

        def log_message(self, *said: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        clusters = [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}]
        contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
        config = {"clusters": clusters, "contexts": contexts, "users": [{"name": "u", "user": {}}], "current-context": "c"}
        (tmp_path / "config").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **config}))
        yield tmp_path / "config"
        server.shutdown()


def steps() -> dict[str, str]:
    """The page's commands by their second word."""
    page = (ROOT / "docs" / "leaving-torchserve.md").read_text("utf-8")
    block = re.findall(r"```sh\n(.*?)```", page[page.index("#### KServe") :], re.DOTALL)[0]
    lines = [line.partition("  #")[0].strip() for line in block.splitlines()]
    return {line.split()[1]: line for line in lines}


def run(command: str, kubeconfig: Path) -> str:
    environ = {
        "KUBECONFIG": str(kubeconfig),
        "HOME": str(kubeconfig.parent),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "NO_PROXY": "*",
    }
    done = subprocess.run(
        ["bash", "-ec", command], cwd=kubeconfig.parent, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_pages_steps_lead_there_and_back(cluster: Cluster, kubeconfig: Path) -> None:
    (kubeconfig.parent / "k8s").symlink_to(ROOT / "k8s")
    step = steps()
    run(step["get"], kubeconfig)
    run(step["apply"], kubeconfig)
    ours = yaml.safe_load((ROOT / "k8s" / "kserve" / "torchserve.yaml").read_text("utf-8"))
    assert cluster.kept["spec"] == ours["spec"]
    run(step["replace"], kubeconfig)
    assert cluster.kept["spec"] == THEIRS["spec"]
    with pytest.raises(AssertionError, match="the object has been modified"):
        run(f"{step['get'].partition('|')[0]} > stale.yaml; {step['apply']}; kubectl replace -f stale.yaml", kubeconfig)
