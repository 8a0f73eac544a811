"""Ray Serve: the conformance tests from the same archive bytes, updates and node failures under load, what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from slotwise.bench import demo, load
from slotwise.bench.bodies import examples
from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.errors import SlotwiseError
from slotwise.frontend.process import GatewayRecord
from slotwise.server.processes import processes_of
from tests.support.ray_nodes import on_second_node, second_node
from tests.support.running import ask_processes, command_lines
from tests.support.sagemaker import runtime_client
from tests.support.sleeper import sleeper
from tests.support.tuning import state, tuner
from tests.support.waiting import until

from .bursts import burst, counting
from .conftest import BATCH_SIZE, BATCHES, RAY_PATIENCE_S, Live, build_handler, changed_archive_is_refused, started
from .contract.conformance import (
    numbers,
    test_a_bad_request_at_every_position_costs_only_itself,
    test_answers_of_any_length_arrive_whole,
    test_any_number_of_bad_requests_costs_only_themselves,
)
from .contract.protocols import (
    client,
    grpc_client,
    test_kserves_form_and_sagemakers,
    test_kserves_own_client,
    test_tritons_client_asks_for_health_metadata_and_many_at_once,
    test_tritons_client_gets_every_record_in_its_place,
    test_tritons_grpc_client_asks_for_health_metadata_and_many_at_once,
    test_tritons_grpc_client_gets_every_record_in_its_place,
)
from .digits_load import digits
from .storm import Storm

__all__ = [
    "client",
    "grpc_client",
    "test_a_bad_request_at_every_position_costs_only_itself",
    "test_answers_of_any_length_arrive_whole",
    "test_any_number_of_bad_requests_costs_only_themselves",
    "test_kserves_form_and_sagemakers",
    "test_kserves_own_client",
    "test_tritons_client_asks_for_health_metadata_and_many_at_once",
    "test_tritons_client_gets_every_record_in_its_place",
    "test_tritons_grpc_client_asks_for_health_metadata_and_many_at_once",
    "test_tritons_grpc_client_gets_every_record_in_its_place",
]

pytest.importorskip("ray", reason="Ray is not installed: scripts/setup.sh full")
pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(1500)]

CLIENTS = 8
WAITING = 32  # requests of a model that may wait


@pytest.fixture(scope="module")
def live(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A Ray of our own; two replicas of a model at most on one node."""
    build_handler("killers", store, tmp_path_factory.mktemp("second"), handler="killers", version="2.0")
    changes = {"max_replicas_per_node": "2", "graceful_shutdown_timeout_s": "60", "job_queue_size": str(WAITING)}
    changes["linger"] = "exact"  # what comes together is to be one batch
    with started("ray", tmp_path_factory.mktemp("ray"), store, **changes) as server:
        for model in ("faults", "digits"):
            server.management.register(f"{model}.mar", **BATCHES)
            server.management.wait_ready(model, timeout_s=RAY_PATIENCE_S)
        yield server


@pytest.fixture(scope="module")
def front(live: Live) -> Iterator[GatewayRecord]:
    """A gateway in front of it, with gRPC."""
    options = ["--max-queued", "64", "--grpc-port", "0", "--default-model", "digits"]
    with live.front(*options) as record:
        yield record


@contextmanager
def killers_under_load(live: Live, front: GatewayRecord, workers: int) -> Iterator[Storm]:
    """The model `killers` behind the gateway, with clients that ask for it all the time."""
    settings = {"batch_size": 4, "max_batch_delay": 0.5, "initial_workers": workers, "response_timeout": 60}
    live.management.register("killers.mar", **settings)
    live.management.wait_ready("killers", workers, timeout_s=RAY_PATIENCE_S)
    until(lambda: "killers" in {model["name"] for model in front.status()["models"] if model["ready_workers"]}, "no killers")
    storm = Storm(front.url, [], clients=CLIENTS)
    try:
        with storm.in_background():
            storm.wait_for(50, RAY_PATIENCE_S)
            yield storm
    finally:
        live.management.unregister("killers")


def test_sagemakers_runtime_client(front: GatewayRecord) -> None:
    given = digits()
    for name in ("3", "7"):
        answer = runtime_client(front.url).invoke_endpoint(EndpointName="mine", ContentType="image/png", Body=given[name])
        assert json.loads(answer["Body"].read())["label"] == name


def test_models_are_described_as_everywhere(live: Live) -> None:
    model = live.management.describe("digits")
    assert (model.batch_size, model.profile, model.device) == (BATCH_SIZE, "cpu", "cpu")
    assert model.engine in ("onnxruntime", "openvino", "torch")
    assert model.workers[0].memory_bytes > 1 << 20
    assert model.workers[0].got["archive"]
    assert {listed.name for listed in live.management.list()} == {"faults", "digits"}


def test_the_demo_and_the_bench_know_ray(live: Live) -> None:
    assert demo.play(live.record).kept
    plan = LoadPlan(clients=BATCH_SIZE, seconds=None, requests=100, warm_up_s=0.2, poison=0.1, timeout_s=RAY_PATIENCE_S)
    result = load.measure(Target.of(live.record, "digits"), examples("digits")[:3], plan)
    assert (result.lost, result.requests, set(result.refused)) == (0, 100, {"400"})


