"""sequenceBatching and useJobTicket as a model-config.yaml has them, on ours and on the real one."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from slotwise.host.torchserve_grpc.torchserve_messages import INFERENCE, INFERENCE_SERVICE
from tests.drop_in.stores import archive
from tests.support.deployments import OURS, Deployment, deployed
from tests.support.torchserve_client import client_of
from tests.support.waiting import until

CONFIG = """\
minWorkers: {workers}
maxWorkers: {workers}
batchSize: 16
maxBatchDelay: 50
sequenceBatching: true
maxNumSequence: {most}
maxSequenceJobQueueSize: 2
sequenceMaxIdleMSec: {idle_ms}
"""
MODELS = {
    "counts": {"workers": 2, "most": 30, "idle_ms": 600_000},
    "few": {"workers": 1, "most": 3, "idle_ms": 600_000},
    "idles": {"workers": 1, "most": 3, "idle_ms": 500},
}
OPTIONS = ("--ncs", "--models", ",".join(f"{name}.mar" for name in (*MODELS, "ticket")), "--enable-model-api")
LINES = ("ts_header_key_sequence_end=x-last",)
ID = "ts_request_sequence_id"


def stored(store: Path, name: str, config: str, handler: str = "counts") -> None:
    store.mkdir(parents=True, exist_ok=True)
    (store.parent / f"{name}.yaml").write_text(config)
    archive(store, name, handler, config_file=store.parent / f"{name}.yaml")


@pytest.fixture(scope="module")
def deployment(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    place = tmp_path_factory.mktemp("s")
    for name, limits in MODELS.items():
        stored(place / "store", name, CONFIG.format(**limits))
    stored(place / "store", "endless", CONFIG.format(workers=1, most=3, idle_ms=0))
    stored(place / "store", "ticket", "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nuseJobTicket: true\n", "pieces")
    stored(place / "store", "scattered", "minWorkers: 1\nmaxWorkers: 1\n")
    with deployed(program, place / "d", place / "store", LINES, OPTIONS, {"TS_REQUEST_SEQUENCE_END": "x-last"}) as one:
        for name, limits in MODELS.items():
            one.wait_ready(name, limits["workers"])
        one.wait_ready("ticket")
        yield one


def ask(
    deployment: Deployment, number: str, sequence: str = "", start: str = "", end: str = "", model: str = "counts"
) -> httpx.Response:
    named = {ID: sequence, "ts_request_sequence_start": start, "x-last": end}
    headers = deployment.headers("inference") | {name: value for name, value in named.items() if value}
    return deployment.asked("POST", f"{deployment.inference}/predictions/{model}", headers=headers, content=number.encode())


def total(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["total"]


def test_each_stays_in_its_worker_and_has_its_own_total(deployment: Deployment) -> None:
    for name in ("a", "b"):
        assert total(ask(deployment, "1", name, start="true")) == 1
    answers = {name: [ask(deployment, str(i), name) for i in range(1, 4)] for name in ("a", "b")}
    for each in answers.values():
        assert [total(answer) for answer in each] == [2, 4, 7]
        assert len({answer.json()["pid"] for answer in each}) == 1
    assert total(ask(deployment, "10", "a", end="true")) == 17
    assert total(ask(deployment, "5", "a", start="true")) == 5


def test_the_description_says_what_holds(deployment: Deployment) -> None:
    (few,), (ticket,) = (deployment.call("GET", f"/models/{name}").json() for name in ("few", "ticket"))
    kinds = [(one["stateful"], one["useJobTicket"], one["continuousBatching"]) for one in (few, ticket)]
    assert kinds == [(True, False, False), (False, True, False)]
    limits = ("maxNumSequence", "maxSequenceJobQueueSize", "sequenceMaxIdleMSec", "sequenceTimeoutMSec")
    assert [few[name] for name in limits] == [3, 2, 600_000, 0]


def test_an_id_is_made_for_who_brings_none(deployment: Deployment) -> None:
    for start in ("true", ""):
        answer = ask(deployment, "7", start=start)
        assert total(answer) == 7
        assert answer.headers[ID].startswith("ts-seq-")
        assert answer.headers[ID] == answer.json()["sequence"]


def test_so_many_and_no_more(deployment: Deployment, tmp_path: Path) -> None:
    assert [ask(deployment, "1", f"n{i}", start="true", model="few").status_code for i in range(4)] == [200, 200, 200, 503]
    refused = ask(deployment, "1", "n4", start="true", model="few").json()
    assert refused["type"] == "ServiceUnavailableException"
    assert "or exceeds maxSequenceJobQueueSize" in refused["message"]
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(6) as clients:
        asked = [clients.submit(ask, deployment, f"wait {gate}", "n1", model="few")]
        try:
            until(gate.with_suffix(".reached").exists, "the worker is not given the first")
            asked += [clients.submit(ask, deployment, f"wait {gate}", "n1", model="few") for _ in range(5)]
            until(lambda: sum(one.done() for one in asked) >= 3, "none is refused")
        finally:
            gate.touch()
        answers = [one.result() for one in asked]
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [503] * 3
    assert {answer.json()["total"] for answer in answers if answer.status_code == 200} == {1}


def test_one_that_fails_does_not_end_its_sequence(deployment: Deployment) -> None:
    assert total(ask(deployment, "2", "f", start="true")) == 2
    assert ask(deployment, "fail", "f").status_code in (500, 503)
    assert total(ask(deployment, "2", "f")) == 4


def test_with_job_tickets_nobody_waits(deployment: Deployment) -> None:
    (worker,) = deployment.call("GET", "/models/ticket").json()[0]["workers"]
    with ThreadPoolExecutor(4) as clients:
        os.kill(worker["pid"], signal.SIGSTOP)
        try:
            asked = [clients.submit(ask, deployment, "x a", model="ticket") for _ in range(4)]
            until(lambda: sum(one.done() for one in asked) >= 3, "more than one waits")
        finally:
            os.kill(worker["pid"], signal.SIGCONT)
        answers = [one.result() for one in asked]
    assert sorted(answer.status_code for answer in answers) == [200, 503, 503, 503]
    assert ask(deployment, "x a", model="ticket").text == "a end"


@pytest.mark.parametrize("program", [OURS], indirect=True, ids=["ours"])
class TestOursAlone:
    """What TorchServe answers without a state, ours refuses."""

    def test_what_is_over_is_not_known(self, deployment: Deployment) -> None:
        said = {"never": "has not begun", "ended": "it was ended", "idle": "nobody asked for too long"}
        assert total(ask(deployment, "1", "ended", start="true", end="true", model="idles")) == 1
        assert total(ask(deployment, "1", "idle", start="true", model="idles")) == 1
        time.sleep(1)
        for name, why in said.items():
            answer = ask(deployment, "1", name, model="idles")
            assert (answer.status_code, why in answer.json()["message"]) == (410, True), answer.text
            assert "ts_request_sequence_start: true" in answer.json()["message"]

    def test_a_worker_that_ends_ends_its_sequences(self, deployment: Deployment) -> None:
        assert [total(ask(deployment, "3", name, start="true")) for name in ("dies", "lives")] == [3, 3]
        assert ask(deployment, "die", "dies").status_code == 500
        answer = ask(deployment, "1", "dies")
        assert (answer.status_code, "its worker ended" in answer.json()["message"]) == (410, True)
        assert total(ask(deployment, "1", "lives")) == 4
        assert total(ask(deployment, "1", "dies", start="true")) == 1

    def test_by_grpc_its_headers_are_metadata(self, deployment: Deployment) -> None:
        path, kind = f"/{INFERENCE_SERVICE}/Predictions", INFERENCE.classes["PredictionsRequest"]
        with client_of(deployment.ports, deployment.folder) as client:
            ask = client.inference.unary_unary(path)
            metadata = [("authorization", f"Bearer {client.token('inference')}"), (ID, "g")]
            begin = ("ts_request_sequence_start", "true")
            for number, headers, total_then in ((1, [begin], 1), (5, [], 6)):
                message = kind(model_name="counts", input={"data": b"%d" % number}).SerializeToString()
                answer = INFERENCE.classes["PredictionResponse"].FromString(ask(message, metadata=metadata + headers))
                assert json.loads(answer.prediction)["total"] == total_then
            got = client.predict("counts", b"1", sequence_id="g")
            assert (got.code, "metadata" in got.details) == ("INVALID_ARGUMENT", True)
            assert client.ask("Predictions", model_name="counts", input={"data": b"1"}).code == "OK"  # one of its own

    def test_what_could_not_be_right_is_refused(self, deployment: Deployment) -> None:
        for name, why in (("endless", "sequenceMaxIdleMSec"), ("scattered", "depend on one another")):
            answer = deployment.call("POST", "/models", url=f"{name}.mar")
            assert (answer.status_code, why in answer.json()["message"]) == (400, True), answer.text
