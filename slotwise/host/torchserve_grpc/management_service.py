"""TorchServe's ManagementAPIsService: each call is one of the management API's, which answers it over HTTP, too."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from slotwise.backends.management.api import ManagementApi, ManagementCall, PlainCall
from slotwise.backends.management.bearer import Tokens
from slotwise.backends.management.models import ApiError, ModelTable, refusal
from slotwise.errors import SlotwiseError
from slotwise.frontend.frontend import Gateway
from slotwise.frontend.grpc.call import Call
from slotwise.frontend.grpc.service import Answer, CallEnd, Messages
from slotwise.host.torchserve_grpc.torchserve_messages import MANAGEMENT, MANAGEMENT_SERVICE
from slotwise.host.torchserve_grpc.torchserve_service import CallRefused, TorchServeService, class_of

NAMED = {"model_name": "name", "model_version": "version"}  # fields of a message, and the parts of the address they are
Asked = Callable[[ManagementCall], Awaitable[web.Response]]


class ManagementService(TorchServeService):
    """Answers the six calls. changeable: whether models can be registered and unregistered."""

    def __init__(self, gateway: Gateway, tokens: Tokens, models: ModelTable, *, changeable: bool = True) -> None:
        api = ManagementApi(models)
        answers = {
            "DescribeModel": self._answer("DescribeModelRequest", api.describe),
            "ListModels": self._answer("ListModelsRequest", api.list, named=False),
            "RegisterModel": self._answer("RegisterModelRequest", api.register, named=False),
            "ScaleWorker": self._answer("ScaleWorkerRequest", api.scale),
            "SetDefault": self._answer("SetDefaultRequest", _with_version(api.set_default)),
            "UnregisterModel": self._answer("UnregisterModelRequest", _with_name(api.unregister)),
        }
        if not changeable:
            answers |= {"RegisterModel": _disabled, "UnregisterModel": _disabled}
        super().__init__(gateway, tokens, "management", MANAGEMENT_SERVICE, answers)

    def end_of(self, error: Exception) -> CallEnd | None:
        """In the words of the management API; what nobody foresaw is not told to the client."""
        if isinstance(error, ApiError | SlotwiseError):
            refused = refusal(error)
            return CallRefused(refused.status, refused.message, class_of(refused.type_)).end
        return super().end_of(error)

    def _answer(self, kind: str, asked: Asked, *, named: bool = True) -> Answer:
        async def answer(call: Call, messages: Messages) -> bytes:
            message = MANAGEMENT.parsed(kind, await self.read(messages, call))
            response = await asked(call_of(message, named=named))
            written: bytes = MANAGEMENT.classes["ManagementResponse"](msg=_words(response)).SerializeToString()
            return written

        return answer


async def _disabled(call: Call, messages: Messages) -> bytes:
    raise CallRefused(403, "Model API disabled", class_of("ModelException"))


def _words(response: web.Response) -> str:
    """An object that has but a status is that status; anything else is JSON, in lines as TorchServe's."""
    content = json.loads(response.text or "{}")
    return str(content["status"]) if list(content) == ["status"] else json.dumps(content, indent=2)


def call_of(message: Any, *, named: bool) -> PlainCall:
    """A message as a call. A field that is not set, or 0, is left out, as TorchServe does; what is not synchronous says so.

    named: model and version stand in the address.
    """
    given = {one.name: _text(value) for one, value in message.ListFields()}
    if "synchronous" in message.DESCRIPTOR.fields_by_name:  # by HTTP a registration is, where it says nothing
        given["synchronous"] = _text(message.synchronous)
    if not named:
        return PlainCall(given)
    address = {"name": "", **{NAMED[name]: given.pop(name) for name in NAMED if name in given}}
    return PlainCall(given, address)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_version(asked: Asked) -> Asked:
    """The call where a version that is not given is none that there can be."""

    async def with_version(call: ManagementCall) -> web.Response:
        return await asked(PlainCall(call.query, {"version": "", **call.match_info}))

    return with_version


def _with_name(asked: Asked) -> Asked:
    """The call where a name has to be given."""

    async def with_name(call: ManagementCall) -> web.Response:
        if not call.match_info["name"]:
            raise ApiError(400, "BadRequestException", "Parameter url is required.")  # TorchServe's own words
        return await asked(call)

    return with_name
