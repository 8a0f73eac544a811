"""Sequences of a model in the host's own process: no request is answered from a state that it was not meant for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from slotwise.backends.catalog import UNKNOWN
from slotwise.backends.exchange import BackendAnswer, BackendRequest, Refused, digest_of
from slotwise.backends.local import model_queue
from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.local.queue_members import BatchWorker, WaitingRequest
from slotwise.backends.local.sequence_queue import SequenceLimits
from slotwise.drop_in.inference_api import to_model
from slotwise.drop_in.own_host import LoggedModel
from slotwise.frontend.forward import Forward
from slotwise.frontend.frontend import Gateway, GatewayOptions
from slotwise.host.local_backend import LocalBackend
from slotwise.host.model_versions import ModelVersions
from slotwise.host.torchserve_grpc.inference_api import InferenceApi
from slotwise.host.torchserve_grpc.torchserve_messages import INFERENCE

ID, START, END = SequenceLimits().headers
ANYTHING: Any = SimpleNamespace(opens=lambda kind, given: True)
TOOK_S = 0.05
KILLER = b"kills"


class Model:
    """A version whose worker adds up the numbers of each sequence. It fails on what is no number, before it looks further."""

    def __init__(self, version: str = "1.0", **settings: Any) -> None:
        limits = SequenceLimits(10, 4, 600.0)
        place = Path("/nowhere")
        known: dict[str, Any] = {"archive": place, "model_dir": place, "environ": {}, "prints": None, "batch_size": 4}
        self.served = LoggedModel(
            ModelSettings(name="m", version=version, sequences=limits, **known, **settings), lambda *_: None, ANYTHING
        )
        self.served.wanted = 1
        self.queue: Any = self.served.queue
        self.batches: list[list[bytes]] = []
        self.start()

    def start(self) -> None:
        """Another worker, which knows of nothing."""
        self.totals: dict[str, int] = {}
        self.worker = BatchWorker(self.send, lambda why: pytest.fail(why))
        self.queue.joined(self.worker)
        self.worker.heard_at = 1e12

    def send(self, batch: Sequence[WaitingRequest]) -> None:
        self.batches.append([one.request.body for one in batch])
        asyncio.get_running_loop().call_later(TOOK_S, self.answer, batch)

    def answer(self, batch: Sequence[WaitingRequest]) -> None:
        if any(one.request.body == KILLER for one in batch):
            self.queue.ended(self.worker)
            self.start()
            return
        for one in batch:
            self.queue.answered(self.worker, one.id, self.answered(one.request))
        self.queue.done(self.worker, dead=False)

    def answered(self, request: BackendRequest) -> BackendAnswer:
        if not request.body.isdigit():
            return BackendAnswer(400, [], b"no number")
        if request.describes:
            return BackendAnswer(200, [], b"adds up")
        sequence = request.headers.get(ID, "")
        before = 0 if request.headers.get(START) else self.totals[sequence]
        self.totals[sequence] = before + int(request.body)
        return BackendAnswer(200, [], b"%d" % self.totals[sequence])


def headers(start: bool, sequence: str) -> dict[str, str]:
    return {ID: sequence, **({START: "true"} if start else {})}


async def ask(
    to: Any, body: bytes, start: bool = False, sequence: str = "s", of: type[BackendRequest] = BackendRequest, **about: Any
) -> bytes | int:
    """The answer's body, or the status of an error."""
    deadline = asyncio.get_running_loop().time() + 20
    request = of("m", deadline, headers=headers(start, sequence), body=body, target="/predictions/m", **about)
    try:
        answer = await to.answer(request)
    except Refused as refused:
        return refused.status
    return answer.body if answer.status < 400 else answer.status


async def front(*models: Model, **options: Any) -> tuple[Gateway, LocalBackend]:
    """A gateway before these versions, the first of them the default."""
    loaded = ModelVersions()
    for model in reversed(models):
        loaded.add(model.served, default=True)
    live: Any = SimpleNamespace(name="m", version="1.0", ready_workers=1, workers=[1], batch_size=4, queue_size=0)
    backend = LocalBackend(loaded, ANYTHING, 1000, lambda: [live])
    backend.card = lambda model: UNKNOWN  # type: ignore[method-assign]
    gateway = Gateway(backend, GatewayOptions(**options))
    await gateway.refresh(0)
    return gateway, backend


