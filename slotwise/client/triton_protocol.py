"""Ask a model on Triton as if it stood on TorchServe: one request as the Open Inference Protocol wants it, and its answer back.

POST /predictions/MODEL   body, headers
  -> POST /v2/models/MODEL/infer   BODY, HEADERS as binary tensors
  -> ANSWER, STATUS, HEADERS, or {"error": a JSON text with status, headers and body}
  -> status, headers, body, as TorchServe would have answered

Nothing is sent here: whoever has a connection calls `request` before, and `answer` after.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

V2 = "/v2/models/"
LENGTH = "inference-header-content-length"
SLOT = '{"status":'  # so an error begins that a handler gave
OF_THE_CONNECTION = {"authorization", "host", "content-length", "connection", "accept-encoding", "transfer-encoding"}
TRACE = ("traceparent", "tracestate")  # Triton's own traces read these
TYPES = {
    400: "BadRequestException",
    404: "ModelNotFoundException",
    503: "ServiceUnavailableException",
}


@dataclass(frozen=True)
class TritonRequest:
    """A request for Triton. path: with the model's name. headers: of HTTP, names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class PlainAnswer:
    """What the model answered. headers: the handler's own and the batch's, and content-type; names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def request(target: str, headers: Mapping[str, str], body: bytes) -> TritonRequest:
    """The request for Triton. target: /predictions/MODEL, with or without a version or a query, or its path on Triton."""
    model = target.partition("?")[0].split("/", 4)[3 if target.startswith(V2) else 2]
    names = {name.lower(): value for name, value in headers.items()}
    packed = json.dumps({name: value for name, value in names.items() if name not in OF_THE_CONNECTION}).encode()
    head = json.dumps(
        {"inputs": [_tensor("BODY", body), _tensor("HEADERS", packed)], "parameters": {"binary_data_output": True}}
    )
    own = {name: names[name] for name in ("authorization", *TRACE) if name in names}
    own |= {"content-type": "application/octet-stream", "accept-encoding": "identity", LENGTH: str(len(head))}
    return TritonRequest(f"/v2/models/{model}/infer", own, b"".join((head.encode(), body, packed)))


def answer(status: int, headers: Mapping[str, str], body: bytes) -> PlainAnswer:
    """The answer that Triton's own is. headers: Triton's, names in lower case."""
    if status >= 400:
        return _error(status, body)
    try:
        length = int(headers[LENGTH])
        outputs = _outputs(json.loads(body[:length]), memoryview(body)[length:])
        own = json.loads(outputs["HEADERS"])
        code = int.from_bytes(outputs["STATUS"], "little")
        return PlainAnswer(code, {str(name).lower(): str(value) for name, value in own.items()}, outputs["ANSWER"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return _own(502, "Triton's answer is none of a model of Slotwise")


def _tensor(name: str, content: bytes) -> dict[str, Any]:
    size = len(content)
    return {"name": name, "shape": [1, size], "datatype": "UINT8", "parameters": {"binary_data_size": size}}


def _outputs(head: Mapping[str, Any], content: memoryview) -> dict[str, bytes]:
    outputs: dict[str, bytes] = {}
    at = 0
    for output in head["outputs"]:
        size = int(output["parameters"]["binary_data_size"])
        outputs[output["name"]] = bytes(content[at : at + size])
        at += size
    return outputs


def _error(status: int, body: bytes) -> PlainAnswer:
    """A slot's own error; else Triton's, in TorchServe's form."""
    try:
        message = str(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        message = body.decode("utf-8", "replace").strip() or "Triton gave no reason"
    try:
        slot = json.loads(message[message.index(SLOT) :])
        own = {str(name).lower(): str(value) for name, value in slot["headers"].items()}
        return PlainAnswer(int(slot["status"]), own, str(slot["body"]).encode("utf-8"))
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    if status == 403:  # in the words by which the token is known to be wrong
        return _own(400, f"Token Authorization failed. {message}", "InvalidKeyException")
    if "unknown model" in message or "is not found" in message:
        status = 404
    elif message.endswith("is not healthy."):  # the process of an instance has died: the model is to be loaded again
        status = 503
    return _own(status, message)


def _own(status: int, message: str, type_: str = "") -> PlainAnswer:
    body = {"code": status, "type": type_ or TYPES.get(status, "InternalServerException"), "message": message}
    return PlainAnswer(status, {"content-type": "application/json"}, json.dumps(body, indent=2).encode())
