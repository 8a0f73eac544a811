"""TorchServe's gRPC on our own host, beside a TorchServe as installed: codes, words and shapes; who is let in; what ends it."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.frontend.grpc.message_table import MessageTable
from slotwise.frontend.protocols.records import ProtocolFault
from slotwise.host import server
from slotwise.host.torchserve_grpc.form_body import body_of
from slotwise.host.torchserve_grpc.torchserve_messages import INFERENCE, INFERENCE_SERVICE, MANAGEMENT
from slotwise.profiles.ports import Ports
from slotwise.worker.hosts import forms
from slotwise.worker.request import Request
from tests.server.conftest import BATCHES, Live, build_handler, started
from tests.server.grpc_calls import CALLS, MORE, REASONS, unexpected
from tests.support.deployments import TORCHSERVE, deployed
from tests.support.torchserve_client import TorchServeClient, client_of
from tests.support.waiting import until

DOCS = Path(__file__).parents[2] / "docs" / "host-apis.md"
PATIENCE_S = 240.0
INPUTS = st.dictionaries(
    st.from_regex(r"[!#-\[\]-~]([ !#-\[\]-~]{0,5}[!#-\[\]-~])?", fullmatch=True), st.binary(max_size=20), max_size=4
)


@pytest.fixture(scope="module")
def grpc_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store, work = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("models")
    for name, version in (("faults", "1.0"), ("faults", "2.0"), ("spare", "1.0")):
        build_handler(name, store, work, version=version)
    return store


@pytest.fixture(scope="module")
def host(grpc_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A host with nothing registered, which waits for full batches."""
    with started("slotwise", tmp_path_factory.mktemp("slotwise"), grpc_store, linger="exact") as live:
        yield live


@pytest.fixture(scope="module")
def ours(host: Live) -> Iterator[TorchServeClient]:
    with client_of(host.record.ports, host.record.state_dir) as client:
        yield client


@pytest.fixture(scope="module")
def theirs(grpc_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeClient]:
    folder = tmp_path_factory.mktemp("theirs") / "installed"
    with deployed(TORCHSERVE, folder, grpc_store) as theirs, client_of(theirs.ports, folder) as client:
        yield client


@pytest.mark.server
@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_call_ends_as_on_torchserve_or_differs_for_a_reason(theirs: TorchServeClient, ours: TorchServeClient) -> None:
    assert unexpected(theirs, ours) == []


def test_every_reason_stands_on_the_page() -> None:
    page = DOCS.read_text("utf-8")
    assert [reason for reason in (*REASONS, MORE) if reason not in page] == []
    assert f"sends {len(CALLS)} calls to a TorchServe" in page


@pytest.mark.server
def test_a_bad_one_of_eight_costs_nobody_else_anything(host: Live, ours: TorchServeClient) -> None:
    with host.registered("faults", **BATCHES):
        for bad, code in ((b"word", "INVALID_ARGUMENT"), (b"raise", "INTERNAL")):
            bodies = [b"%d" % i for i in range(7)]
            with ThreadPoolExecutor(8) as threads:
                asked = [threads.submit(ours.predict, "faults", body) for body in [*bodies, bad]]
                *good, refused = [one.result() for one in asked]
            assert [one.value for one in good] == [{"answer": 2.0 * i + 1} for i in range(7)]
            assert refused.code == code
            assert refused.details.endswith("\norg.pytorch.serve.http.InternalServerException")


@pytest.mark.server
def test_a_body_that_ends_workers_is_known_again(host: Live, ours: TorchServeClient) -> None:
    with host.registered("faults", initial_workers=2, max_batch_delay=0):
        codes = [ours.predict("faults", b"torn").code for _ in range(2)]
        assert codes == ["INTERNAL", "FAILED_PRECONDITION"]
        host.management.wait_ready("faults", 2)
        assert ours.predict("faults", b"4").value == {"answer": 9.0}


@pytest.mark.server
def test_who_has_no_worker_may_come_again_and_who_hangs_up_leaves_nothing(host: Live, ours: TorchServeClient) -> None:
    with host.registered("faults", max_batch_delay=0):
        with ThreadPoolExecutor(8) as threads:
            asked = {"model_name": "faults", "input": {"data": b"sleep 1"}, "timeout": 0.3}
            late = [threads.submit(ours.ask, method, **asked) for method in 4 * ("Predictions", "StreamPredictions")]
        assert {one.result().code for one in late} == {"DEADLINE_EXCEEDED"}
        assert ours.predict("faults", b"4").value == {"answer": 9.0}
        until(lambda: 'slotwise_host_open_requests{model="faults",version="1.0"} 0.0' in _metrics(host), "it is open")
        until(lambda: "\nslotwise_gateway_memory_bytes 0.0\n" in _metrics(host), "its memory is taken")
        assert httpx.put(
            f"{host.record.management_url}/models/faults",
            params={"min_worker": 0, "synchronous": "true"},
            headers={"authorization": f"Bearer {ours.token('management')}"},
            timeout=PATIENCE_S,
        ).is_success  # fmt: skip
        assert ours.predict("faults", b"4").code == "UNAVAILABLE"


def _metrics(host: Live) -> str:
    return httpx.get(f"{host.record.metrics_url}/metrics", timeout=PATIENCE_S).text


