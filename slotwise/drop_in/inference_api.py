"""TorchServe's inference API on our front: its paths, its health, the shape of its errors, and which headers go on.

/predictions/M[/VERSION[/REST]]    any method; REST reaches the handler as the header url_path
/explanations/M[/VERSION]          the handler gets the header explain: True, else False
/v1/models/M:predict|explain, /v2/models/M/infer|explain    the body as it is, where service_envelope says how it is read, and
                                  for another tool's handler
/M[/VERSION]/predict               the old name of a prediction
/ping  /api-description  OPTIONS /  OPTIONS /predictions/M
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from aiohttp import web

from slotwise import __version__
from slotwise.backends.exchange import Refused
from slotwise.drop_in.configuration import Configuration
from slotwise.frontend import replies
from slotwise.frontend.admission.limits import Receive
from slotwise.frontend.events.event_stream import EventClient
from slotwise.frontend.events.piece_stream import Opened
from slotwise.frontend.events.raw_pieces import opens_for_all
from slotwise.frontend.forward import Forward, Send
from slotwise.frontend.http.access import LONGEST_MODEL_PATH, Entrance, Names
from slotwise.frontend.inference_request import InferenceRequest, Scope
from slotwise.frontend.protocols.sagemaker import named_model
from slotwise.host.model_versions import ModelVersions

if TYPE_CHECKING:
    from slotwise.drop_in.one_port import OnePort

KINDS = {
    400: "BadRequestException",
    401: "InvalidKeyException",
    403: "BadRequestException",
    404: "ResourceNotFoundException",
    405: "MethodNotAllowedException",
    408: "RequestTimeoutException",
    409: "ConflictStatusException",
    413: "RequestEntityTooLargeException",
    503: "ServiceUnavailableException",
    507: "OutOfMemoryException",
}
KINDS_OF = {  # what a message begins with
    "Token Authorization": "InvalidKeyException",
    "Model not found": "ModelNotFoundException",
    "Model version": "ModelVersionNotFoundException",
    "Workflow not found": "WorkflowNotFoundException",
}
NOT_FOUND = "Requested resource is not found, please refer to API document."
NOT_ALLOWED = "Requested method is not allowed, please refer to API document."
MESSAGES = {"Not Found": NOT_FOUND, "Method Not Allowed": NOT_ALLOWED, "there is no such model": "Model not found"}
DESCRIBED = (("/", "OPTIONS"), ("/api-description", "GET"))  # needs no token, as there
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "trailer", "date", "server"}
KEPT_BACK = HOP_BY_HOP | {"authorization", "proxy-authorization", "x-api-key", "host", "te", "expect", "describe"}
_PATH = re.compile(r"/(predictions|explanations)/([^/]+)(?:/([^/]*)(?:/(.*))?)?").fullmatch
_INVOKED = re.compile(r"/models/([^/]*)/invoke").fullmatch
_OLD = re.compile(r"/([^/]+)(?:/([^/]+))?/predict/*").fullmatch
_ENVELOPED = re.compile(r"/v1/models/([^/:]+):(predict|explain)|/v2/models/([^/]+)/(infer|explain)").fullmatch


def torchserve_error(status: int, message: str, identity: str) -> bytes:
    """`{"code", "type", "message"}`, as TorchServe writes it."""
    usual = KINDS.get(status, "InternalServerException" if status >= 500 else "BadRequestException")
    message = MESSAGES.get(message, message)
    kind = next((kind for begin, kind in KINDS_OF.items() if message.startswith(begin)), usual)
    return (json.dumps({"code": status, "type": kind, "message": message}, indent=2) + "\n").encode()


def error_of(status: int, body: bytes, identity: str) -> bytes | None:
    """What a handler answers stays, as on TorchServe; what its guard or worker says of it gets TorchServe's shape."""
    with suppress(ValueError, KeyError, TypeError):
        if body.startswith(b'{"error":') and len(body) <= replies.LONGEST_ERROR_BYTES:
            content = json.loads(body)
            code, message = content["error"]["code"], content["error"]["message"]
            if content == {"error": {"code": code, "message": message}} and code in range(400, 600) and status in (code, 500):
                return replies.error_from_server(status, body, identity)
    return None


def to_model(name: bytes) -> str:
    """Every header of a request reaches its handler, as on TorchServe, but for secrets, the connection's and the host's own."""
    text = name.decode("latin-1")
    return "" if text in KEPT_BACK else text


