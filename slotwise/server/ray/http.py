"""What Ray's applications answer besides a model's own answers: /ping, unknown paths, refusals in TorchServe's form."""

from __future__ import annotations

import json

from starlette.requests import Request
from starlette.responses import Response

from slotwise.archive.local_model import LocalAnswer

PREFIX = "/predictions/"


class Front:
    """What no model's application answers: /ping, and paths of models that are not there."""

    async def __call__(self, request: Request) -> Response:
        """Healthy, or TorchServe's 404."""
        path = request.url.path
        if path == "/ping":
            return Response(json.dumps({"status": "Healthy"}), media_type="application/json")
        model = path.removeprefix(PREFIX).partition("/")[0]
        if path.startswith(PREFIX):
            return refusal(404, "ModelNotFoundException", f"Model not found: {model}")
        return refusal(404, "ResourceNotFoundException", "Requested resource is not found, please refer to API document.")


async def body_within(request: Request, most_bytes: int) -> bytes | None:
    """The request's body; None for a longer one, of which no more is read. It may come in chunks that announce no length."""
    if int(request.headers.get("content-length") or 0) > most_bytes:
        return None
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most_bytes:
            return None
        parts.append(part)
    return b"".join(parts)


def response(answer: LocalAnswer) -> Response:
    """A slot's answer as HTTP."""
    return Response(answer.body, answer.status, {**answer.headers, "content-type": answer.content_type})


def refusal(status: int, type_: str, message: str) -> Response:
    """The server's own error in TorchServe's form."""
    return Response(json.dumps({"code": status, "type": type_, "message": message}), status, media_type="application/json")


def died() -> LocalAnswer:
    """What a request gets whose worker has died with it."""
    body = {"code": 500, "type": "InternalServerException", "message": "Worker died."}
    return LocalAnswer(500, "application/json", {}, json.dumps(body).encode())
