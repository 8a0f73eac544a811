"""The routes of other servers' protocols: records of one request are answered side by side, batched with everybody else's."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.routing import Route

from slotwise.backends.exchange import CLIENT_GONE
from slotwise.backends.interface import Refused
from slotwise.frontend.admission.limits import ClientGone, Receive
from slotwise.frontend.forward import Forward
from slotwise.frontend.frontend import FRESH_S, Gateway
from slotwise.frontend.http import openapi
from slotwise.frontend.inference_request import InferenceRequest
from slotwise.frontend.observing.observer import OWN_ANSWER
from slotwise.frontend.protocols import kserve_v1, open_inference, sagemaker, triton_extensions
from slotwise.frontend.protocols.each_record import answered
from slotwise.frontend.protocols.generate import Generate, GenerateStream
from slotwise.frontend.protocols.known_model import (
    answering,
    by_one_version,
    found_model,
    known_version,
    model_input,
    open_models,
    permitted_model,
    versions,
)
from slotwise.frontend.protocols.open_inference_outputs import InferRequest
from slotwise.frontend.protocols.records import JSON, NOT_AS_ASKED, Found, ModelInput, ProtocolFault, RecordAnswer, failed_alike
from slotwise.frontend.protocols.unpacking import unpack

REPLY_COPIES = 8  # of the answers, while one reply is made of them: as texts, in lists, joined, encoded
MISSING: dict[int | str, dict[str, Any]] = {404: openapi.text_failure("No such model")}
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"description": "Not ready"}}


class RecordProtocol(Protocol):
    """How one protocol reads a request and writes its answer. What may be large is done in threads: nothing here waits."""

    def reading_bytes(self, whole: InferenceRequest, request: Request) -> int:
        """The most memory that `read` takes, what it returns included. Raises ProtocolFault."""

    def read(self, whole: InferenceRequest, request: Request) -> tuple[Any, Found]:
        """What `reply` wants of the request, and its records, or the error of one that cannot be read. Raises ProtocolFault."""

    def reply(self, whole: InferenceRequest, content: Any, answers: Sequence[RecordAnswer]) -> Response:
        """The response."""


class ManyRecords:
    """The endpoint of a request of several records, each of which is a request to the model for itself.

    An error of the whole request is a text under `error`, as these protocols have it.
    """

    def __init__(self, forward: Forward, protocol: RecordProtocol) -> None:
        self.forward, self.gateway, self.protocol = forward, forward.gateway, protocol

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        deadline = time.monotonic() + self.gateway.options.timeout_s
        whole = InferenceRequest(request.path_params["model"], deadline, gateway=self.gateway)
        found: Found | None = None
        try:
            whole.read_head(request.scope)
            await known_version(self.gateway, whole)
            await whole.read_body(request.receive)
            content, found = await self._read(whole, request)
            async with leaving(request.receive) as gone:
                answers = await answered(self.forward, whole, found, gone)
            failed = failed_alike(answers)
            if failed:
                whole.failed(OWN_ANSWER)
            return _failed(failed.status, failed.message, whole) if failed else await self._reply(whole, content, answers)
        except ProtocolFault as fault:
            whole.bill.pay_anyhow(1)
            if found is None:  # else each record is counted
                self.gateway.metrics.answer(whole.label, fault.status, None, 0)
            whole.failed(NOT_AS_ASKED)
            return _failed(fault.status, fault.message, whole)
        except Refused as refused:
            self.gateway.metrics.answer(whole.label, refused.status, None, 0)
            whole.failed(refused.logged)
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in refused.headers()}
            return _failed(refused.status, refused.message, whole, headers)
        except ClientGone:
            return Response(status_code=CLIENT_GONE)
        finally:
            whole.release()

    async def _read(self, whole: InferenceRequest, request: Request) -> tuple[Any, Found]:
        """The records. Of the body nothing is kept. Raises ProtocolFault or Refused."""
        work = self.gateway.large_work
        try:
            async with asyncio.timeout(max(whole.left_s, 0)):
                await unpack(whole)
                size = len(whole.body)
                async with work.turn(size):
                    with whole.borrowed(await work.run(size, self.protocol.reading_bytes, whole, request)):
                        content, found = await work.run(size, self.protocol.read, whole, request)
                        whole.body = b""
                whole.hold_bytes(sum(len(record.body) for record in found))
        except TimeoutError:
            raise Refused(504, "the deadline passed before the body could be read") from None
        return content, found

    async def _reply(self, whole: InferenceRequest, content: Any, answers: Sequence[RecordAnswer]) -> Response:
        size, work = sum(len(answer.body) for answer in answers), self.gateway.large_work
        async with work.turn(size):
            with whole.borrowed(REPLY_COPIES * size):
                return await work.run(size, self.protocol.reply, whole, content, answers)


@asynccontextmanager
async def leaving(receive: Receive) -> AsyncIterator[asyncio.Event]:
    """An event that is set when the client hangs up; its body must have been read."""
    gone = asyncio.Event()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)  # it may have hung up already
    try:
        yield gone
    finally:
        watching.cancel()


def add(app: FastAPI, gateway: Gateway, forward: Forward) -> None:
    """Add the routes of every protocol."""
    _add_v1(app, gateway, forward)
    triton_extensions.add(app, gateway)
    _add_v2(app, gateway, forward)
    _add_sagemaker(app, gateway)


class _V1:
    """KServe V1."""

    def reading_bytes(self, whole: InferenceRequest, request: Request) -> int:
        return kserve_v1.reading_bytes(whole.body)

    def read(self, whole: InferenceRequest, request: Request) -> tuple[None, Found]:
        found = kserve_v1.records(whole.body)
        if len(found) > 1:
            by_one_version(whole.gateway, whole)
        return None, found

    def reply(self, whole: InferenceRequest, content: None, answers: Sequence[RecordAnswer]) -> Response:
        return Response(kserve_v1.reply(answers), media_type=JSON, headers={"x-request-id": whole.identity})


_ReadV2 = tuple[InferRequest, str, ModelInput]  # what is asked, of which version, and what that takes


@dataclass(frozen=True)
class _V2:
    """The Open Inference Protocol."""

    gateway: Gateway

    def reading_bytes(self, whole: InferenceRequest, request: Request) -> int:
        header_length = request.headers.get(open_inference.LENGTH)
        return open_inference.reading_bytes(whole.body, header_length, answering(self.gateway, whole)[1])

    def read(self, whole: InferenceRequest, request: Request) -> tuple[_ReadV2, Found]:
        header_length = request.headers.get(open_inference.LENGTH)
        version, model = answering(self.gateway, whole)
        call = open_inference.request(whole.body, header_length, model)
        call.ask(whole.headers)
        return (call, version, model), call.records

    def reply(self, whole: InferenceRequest, content: _ReadV2, answers: Sequence[RecordAnswer]) -> Response:
        asked, version, model = content  # as it was read: another version may be the default now
        headers, body = open_inference.reply(asked, whole.model, whole.answered_by.version or version, model, answers)
        return Response(body, headers={**headers, "x-request-id": whole.identity})


def _add_v1(app: FastAPI, gateway: Gateway, forward: Forward) -> None:
    predict = ManyRecords(forward, _V1())
    app.router.routes.append(Route("/v1/models/{model}:predict", predict.__call__, methods=["POST"], include_in_schema=False))

    @app.get("/v1/models", summary="KServe V1: the models")
    async def names(request: Request) -> dict[str, list[str]]:
        await gateway.refresh(FRESH_S)
        return {"models": [live.name for live in open_models(gateway, request.scope.get("slotwise.key"))]}

    @app.get("/v1/models/{model}", summary="KServe V1: whether a model is ready", responses=MISSING)
    async def status(model: str) -> JSONResponse:
        if found_model(gateway, model, "") is None:
            return _missing(model, "")
        return JSONResponse({"name": model, "ready": gateway.model_ready(model)})


def _add_v2(app: FastAPI, gateway: Gateway, forward: Forward) -> None:
    infer = ManyRecords(forward, _V2(gateway))
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        endpoints: dict[str, Any] = {
            "infer": infer.__call__,
            "generate": Generate(gateway),
            "generate_stream": GenerateStream(gateway),
        }
        for name, endpoint in endpoints.items():
            app.router.routes.append(Route(f"{path}/{name}", endpoint, methods=["POST"], include_in_schema=False))

    @app.get("/v2", summary="Open Inference Protocol: the server")
    async def server() -> dict[str, Any]:
        return open_inference.server()

    @app.get("/v2/health/live", summary="Open Inference Protocol: 200 while this process runs")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @app.get("/v2/health/ready", summary="Open Inference Protocol: 200 while one of the models is ready", responses=NOT_READY)
    async def ready() -> JSONResponse:
        return JSONResponse({"ready": gateway.ready()}, 200 if gateway.ready() else 503)

    async def described(request: Request, model: str, version: str) -> JSONResponse:
        try:
            await permitted_model(gateway, request.scope.get("slotwise.key"), model, version)
        except Refused as refused:
            return JSONResponse({"error": refused.message}, refused.status)
        return JSONResponse(open_inference.metadata(model, versions(gateway, model), model_input(gateway, model, version)))

    async def state(model: str, version: str) -> JSONResponse:
        if found_model(gateway, model, version) is None:
            return _missing(model, version)
        is_ready = gateway.model_ready(model, version)
        return JSONResponse({"name": model, "ready": is_ready}, 200 if is_ready else 503)

    inputs, readiness = "a model's inputs and outputs", "200 while this model is ready"

    @app.get("/v2/models/{model}", summary=f"Open Inference Protocol: {inputs}", responses=triton_extensions.REFUSED)
    async def model_inputs(request: Request, model: str) -> JSONResponse:
        return await described(request, model, "")

    @app.get(
        "/v2/models/{model}/versions/{version}",
        summary=f"Open Inference Protocol: {inputs}",
        responses=triton_extensions.REFUSED,
    )
    async def version_inputs(request: Request, model: str, version: str) -> JSONResponse:
        return await described(request, model, version)

    found_or_not = MISSING | NOT_READY

    @app.get("/v2/models/{model}/ready", summary=f"Open Inference Protocol: {readiness}", responses=found_or_not)
    async def model_ready(model: str) -> JSONResponse:
        return await state(model, "")

    @app.get(
        "/v2/models/{model}/versions/{version}/ready", summary=f"Open Inference Protocol: {readiness}", responses=found_or_not
    )
    async def version_ready(model: str, version: str) -> JSONResponse:
        return await state(model, version)


def _add_sagemaker(app: FastAPI, gateway: Gateway) -> None:
    invocations = Forward(gateway, lambda scope: sagemaker.asked_model(scope, gateway.options.default_model, gateway.models))
    app.router.routes.append(Route("/invocations", invocations, methods=["POST"], include_in_schema=False))

    @app.get("/ping", summary="SageMaker: 200 while one of the models is ready", responses=NOT_READY)
    async def ping() -> JSONResponse:
        return JSONResponse({"status": "Healthy" if gateway.ready() else "Unhealthy"}, 200 if gateway.ready() else 503)


def _missing(model: str, version: str) -> JSONResponse:
    return JSONResponse({"error": f"there is no model {model} {version}".strip()}, 404)


def _failed(status: int, message: str, whole: InferenceRequest, headers: dict[str, str] | None = None) -> Response:
    body = json.dumps({"error": message})  # in ASCII: a handler's message may have half of a surrogate pair
    return Response(body, status, {**(headers or {}), "x-request-id": whole.identity}, JSON)