def test_an_archive_of_an_earlier_release_or_that_was_changed_is_refused_in_one_line(live: Live, store: Path) -> None:
    earlier = "digits-0.1.0.mar"
    (store / earlier).write_bytes((Path(__file__).parents[1] / "fixtures" / earlier).read_bytes())
    with pytest.raises(SlotwiseError, match=r"digits-0\.1\.0\.mar carries no worker that runs on Ray"):
        live.management.register(earlier, name="earlier", initial_workers=1)
    changed_archive_is_refused(live, store)
    assert {listed.name for listed in live.management.list()} == {"faults", "digits"}


def test_a_wrong_path_and_a_wrong_token_are_refused(live: Live) -> None:
    url, headers = live.record.inference_url, live.inference_headers()
    assert httpx.get(f"{url}/ping").status_code == 200
    for path in ("nobody", "faults/9.9"):
        unknown = httpx.post(f"{url}/predictions/{path}", content=b"1", headers=headers)
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, 404)
    refused = httpx.post(f"{url}/predictions/faults", content=b"1", headers={"Authorization": "Bearer no"})
    assert (refused.status_code, "Token Authorization failed" in refused.json()["error"]["message"]) == (400, True)
    assert httpx.post(f"{url}/predictions/faults/1.0", content=b"2", headers=headers, timeout=60).json() == {"answer": 5.0}


def test_everything_listens_on_loopback_or_wants_the_token(live: Live) -> None:
    own = command_lines(live.record.run_id)
    open_ports = []
    for connection in psutil.net_connections("tcp"):
        if connection.pid in own and connection.status == psutil.CONN_LISTEN:
            address = connection.laddr.ip.removeprefix("::ffff:")
            if not address.startswith("127."):
                open_ports.append((address, own[connection.pid][:60]))
    # Replicas hear one another on every address, by gRPC that asks for the token. Nothing else does.
    assert all(what.startswith("ray::") for _, what in open_ports), open_ports
    assert not any(ask_processes(live.record.run_id, lambda process: "RAY_AUTH_TOKEN" in process.environ()).values())
    assert (live.record.state_dir / "ray_token").stat().st_mode & 0o077 == 0


def test_scaling_restarts_nothing(live: Live) -> None:
    before = live.pids("faults")
    live.management.scale("faults", 2)
    live.management.wait_ready("faults", 2, timeout_s=RAY_PATIENCE_S)
    assert set(before) < set(live.pids("faults"))
    live.management.scale("faults", 1)
    live.management.wait_ready("faults", 1, timeout_s=RAY_PATIENCE_S)


def test_a_dead_engine_ends_its_replica_and_another_takes_its_place(live: Live) -> None:
    before = live.pids("faults")
    bodies = [*numbers(BATCH_SIZE - 1), b"die"]
    answers = burst(live.inference, "faults", bodies)
    assert [answer.status for answer in answers] == [200] * (BATCH_SIZE - 1) + [500]
    until(lambda: live.management.describe("faults").ready_workers and live.pids("faults") != before, "no new replica")
    until(lambda: burst(live.inference, "faults", [b"1"])[0].status == 200, "no answer")


def test_a_worker_whose_last_answer_is_torn_has_died(live: Live) -> None:
    before = live.pids("faults")
    *others, answer = burst(live.inference, "faults", [*numbers(3), b"torn"])
    assert ([other.status for other in others], answer.status) == ([200] * 3, 500)
    assert "the worker ended on this request" in answer.body["error"]["message"]
    until(lambda: live.management.describe("faults").ready_workers and live.pids("faults") != before, "no new replica")
    until(lambda: burst(live.inference, "faults", [b"1"])[0].status == 200, "no answer")


def test_a_replica_that_is_killed_under_load_costs_nobody_anything(live: Live) -> None:
    live.management.scale("faults", 2)
    live.management.wait_ready("faults", 2, timeout_s=RAY_PATIENCE_S)
    with counting(live.inference, "faults", clients=CLIENTS) as answers:
        for of_ray in (False, True):  # the worker's own process, and the replica's around it
            seen, before = len(answers), live.pids("faults")
            until(lambda seen=seen: len(answers) > seen + 50, "no answers")
            victim = psutil.Process(before[0])
            (victim.parent() if of_ray else victim).send_signal(signal.SIGKILL)  # type: ignore[union-attr]
            until(lambda gone=before[0]: gone not in live.pids("faults"), "it is still there")
            live.management.wait_ready("faults", 2, timeout_s=RAY_PATIENCE_S)
        seen = len(answers)
        until(lambda: len(answers) > seen + 50, "no answers")
    assert [got for number, got in answers if got.body != {"answer": 2.0 * number + 1}] == []
    live.management.scale("faults", 1)
    live.management.wait_ready("faults", 1, timeout_s=RAY_PATIENCE_S)


