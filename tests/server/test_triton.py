"""The same archive on a real Triton: the promises that hold on TorchServe and MMS, and what Triton has of its own.

The tests that are imported run here against Triton, because this module's `live` is one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from slotwise.archive.build import build
from slotwise.archive.guarding.guarded import guard
from slotwise.archive.inspection import inspect
from slotwise.archive.triton.repository import export
from slotwise.bench import demo, load
from slotwise.bench.bodies import examples
from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.client.tokens import token
from slotwise.errors import SlotwiseError
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.lifecycle import check_can_start
from slotwise.server.processes import processes_of
from slotwise.server.triton import process as triton_process
from slotwise.tune.goal import Goal
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.search import Search
from slotwise.tune.space import SearchSpace, TrialSetting
from tests.archive.foreign_archives import FUNCTION, torch_archive
from tests.server import bursts
from tests.server.bursts import burst
from tests.server.conftest import BATCHES, Live, changed_archive_is_refused, started
from tests.server.contract.conformance import *  # noqa: F403
from tests.server.contract.given_models import *  # noqa: F403
from tests.server.contract.lifecycle import (  # noqa: F401
    right,
    scaled_under_load,
    test_a_dead_engine_ends_its_worker_and_a_new_one_takes_over,
    test_a_model_that_is_unregistered_is_gone_and_may_come_back_with_other_settings,
    test_a_partial_batch_is_answered_once_its_delay_is_over,
    test_a_worker_killed_under_load_comes_back,
    test_a_wrong_number_of_outputs_shifts_no_answer,
    test_ready_means_that_every_model_can_answer,
    test_registering_twice_is_refused_in_the_servers_words_and_changes_nothing,
)
from tests.support.running import command_lines

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("pytriton") is None, reason="Triton is not installed: make full"),
]


@pytest.fixture(scope="module")
def live(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A real Triton; `faults` and `digits` are registered with batches of 8."""
    with started("triton", tmp_path_factory.mktemp("triton"), store) as server:
        for model in ("faults", "digits"):
            server.management.register(f"{model}.mar", **BATCHES)
            server.management.wait_ready(model)
        yield server
        run_id = server.record.run_id
    assert processes_of(run_id) == []
    assert not list(Path("/dev/shm").glob(f"{triton_process.shared_memory(run_id)}*"))


def bearer(live: Live, name: str = "Authorization", kind: Any = "inference") -> dict[str, str]:
    return {name: f"Bearer {token(live.record, kind)}"}


def tensor(text: bytes) -> Any:
    return np.frombuffer(text, np.uint8)[None]


def test_a_dead_engine_costs_its_batch_and_nobody_after_it(live: Live) -> None:
    with live.registered("quick", batch_size=4, max_batch_delay=30_000):  # fours are batches, however late they come
        assert {got.status for got in burst(live.inference, "quick", [b"1", b"die", b"2", b"3"])} == {503}
        answers = burst(live.inference, "quick", [str(n).encode() for n in range(16)])
        assert [got.body for got in answers] == [{"answer": 2.0 * n + 1} for n in range(16)]


def test_scaling_up_and_down_under_load_loses_nothing(live: Live) -> None:
    with live.registered("quick"):
        answers = scaled_under_load(live, live.inference)
    assert [got for number, got in answers if not right(number, got)] == []


def test_an_instance_whose_process_is_killed_comes_back(live: Live) -> None:
    """Triton itself never starts it again."""
    with live.registered("quick"):
        (file,) = (live.record.state_dir / "instances" / "quick").iterdir()
        os.kill(int(file.name.rpartition(".")[2]), signal.SIGKILL)
        deadline = time.monotonic() + 120
        while file.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        live.management.wait_ready("quick")
        while (got := bursts.ask(live.inference, "quick", b"4")).status >= 500 and time.monotonic() < deadline:
            time.sleep(0.1)  # the dead one was READY until somebody had looked
        assert got.body == {"answer": 9.0}