@lru_cache(maxsize=256)
def to_client(name: bytes) -> str:
    """Every header that a handler sets reaches its client, but for what is about the connection, and our own ids."""
    low = name.lower()
    text = low.decode("latin-1")
    if not replies.is_header_name(low) or text in HOP_BY_HOP or (text.startswith("x-") and not replies.to_client(low)):
        return ""
    return text


def names_of(enveloped: bool, versions: ModelVersions) -> Names:
    """Which requests are for a model. enveloped: a service envelope reads V1 and V2; else another tool's handler does."""

    @lru_cache(maxsize=1024)
    def found(path: str) -> Mapping[str, str] | None:
        if match := _PATH(path):
            explain = str(match[1] == "explanations")
            return {"model": match[2], "version": match[3] or "", "url_path": match[4] or "", "explain": explain}
        if match := _INVOKED(path):
            return {"model": match[1], "version": ""}
        if match := _OLD(path):
            return {"model": match[1], "version": match[2] or ""}
        if match := _ENVELOPED(path):
            explain = str("explain" in (match[2], match[4]))
            return {"model": match[1] or match[3], "version": "", "url_path": "", "explain": explain}
        return None

    def names(method: str, path: str) -> Mapping[str, str] | None:
        named = found(path) if method != "OPTIONS" and len(path) <= LONGEST_MODEL_PATH else None
        if named and not enveloped and path.startswith(("/v1/", "/v2/")):
            served = next(iter(versions.by_name.get(named["model"], {}).values()), None)
            return named if served is not None and served.settings.foreign else None
        return named

    return names


PREFLIGHT = "access-control-request-method"  # a header of such a request alone
QUERY = "slotwise.query"  # in a scope: what was asked, where the handler does not get it


class DropInForward(Forward):
    """Gives the handler what TorchServe tells it of the path, and the client pieces as TorchServe sends them, asked or not."""

    versions: ModelVersions

    def opens(self, client: EventClient | None) -> Opened:
        """See Forward."""
        return opens_for_all(client, self.versions.piece_timeout_s)

    def request(self, scope: Scope) -> InferenceRequest:
        """See Forward."""
        request = super().request(scope)
        named = scope["path_params"]
        told = [(name, named[name]) for name in ("url_path", "explain") if name in named]
        added = [(name.encode(), value.encode("utf-8", "replace")) for name, value in told]
        scope["headers"] = [header for header in scope["headers"] if header[0] not in (b"url_path", b"explain")] + added
        if "url_path" in named:
            scope[QUERY], scope["query_string"] = scope["query_string"], b""  # there it reaches no handler
        return request

    async def prepare(self, request: InferenceRequest) -> None:
        """See Forward; the rest of the path may be in any script, and a header is read as Latin-1."""
        if rest := request.headers.get("url_path"):
            request.headers["url_path"] = rest.encode("latin-1").decode("utf-8")


def without_slash(scope: Scope) -> Scope:
    """The same request: a slash at the end of its path means nothing."""
    path = scope["path"]
    return {**scope, "path": path.rstrip("/") or "/"} if path.endswith("/") else scope


