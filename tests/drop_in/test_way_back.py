"""There and back: a folder is served by TorchServe, by ours and by TorchServe again; answers and files stay what they were."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slotwise.profiles.ports import Ports
from tests.drop_in.stores import plain_store
from tests.support.deployments import OURS, TORCHSERVE, Deployment, deployed

pytestmark = [pytest.mark.long, pytest.mark.server, pytest.mark.timeout(900)]

LINES = ("default_workers_per_model=1", "metrics_mode=prometheus")
OPTIONS = ("--enable-model-api", "--models", "echo.mar,headers.mar,errors.mar,folded,balled.tar.gz")
MODELS = ("echo", "headers", "errors", "folded", "balled")
TEXT = {"content-type": "text/plain"}


def files(store: Path) -> dict[str, str]:
    """Every file of the store, and its digest."""
    every = (file for file in sorted(store.rglob("*")) if file.is_file())
    return {str(file.relative_to(store)): hashlib.sha256(file.read_bytes()).hexdigest() for file in every}


def answers(deployment: Deployment, models: Sequence[str]) -> list[Any]:
    """What clients and an operator get of it."""
    headers = {**deployment.headers("inference"), **TEXT, "color": "red"}
    urls = [f"{deployment.inference}/predictions/{model}" for model in models]
    asked = [deployment.asked("POST", url, headers=headers, content=b"a word") for url in urls]
    there = [one["modelName"] for one in deployment.call("GET", "/models").json()["models"]]
    described = [deployment.call("GET", f"/models/{model}").json()[0] for model in models]
    settings = ("modelName", "modelVersion", "batchSize", "maxBatchDelay", "minWorkers", "responseTimeout")
    kept = [tuple(one[key] for key in settings) for one in described]
    return [[(one.status_code, one.content) for one in asked], sorted(there), kept]


def test_the_same_files_serve_both_and_nothing_of_them_changes(tmp_path: Path) -> None:
    store, ports = plain_store(tmp_path / "store"), Ports.free()
    seen = []
    for program in (TORCHSERVE, OURS, TORCHSERVE):
        before = files(store)
        with deployed(program, tmp_path / "d", store, LINES, ("--ncs", *OPTIONS), ports=ports) as one:
            for model in MODELS:
                one.wait_ready(model)
            seen.append(answers(one, MODELS))
            text = one.asked("GET", f"{one.metrics}/metrics").text
            assert 'ts_inference_requests_total{model_name="echo",model_version="default"' in text
        after = files(store)
        if program == TORCHSERVE:  # what its workers compile of a folder lies in that folder
            after = {name: digest for name, digest in after.items() if name in before or "__pycache__" not in name}
        assert after == before
    assert seen[1] == seen[0]
    assert seen[2] == seen[0]


@pytest.mark.parametrize("first", [TORCHSERVE, OURS])
def test_each_starts_from_the_others_newest_snapshot(tmp_path: Path, first: str) -> None:
    store, ports = plain_store(tmp_path / "store"), Ports.free()
    models = (*MODELS, "spare")
    with deployed(first, tmp_path / "d", store, LINES, OPTIONS, ports=ports) as one:
        for model in MODELS:
            one.wait_ready(model)
        settings = {"batch_size": "3", "max_batch_delay": "40", "initial_workers": "1", "synchronous": "true"}
        assert one.call("POST", "/models", url="spare.mar", **settings).status_code == 200
        one.call("PUT", "/models/headers", min_worker="2", max_worker="2", synchronous="true")
        was = answers(one, models)
    second = OURS if first == TORCHSERVE else TORCHSERVE
    with deployed(second, tmp_path / "d", store, LINES, OPTIONS[:1], ports=ports, named=False) as other:
        for model in models:
            other.wait_ready(model)
        assert answers(other, models) == was