@pytest.mark.server
def test_idle_calls_keep_nobody_waiting(host: Live, ours: TorchServeClient) -> None:
    """Those that have the token wait for a place to be read; those that have none are refused at once."""
    over, known = threading.Event(), (("authorization", f"Bearer {ours.token('inference')}"),)
    options = [("grpc.use_local_subchannel_pool", 1)]
    address = f"127.0.0.1:{host.record.ports.grpc_inference}"
    with host.registered("faults", max_batch_delay=0), grpc.insecure_channel(address, options) as channel:
        predictions = channel.stream_unary(f"/{INFERENCE_SERVICE}/Predictions")

        def nothing() -> Iterator[bytes]:
            over.wait()
            yield from ()

        idle = [predictions.future(nothing(), metadata=known, timeout=PATIENCE_S) for _ in range(64)]
        refused = [predictions.future(nothing(), timeout=PATIENCE_S) for _ in range(64)]
        assert {one.code().name for one in refused} == {"PERMISSION_DENIED"}
        assert [ours.predict("faults", b"4").value for _ in range(5)] == [{"answer": 9.0}] * 5
        over.set()
        assert {one.code().name for one in idle} <= {"INVALID_ARGUMENT", "UNAVAILABLE"}  # no message, or too late


@pytest.mark.server
def test_a_call_has_one_message(host: Live, ours: TorchServeClient) -> None:
    message = INFERENCE.classes["PredictionsRequest"](model_name="faults", input={"data": b"4"}).SerializeToString()
    known = (("authorization", f"Bearer {ours.token('inference')}"),)
    with grpc.insecure_channel(f"127.0.0.1:{host.record.ports.grpc_inference}") as channel:
        predictions = channel.stream_unary(f"/{INFERENCE_SERVICE}/Predictions")
        for count in (0, 2):
            answer = predictions.future(iter([message] * count), metadata=known, timeout=PATIENCE_S)
            assert answer.code().name == "INVALID_ARGUMENT"


@pytest.mark.server
def test_a_new_token_voids_the_old_one_here_too(host: Live, ours: TorchServeClient) -> None:
    for kind, method in (("inference", "Ping"), ("management", "ListModels")):
        old = ours.token(kind)
        assert ours.ask(method, token=old).code == "OK"
        headers = {"authorization": f"Bearer {ours.token('API')}"}
        answer = httpx.get(f"{host.record.management_url}/token", params={"type": kind}, headers=headers, timeout=PATIENCE_S)
        assert answer.is_success
        assert [ours.ask(method, token=token).code for token in (old, None)] == ["PERMISSION_DENIED", "OK"]


@pytest.mark.server
def test_what_is_asked_when_the_host_ends_is_answered(grpc_store: Path, tmp_path: Path) -> None:
    with (
        started("slotwise", tmp_path, grpc_store) as host,
        client_of(host.record.ports, host.record.state_dir) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        host.management.register("spare.mar", **(BATCHES | {"max_batch_delay": 0}))
        host.management.wait_ready("spare")
        asked = threads.submit(client.predict, "spare", b"sleep 5")
        until(lambda: 'slotwise_host_open_requests{model="spare",version="1.0"} 1.0' in _metrics(host), "it has not come")
        os.kill(host.record.pid, signal.SIGTERM)
        assert asked.result().code == "OK"
        until(lambda: not host.record.alive(), "the host runs")


def test_the_messages_are_those_of_the_torchserve_that_is_installed() -> None:
    ts = pytest.importorskip("ts")
    with zipfile.ZipFile(Path(ts.__file__).parent / "frontend" / "model-server.jar") as jar:
        texts = {
            table: jar.read(f"{name}.proto").decode() for table, name in ((INFERENCE, "inference"), (MANAGEMENT, "management"))
        }
    for table, text in texts.items():
        for name, body in re.findall(r"^message (\w+) \{(.*?)^\}", text, re.MULTILINE | re.DOTALL):
            fields = re.findall(r"^ +(?:optional )?([\w.<>, ]+) (\w+) = (\d+);", body, re.MULTILINE)
            theirs = {(kind, field, int(number)) for kind, field, number in fields if kind != "google.rpc.Status"}
            ours = {(_kind(one), one.name, one.number) for one in table.classes[name].DESCRIPTOR.fields if one.name != "status"}
            assert ours == theirs


def _kind(field: object) -> str:
    """A field's type as a .proto file has it."""
    kinds = {5: "int32", 8: "bool", 9: "string", 11: "map<string, bytes>", 12: "bytes"}
    return kinds[field.type]  # type: ignore[attr-defined]


@given(st.binary(max_size=60), st.sampled_from([(table, kind) for table in (INFERENCE, MANAGEMENT) for kind in table.classes]))
def test_no_bytes_raise_anything_but_a_refusal(data: bytes, kind: tuple[MessageTable, str]) -> None:
    table, name = kind
    with suppress(ProtocolFault):
        assert table.memory_bytes(name, data) >= 0
        table.parsed(name, data)


@given(INPUTS)
def test_a_handler_finds_every_input_under_its_name(inputs: dict[str, bytes]) -> None:
    content_type, body = body_of(inputs)
    found = forms.row(Request(body, {"content-type": content_type} if content_type else {}, "x"))
    assert found == (inputs or {"body": b""})
    assert body_of(dict(reversed(inputs.items()))) == (content_type, body)


@pytest.mark.parametrize("name", ["", 'a"b', "a\\b", "a\r\nb", "é", " a", "a ", "n" * 129])
def test_a_name_that_no_form_can_have_is_refused(name: str) -> None:
    with pytest.raises(ProtocolFault):
        body_of({name: b""})


@pytest.mark.anyio
async def test_without_grpcio_the_host_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in [one for one in sys.modules if one.startswith(("slotwise.frontend.grpc", "slotwise.host.torchserve_grpc"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with caplog.at_level(logging.WARNING):
        async with server.grpc_services(None, None, None, None, Ports()):  # type: ignore[arg-type]  # none of them is asked
            pass
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == ["no gRPC on 7070 and 7071"]