class DropInEntrance(Entrance):
    """TorchServe's other paths, before the front's own. versions: the models that there are. cors: whether pages may call.

    shared: answers the management API where that has this port, too.
    """

    versions: ModelVersions
    cors: bool = False
    shared: OnePort | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Entrance."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        scope = without_slash(scope)
        if self.shared and self.shared.takes(scope["method"], scope["path"]):
            began, managed = time.monotonic(), await self.shared.answer(scope, receive)
            if self.took is not None:
                self.took(scope, managed.status, began)
            await send_answer(send, managed)
            return
        answer = self._own(scope["method"], scope["path"])
        if answer is None and (scope["method"], scope["path"]) == ("POST", "/invocations"):
            scope["path"] = f"/models/{(model := self._invoked(scope['query_string']))}/invoke"
            answer = None if model else partial(_refused, 400, "Parameter model_name is required.")
        if answer is None:
            await super().__call__(scope, receive, send)
            return
        began = time.monotonic()
        try:
            if (scope["path"], scope["method"]) not in DESCRIBED and not (self.cors and is_preflight(scope)):
                self.check(scope)
            status, body = answer()
        except Refused as refused:
            status, body = _refused(refused.status, refused.message)
        if self.took is not None:
            self.took(scope, status, began)
        await send_answer(send, web.Response(body=body, status=status, content_type="application/json"))

    def _invoked(self, query: bytes) -> str:
        """The model that SageMaker's path asks: the one that the query names, else the only one, else ""."""
        every = {one.settings.name for one in self.versions.all()}
        return named_model(query) or (every.pop() if len(every) == 1 and not self.versions.loading else "")

    def _own(self, method: str, path: str) -> Callable[[], tuple[int, bytes]] | None:
        if path == "/ping":
            return self._health
        if (path, method) in DESCRIBED:
            return lambda: (200, _json(DESCRIPTION))
        if method == "OPTIONS":
            return lambda: self._described(path)
        if path.startswith("/wfpredict/"):
            return partial(_refused, 404, f"Workflow not found: {path.removeprefix('/wfpredict/')[:100]}")
        return None

    def _health(self) -> tuple[int, bytes]:
        """Healthy where every model has its workers, or none is to have any, once all of the start are there."""
        served = [one for one in self.versions.all() if one.wanted]
        if self.versions.loading or (served and not sum(len(one.queue.workers) for one in served)):
            return 500, _json({"status": "Unhealthy"})
        short = any(len(one.queue.workers) < one.wanted for one in served)
        return 200, _json({"status": "Partial Healthy" if short else "Healthy"})

    def _described(self, path: str) -> tuple[int, bytes]:
        match = _PATH(path)
        if match is None:
            return 200, _json(DESCRIPTION)
        try:
            self.versions.find(match[2], match[3] or "")
        except Refused:
            return _refused(404, f"Model not found: {match[2]:.100}")
        does = f"A predict entry point for model: {match[2]}."
        operation = {"description": does, "responses": {"200": {"description": "OK"}}}
        info = {"title": f"RESTful API for: {match[2]}", "version": "1.0.0"}
        return 200, _json({"openapi": "3.0.1", "info": info, "paths": {f"/predictions/{match[2]}": {"post": operation}}})


def _refused(status: int, message: str) -> tuple[int, bytes]:
    return status, torchserve_error(status, message, "")


async def send_answer(send: Send, answer: web.Response, identity: str = "") -> None:
    """A whole answer, with the headers that all have. identity: of the request, where it is told."""
    body = bytes(answer.body or b"")  # type: ignore[arg-type]  # it is no payload
    kind = answer.headers.get("content-type", "").encode()
    headers = [(b"content-type", kind)] if kind else []
    headers += [(b"x-request-id", identity.encode())] if identity else []
    headers += [(b"content-length", b"%d" % len(body)), *replies.ANSWER, *replies.SECURITY]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks beforehand what a page may do: that brings no token."""
    return scope["method"] == "OPTIONS" and any(name == PREFLIGHT.encode() for name, _ in scope["headers"])


def cors_headers(configuration: Configuration) -> dict[str, str]:
    """The headers that let pages of other origins call, where the deployment says so."""
    origin = configuration.text("cors_allowed_origin")
    named = {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": configuration.text("cors_allowed_methods"),
        "access-control-allow-headers": configuration.text("cors_allowed_headers"),
    }
    return {name: value for name, value in named.items() if value} if origin else {}


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _operation(summary: str) -> dict[str, Any]:
    refused = {"description": "Refused: code, type, message"}
    return {"description": summary, "responses": {"200": {"description": "OK"}, "default": refused}}


DESCRIPTION = {
    "openapi": "3.0.1",
    "info": {"title": "TorchServe's inference API, on Slotwise", "version": __version__},
    "paths": {
        "/": {"options": _operation("Get this description.")},
        "/ping": {"get": _operation("Whether every model has its workers.")},
        "/predictions/{model_name}": {method: _operation("Ask a model.") for method in ("get", "post", "put", "delete")},
        "/predictions/{model_name}/{model_version}": {"post": _operation("Ask one version of a model.")},
        "/explanations/{model_name}": {"post": _operation("Ask a model to explain its answer.")},
        "/v1/models/{model_name}:predict": {"post": _operation("KServe V1.")},
        "/v2/models/{model_name}/infer": {"post": _operation("KServe V2.")},
        "/invocations": {"post": _operation("SageMaker.")},
    },
}
