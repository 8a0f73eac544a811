"""A plain request as one for Triton, and Triton's answer as a plain one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from slotwise.client import triton_protocol
from tests.worker import triton_backend as backend


def tensors(sent: triton_protocol.TritonRequest) -> dict[str, bytes]:
    """The tensors of a request, cut as the protocol says."""
    length = int(sent.headers["inference-header-content-length"])
    head, at, found = json.loads(sent.body[:length]), length, {}
    for tensor in head["inputs"]:
        size = tensor["parameters"]["binary_data_size"]
        assert tensor["shape"] == [1, size]
        found[tensor["name"]] = sent.body[at : at + size]
        at += size
    assert at == len(sent.body)
    return found


def binary(**outputs: Any) -> tuple[dict[str, str], bytes]:
    """An answer of Triton: its headers and its body."""
    described = [{"name": name, "parameters": {"binary_data_size": value.nbytes}} for name, value in outputs.items()]
    head = json.dumps({"outputs": described}).encode()
    body = head + b"".join(value.tobytes() for value in outputs.values())
    return {"inference-header-content-length": str(len(head))}, body


def test_a_request_carries_its_headers_and_the_token_stays_outside() -> None:
    headers = {"Content-Type": "image/png", "Authorization": "Bearer secret", "X-Request-Id": "a", "traceparent": "00-1-2-01"}
    sent = triton_protocol.request("/predictions/digits/1.0?x=1", headers, b"\x00\xffbytes")
    assert sent.path == "/v2/models/digits/infer"
    assert sent.headers["authorization"] == "Bearer secret"
    assert sent.headers["traceparent"] == "00-1-2-01"
    found = tensors(sent)
    assert found["BODY"] == b"\x00\xffbytes"
    assert json.loads(found["HEADERS"]) == {
        "content-type": "image/png",
        "x-request-id": "a",
        "traceparent": "00-1-2-01",
    }
    assert tensors(triton_protocol.request("/predictions/digits", {}, b""))["BODY"] == b""


def test_an_answer_is_what_the_slot_says() -> None:
    told = np.frombuffer(json.dumps({"Content-Type": "text/plain", "x-batch-slot": "3"}).encode(), np.uint8)
    headers, body = binary(ANSWER=np.frombuffer(b"seven", np.uint8), STATUS=np.array([200], np.int32), HEADERS=told)
    plain = triton_protocol.answer(200, headers, body)
    assert plain == triton_protocol.PlainAnswer(200, {"content-type": "text/plain", "x-batch-slot": "3"}, b"seven")


def test_a_refusal_keeps_the_status_that_triton_cannot_say() -> None:
    error = backend.TritonError(json.dumps({"status": 413, "headers": {"x-batch-slot": "1"}, "body": '{"error": "ü"}'}), 3)
    for message in (error.message, f"in ensemble 'x', {error.message}"):
        plain = triton_protocol.answer(400, {}, json.dumps({"error": message}).encode())
        assert (plain.status, plain.headers, plain.body) == (413, {"x-batch-slot": "1"}, '{"error": "ü"}'.encode())


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (404, b'{"error":"Request for unknown model: \'x\' is not found"}', (404, "ModelNotFoundException")),
        (403, b'{"error":"This API is restricted, expecting header \'authorization\'"}', (400, "InvalidKeyException")),
        (503, b'{"error":"Exceeds maximum queue size"}', (503, "ServiceUnavailableException")),
        (500, b'{"error":"Stub process \'x_0_0\' is not healthy."}', (503, "ServiceUnavailableException")),
        (500, b"", (500, "InternalServerException")),
        (500, b'["odd"]', (500, "InternalServerException")),
        (400, b'{"error":"{\\"status\\":"}', (400, "BadRequestException")),
        (200, b"not what was agreed", (502, "InternalServerException")),
    ],
)
def test_what_triton_itself_says_has_torchserves_form(status: int, body: bytes, expected: tuple[int, str]) -> None:
    plain = triton_protocol.answer(status, {}, body)
    error = json.loads(plain.body)
    assert (plain.status, error["type"]) == expected
    assert error["code"] == plain.status
    assert error["message"]
    assert "x-batch-slot" not in plain.headers