def test_replicas_come_under_load_and_go_again(live: Live, store: Path, tmp_path: Path) -> None:
    scaling = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 2.0}
    elastic = build_handler("elastic", store, tmp_path, cpu={**scaling, "upscale_delay_s": 1.0, "downscale_delay_s": 1.0})
    live.management.register(elastic.name, batch_size=16, max_batch_delay=500, initial_workers=1, response_timeout=60)
    live.management.wait_ready("elastic", timeout_s=RAY_PATIENCE_S)
    with pytest.raises(SlotwiseError, match="Ray scales elastic by itself, between 1 and 2 replicas"):
        live.management.scale("elastic", 2)
    with counting(live.inference, "elastic", clients=8) as answers:
        until(lambda: live.management.describe("elastic").ready_workers == 2, "no second replica")
    until(lambda: len(live.management.describe("elastic").workers) == 1, "the second replica stays")
    assert [got for number, got in answers if got.body != {"answer": 2.0 * number + 1}] == []
    live.management.unregister("elastic")


@pytest.mark.long
def test_tune_finds_a_setting_and_the_server_keeps_what_it_had(live: Live, tmp_path: Path) -> None:
    sleeper(live.record.model_store)
    live.management.register("standin.mar", batch_size=4, max_batch_delay=7, initial_workers=1)
    live.management.wait_ready("standin", timeout_s=RAY_PATIENCE_S)
    before = state(live)
    process = tuner(live, tmp_path, "--slo-p99-ms", "60000", "--max-trials", "2", "--json")
    output, errors = process.communicate(timeout=4 * RAY_PATIENCE_S)
    assert process.returncode == 0, errors
    result = json.loads(output)
    assert (result["winner"]["workers"] >= 1, len(result["trials"])) == (True, 2)
    assert state(live) == before
    live.management.unregister("standin")


def test_more_than_may_wait_are_shed(live: Live, store: Path, tmp_path: Path) -> None:
    build_handler("gate", store, tmp_path, handler="gate")
    live.management.register("gate.mar", batch_size=1, max_batch_delay=0, initial_workers=1, response_timeout=600)
    live.management.wait_ready("gate", timeout_s=RAY_PATIENCE_S)
    gate, url = tmp_path / "open", f"{live.record.inference_url}/predictions/gate"
    in_hand = 8  # places in the front for a model with batches of one

    def ask() -> int:
        return httpx.post(url, content=str(gate), headers=live.inference_headers(), timeout=2 * RAY_PATIENCE_S).status_code

    most = in_hand + WAITING + 8
    with ThreadPoolExecutor(most) as pool:
        sent: list[Future[int]] = []
        try:
            while len(sent) < most and not any(one.done() for one in sent):
                sent.append(pool.submit(ask))
                wait(sent, 0.1, FIRST_COMPLETED)
            late = time.monotonic() + RAY_PATIENCE_S  # one that is still on its way must not find the gate open
            while sum(not one.done() for one in sent) > in_hand + WAITING and time.monotonic() < late:
                time.sleep(0.1)
        finally:
            gate.touch()
    statuses = [one.result() for one in sent]
    assert set(statuses) == {200, 429}
    assert WAITING <= statuses.count(200) <= in_hand + WAITING
    live.management.unregister("gate")


def test_a_model_is_updated_under_load(live: Live, front: GatewayRecord) -> None:
    with killers_under_load(live, front, workers=1) as storm:
        live.management.register("killers-2.0.mar", batch_size=4, max_batch_delay=0.5, initial_workers=1)
        live.management.wait_ready("killers", 1, version="2.0", timeout_s=RAY_PATIENCE_S)
        live.management.set_default("killers", "2.0")
        storm.wait_for(50, RAY_PATIENCE_S)
        live.management.unregister("killers", "1.0")
        storm.wait_for(50, RAY_PATIENCE_S)
        assert [one.version for one in live.management.describe_all("killers")] == ["2.0"]
    assert storm.lost == []


def test_a_node_that_dies_under_load_loses_nothing(live: Live, front: GatewayRecord) -> None:
    with second_node(live.record), killers_under_load(live, front, workers=4) as storm:
        nodes = [worker.got for worker in live.management.describe("killers").workers]
        assert len(nodes) == 4
        raylet = next(process for process in processes_of(live.record.run_id) if on_second_node(process))
        raylet.send_signal(signal.SIGKILL)
        until(lambda: live.management.describe("killers").ready_workers == 2, "the dead node's replicas are still there")
        storm.wait_for(200, RAY_PATIENCE_S)
        live.management.scale("killers", 2)
        live.management.wait_ready("killers", 2, timeout_s=RAY_PATIENCE_S)
    assert storm.lost == []
    assert storm.right > 250


def test_stop_leaves_nothing(live: Live) -> None:
    from slotwise.server.lifecycle import stop

    run_id, tmp_dir = live.record.run_id, live.record.tmp_dir
    stop(live.record)
    assert processes_of(run_id) == []
    assert not tmp_dir.exists()
    assert not os.path.exists(live.record.state_dir / "key_file.json")