async def predict(gateway: Gateway, body: bytes, start: bool = False, sequence: str = "s") -> bytes | int:
    """As `ask`, through the front."""
    forward = Forward(gateway, "m")
    raw = [(name.encode(), value.encode()) for name, value in headers(start, sequence).items()]
    scope = {"path_params": {"model": "m"}, "query_string": b"", "headers": raw, "client": (sequence, 1)}
    reply = await forward.reply(forward.request(scope), scope, asyncio.Event().wait, whole=body)  # type: ignore[arg-type]
    assert reply is not None
    return reply.body if reply.status < 400 else reply.status


def test_one_whose_beginning_failed_is_over() -> None:
    """Nobody knows whether the handler forgot what was before; what waits for it was not meant for that."""

    async def history() -> None:
        model = Model()
        assert await ask(model.served, b"100", True) == b"100"
        assert await asyncio.gather(ask(model.served, b"x", True), ask(model.served, b"5")) == [400, 410]
        assert await ask(model.served, b"5") == 410
        assert await ask(model.served, b"1", True) == b"1"
        assert [await ask(model.served, body) for body in (b"x", b"5")] == [400, b"6"]

    asyncio.run(history())


def test_one_whose_beginning_got_no_job_ticket_is_over() -> None:
    async def history() -> None:
        model = Model(tickets=True)
        assert await ask(model.served, b"100", True) == b"100"
        other = asyncio.ensure_future(ask(model.served, b"1", True, "other"))
        await asyncio.sleep(0)
        assert await ask(model.served, b"1", True) == 503
        assert (await other, await ask(model.served, b"5")) == (b"1", 410)

    asyncio.run(history())


def test_one_whose_beginning_the_front_refused_is_over() -> None:
    async def history() -> None:
        gateway, _ = await front(Model(), in_flight=1, queued=0)
        assert await predict(gateway, b"100", True) == b"100"
        other = asyncio.ensure_future(predict(gateway, b"1", True, "other"))
        await asyncio.sleep(0.001)
        assert [await predict(gateway, b"1"), await other, await predict(gateway, b"1")] == [429, b"1", b"101"]
        other = asyncio.ensure_future(predict(gateway, b"1", True, "other"))
        await asyncio.sleep(0.001)
        assert [await predict(gateway, b"1", True), await other, await predict(gateway, b"5")] == [429, b"1", 410]
        for body, start, outcome in ((b"100", True, b"100"), (b"1" * 1001, True, 413), (b"5", False, 410)):
            assert await predict(gateway, body, start) == outcome
        await gateway.close()

    asyncio.run(history())


def test_one_that_begins_anew_in_another_version_is_over_in_the_first() -> None:
    """One of them is the default, then the other, then the first again."""

    async def history() -> None:
        gateway, backend = await front(Model("1.0"), Model("2.0"))
        default = backend.loaded.set_default
        assert await ask(backend, b"100", True) == b"100"
        default("m", "2.0")
        assert [await ask(backend, b"1"), await ask(backend, b"1", True)] == [410, b"1"]
        default("m", "1.0")
        assert await ask(backend, b"5") == 410
        assert [await ask(backend, b"2", start, version="2.0") for start in (False, True, False)] == [b"3", b"2", b"4"]
        assert [await ask(backend, b"7", True), await ask(backend, b"1", version="2.0")] == [b"7", 410]
        assert await ask(backend, b"1", True, version="2.0") == b"1"
        assert await ask(backend, b"1") == b"8"
        default("m", "2.0")
        assert await predict(gateway, b"1" * 1001, True) == 413
        default("m", "1.0")
        assert await ask(backend, b"5") == 410
        await gateway.close()

    asyncio.run(history())


def test_questions_of_the_host_and_sequences_take_turns() -> None:
    async def history() -> None:
        model = Model()

        async def describe() -> None:
            while True:
                await ask(model.served, b"0", describes=True)

        hosts = [asyncio.ensure_future(describe()) for _ in range(16)]
        await asyncio.sleep(0)
        assert [await ask(model.served, b"1", start) for start in (True, False)] == [b"1", b"2"]
        assert [b"1" in batch for batch in model.batches][:4] == [False, True, False, True]
        for one in hosts:
            one.cancel()

    asyncio.run(history())