def test_one_version_of_a_model_is_served(live: Live, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "faults"
    folder.mkdir()
    (folder / "faults.py").write_text((Path(__file__).parent / "handlers" / "faults.py").read_text())
    (folder / "model.toml").write_text('name = "faults"\nversion = "2.0"\nhandler = "faults.py"\n')
    second = build(folder, store)
    with pytest.raises(SlotwiseError, match="Triton serves one version of a model: unregister faults"):
        live.management.register(second.name, **BATCHES)
    assert live.management.describe("faults").version == "1.0"


def test_an_archive_of_an_earlier_release_is_refused_in_one_line(live: Live, store: Path) -> None:
    archive = store / "digits-0.1.0.mar"
    archive.write_bytes((Path(__file__).parents[1] / "fixtures" / archive.name).read_bytes())
    with pytest.raises(SlotwiseError, match=r"digits-0\.1\.0\.mar carries no worker that runs on Triton"):
        live.management.register(archive.name, name="earlier", **BATCHES)
    assert "earlier" not in {listed.name for listed in live.management.list()}


def test_an_archive_that_was_changed_is_refused(live: Live, store: Path) -> None:
    changed_archive_is_refused(live, store)


def test_a_guarded_archive_of_another_tool_keeps_its_slots(live: Live, store: Path, tmp_path: Path) -> None:
    guarded = guard(torch_archive(tmp_path, FUNCTION), store / "theirs.mar")
    settings = {"batch_size": 4, "max_batch_delay": 2000, "initial_workers": 1, "response_timeout": 60}
    live.management.register(guarded.name, **settings)
    try:
        live.management.wait_ready("theirs")
        for bad in range(4):
            sent = [b"{" if i == bad else str(i).encode() for i in range(4)]
            answers = burst(live.inference, "theirs", sent)
            assert [got.status == 200 for got in answers] == [i != bad for i in range(4)]
            assert [got.body for i, got in enumerate(answers) if i != bad] == [{"doubled": 2 * i} for i in range(4) if i != bad]
    finally:
        live.management.unregister("theirs")


def test_no_api_is_open_without_its_token(live: Live) -> None:
    url, reload = live.record.inference_url, "/v2/repository/models/digits/load"
    for path, headers in (
        ("/v2/models/digits/infer", {}),
        ("/v2/models/digits/infer", bearer(live, kind="management")),
        (reload, {}),
        (reload, bearer(live)),
        ("/v2/systemsharedmemory/region/x/register", bearer(live)),
        ("/v2/logging", bearer(live)),
    ):
        assert httpx.post(url + path, headers=headers, trust_env=False).status_code == 403, path
    assert httpx.get(f"{live.record.management_url}/models", trust_env=False).status_code == 400
    for line in command_lines(live.record.run_id).values():
        assert token(live.record, "inference") not in line
        assert token(live.record, "management") not in line


def test_tritons_own_clients_over_http(live: Live) -> None:
    import tritonclient.http as client
    from tritonclient.utils import InferenceServerException

    body = examples("digits")[0].data
    with client.InferenceServerClient(f"127.0.0.1:{live.record.ports.inference}") as triton:
        picture = client.InferInput("BODY", [1, len(body)], "UINT8")
        picture.set_data_from_numpy(tensor(body))
        answer = triton.infer("digits", [picture], headers=bearer(live))
        told = json.loads(answer.as_numpy("ANSWER").tobytes())
        assert told["label"] == live.inference.predict("digits", body).json()["label"]
        assert answer.as_numpy("STATUS").item() == 200
        assert json.loads(answer.as_numpy("HEADERS").tobytes())["content-type"] == "application/json"
        bad = client.InferInput("BODY", [1, 4], "UINT8")
        bad.set_data_from_numpy(tensor(b"none"))
        with pytest.raises(InferenceServerException) as refused:
            triton.infer("faults", [bad], headers=bearer(live))
    slot = json.loads(refused.value.message())
    assert (slot["status"], json.loads(slot["body"])["error"]["code"]) == (400, 400)
    assert "x-batch-slot" in slot["headers"]


def test_tritons_own_clients_over_grpc(live: Live) -> None:
    import tritonclient.grpc as client
    from tritonclient.utils import InferenceServerException

    header = "triton-grpc-protocol-authorization"
    with client.InferenceServerClient(f"127.0.0.1:{live.record.ports.grpc_inference}") as triton:
        number = client.InferInput("BODY", [1, 2], "UINT8")
        number.set_data_from_numpy(tensor(b"21"))
        headers = client.InferInput("HEADERS", [1, 21], "UINT8")
        headers.set_data_from_numpy(tensor(b'{"x-request-id":"me"}'))
        answer = triton.infer("faults", [number, headers], headers=bearer(live, header))
        assert json.loads(answer.as_numpy("ANSWER").tobytes()) == {"answer": 43.0}
        with pytest.raises(InferenceServerException, match="restricted"):
            triton.infer("faults", [number])
        with pytest.raises(InferenceServerException, match="restricted"):
            triton.load_model("faults", headers=bearer(live, header))
        bad = client.InferInput("BODY", [1, 3], "UINT8")
        bad.set_data_from_numpy(tensor(b"nan"))
        with pytest.raises(InferenceServerException) as refused:
            triton.infer("faults", [bad], headers=bearer(live, header))
    assert json.loads(refused.value.message())["status"] == 500


def test_a_client_of_the_gateway_sees_what_the_slot_says(live: Live) -> None:
    """Also what Triton's own HTTP has no status for: 413, 504."""
    with live.front() as front, httpx.Client(base_url=front.url, timeout=60) as http:
        good = http.post("/predictions/faults", content=b"4", headers={"x-request-id": "mine"})
        assert (good.status_code, good.json()) == (200, {"answer": 9.0})
        assert good.headers["content-type"] == "application/json"
        assert good.headers["x-request-id"] == "mine"
        assert {"x-batch-size", "x-batch-slot", "x-decode-ms", "x-inference-ms"} <= set(good.headers)
        bad = http.post("/predictions/faults", content=b"text")
        assert (bad.status_code, bad.json()["error"]["code"]) == (400, 400)
        assert "x-batch-slot" in bad.headers
        picture = examples("digits")[0].data
        plain = http.post("/predictions/digits", content=picture, headers={"accept": "text/plain"})
        assert (plain.status_code, plain.headers["content-type"].partition(";")[0]) == (200, "text/plain")
        parts = http.post("/predictions/digits", files={"data": ("a.png", picture), "x": ("b.png", picture)})
        assert parts.json()["label"] == plain.text
        many = json.dumps({"instances": [{"b64": "AAAA"}] * 300}).encode()
        assert http.post("/predictions/digits", content=many).status_code == 413
        assert http.post("/predictions/nobody", content=b"1").status_code == 404
        assert "nv_inference_request_success" in http.get("/metrics/server").text


def test_the_demo_and_the_bench_know_triton(live: Live) -> None:
    assert demo.play(live.record).kept
    plan = LoadPlan(clients=16, seconds=None, requests=200, warm_up_s=0.2, poison=0.1)
    with live.registered("quick"):
        bodies = examples("digits")[:3]
        result = load.measure(Target.of(live.record, "digits"), bodies, plan)
    assert (result.lost, result.requests) == (0, 200)
    assert set(result.refused) == {"400"}
    assert result.mean_batch >= 1


def test_the_study_s_own_setting(live: Live) -> None:
    """150 microseconds and batches of 13: the classic study of MNIST."""
    with live.registered("quick", batch_size=13, max_batch_delay=0.15) as model:
        assert (model.batch_size, model.max_batch_delay) == (13, 0.15)
        config = httpx.get(f"{live.record.inference_url}/v2/models/quick/config", headers=bearer(live), trust_env=False).json()
        assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 150
        assert config["max_batch_size"] == 13
        assert bursts.ask(live.inference, "quick", b"4").body == {"answer": 9.0}


def test_the_tuner_searches_below_a_millisecond(live: Live, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(live.record.state_dir.parent))
    space = SearchSpace.of_machine(1, 4, kind="triton")
    assert min(space.delays) < 1
    info = inspect(store / "digits.mar")
    with LiveBench(live.record, info, examples(str(info.path))) as bench:
        search = Search(bench, space, Goal(clients=4, slo_p99_ms=5000), max_trials=2, seconds=0.5)
        trials = search.run([TrialSetting(4, 0.15, 1), TrialSetting(1, 0.05, 1)], None)
    assert [trial.state for trial in trials] == ["measured", "measured"]
    assert not [listed.name for listed in live.management.list() if listed.name.startswith("tune-")]


def test_an_exported_repository_needs_nothing_but_triton(live: Live, store: Path, tmp_path: Path) -> None:
    """As NVIDIA's container would run it: no supervising process, no settings in the environment."""
    info = inspect(store / "faults.mar")
    profile = load_profile("cpu", environ={}, cores=0).explicitly({"batch_size": 4, "max_batch_delay_ms": 0.5}, "test")
    export(info, profile, tmp_path / "repository", name="alone")
    files, ports = triton_process.find(), Ports.free()
    (tmp_path / "tmp").mkdir()
    backends = triton_process.backends(files, tmp_path / "tmp")
    command = [str(files.server), f"--model-repository={tmp_path / 'repository'}", f"--backend-directory={backends}"]
    command += ["--http-address=127.0.0.1", f"--http-port={ports.inference}", "--allow-grpc=false", "--allow-metrics=false"]
    environ = {"PATH": triton_process.path(), "LD_LIBRARY_PATH": str(files.libraries), "TMPDIR": str(tmp_path / "tmp")}
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=log, stderr=log)
    try:
        url, deadline = f"http://127.0.0.1:{ports.inference}", time.monotonic() + 120
        while True:
            assert server.poll() is None, (tmp_path / "log").read_text()[-2000:]
            assert time.monotonic() < deadline
            try:
                if httpx.get(f"{url}/v2/models/alone/ready", trust_env=False).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        body = {"inputs": [{"name": "BODY", "shape": [1, 2], "datatype": "UINT8", "data": list(b"21")}]}
        answer = httpx.post(f"{url}/v2/models/alone/infer", json=body, trust_env=False).json()
        outputs = {output["name"]: output["data"] for output in answer["outputs"]}
        assert json.loads(bytes(outputs["ANSWER"])) == {"answer": 43.0}
    finally:
        triton_process.stop(server)
    assert not list((tmp_path / "tmp").glob("slotwise-triton-*"))


def test_a_server_that_cannot_start_says_why_in_one_line(live: Live) -> None:
    with pytest.raises(SlotwiseError, match=rf"port {live.record.ports.inference} \(inference\) cannot be used"):
        check_can_start("other", "triton", live.record.ports)


def test_the_log_holds_no_token(live: Live) -> None:
    text = "".join(path.read_text("utf-8", "replace") for path in (live.record.state_dir / "logs").iterdir())
    text += (live.record.state_dir / "server.log").read_text("utf-8", "replace")
    for kind in ("inference", "management"):
        assert str(token(live.record, kind)) not in text
    assert not re.search(r"Traceback", (live.record.state_dir / "server.log").read_text("utf-8", "replace"))