def test_what_only_the_host_asks_no_client_says() -> None:
    """Such a request would belong to no sequence."""
    assert (to_model(b"describe"), to_model(b"color")) == ("", "color")


@dataclass
class Convicted(BackendRequest):
    """A request that notes its conviction. known: by digest, of a body and whose it is."""

    known: list[bytes] = field(default_factory=list)

    def convict(self) -> None:
        self.known.append(self.digest)


@pytest.mark.parametrize("begins", [True, False])
def test_what_ends_workers_is_convicted_the_second_time(monkeypatch: pytest.MonkeyPatch, begins: bool) -> None:
    """Alone, whoever else waits. Where it goes on, another sender's body that is the same is not convicted with it."""
    monkeypatch.setattr(model_queue, "CALM_S", 0.01)

    async def history() -> None:
        model, known = Model(), list[bytes]()

        async def tell(body: bytes, start: bool, sequence: str) -> bytes | int:
            return await ask(model.served, body, start, sequence, of=Convicted, sender=sequence, known=known)

        for death in (1, 2):
            for sequence in ("bad", "good"):
                assert await tell(b"1", True, sequence) == b"1"
            others = [asyncio.ensure_future(tell(b"2", False, "good"))] if death == 2 else []
            assert await tell(KILLER, begins, "bad") == 500
            assert [await one for one in others] in ([], [b"3"], [410])
            assert len(known) == death - 1
        assert model.batches[-1] == [KILLER]
        anybodys = digest_of("m", KILLER, "/predictions/m")
        assert (known == [anybodys]) is begins
        assert await tell(b"1", True, "good") == b"1"
        assert await tell(b"2", False, "good") == b"3"

    asyncio.run(history())


class Context:
    """A call of gRPC as grpcio shows it."""

    def __init__(self, **metadata: str) -> None:
        self.invocation_metadata = lambda: tuple(metadata.items())

    def peer(self) -> str:
        return "ipv4:10.0.0.1:1"

    def time_remaining(self) -> None:
        return None

    def set_trailing_metadata(self, metadata: object) -> None:
        pass

    async def send_initial_metadata(self, metadata: object) -> None:
        pass

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: object = ()) -> None:
        raise grpc.aio.AbortError


async def _messages(count: int) -> Any:
    for _ in range(count):
        yield b""


@pytest.mark.parametrize("count", [0, 1, 2])
def test_one_whose_beginning_was_no_message_is_over(count: int) -> None:
    """Nobody knows then which model it was for."""

    async def history() -> None:
        gateway, backend = await front(Model())
        api = InferenceApi(gateway, ANYTHING, backend.loaded, (ID, START, END))
        assert await ask(backend, b"100", True) == b"100"
        with pytest.raises(grpc.aio.AbortError):
            await api.methods["Predictions"](_messages(count), Context(**headers(True, "s")))
        assert await ask(backend, b"5") == 410
        await gateway.close()

    asyncio.run(history())


def test_one_of_a_call_whose_first_message_was_refused_does_not_begin_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it go on with what was before."""

    async def history() -> None:
        gateway, backend = await front(Model())
        api = InferenceApi(gateway, ANYTHING, backend.loaded, (ID, START, END))
        assert await ask(backend, b"100", True) == b"100"
        asked, answered = INFERENCE.classes["PredictionsRequest"], INFERENCE.classes["PredictionResponse"]
        messages = [asked(model_name="m", sequence_id="s", input={"data": data}) for data in (b"1" * 1001, b"5")]
        context, answers = Context(), []

        async def given() -> Any:
            for message in messages:
                yield message.SerializeToString()

        async def write(written: bytes) -> None:
            answers.append(answered.FromString(written))

        context.write = write  # type: ignore[attr-defined]
        await api.methods["StreamPredictions2"](given(), context)
        assert [one.HasField("status") for one in answers] == [True, True]
        assert "begin it anew" in answers[1].status.message
        await gateway.close()

    asyncio.run(history())
