"""Requests of KServe's V1 and of the Open Inference Protocol, whole and damaged, through the gateway's own code."""

from __future__ import annotations

import base64
import json
import struct
from random import Random
from typing import Any

import numpy as np

from slotwise.frontend.protocols import kserve_v1, open_inference
from slotwise.frontend.protocols.open_inference_outputs import OF_CLASSES, label_of
from slotwise.frontend.protocols.records import ModelInput, ProtocolFault, RecordAnswer
from tests.campaign.hostile_values import changed, mutated, value, written
from tests.campaign.tally import Tally

MODELS = (
    ModelInput("tensor", (1, 2, 2), True),
    ModelInput("picture", (), True),
    ModelInput("translation"),
    ModelInput("tensor"),
)
STATUSES = {400, 413, 415}
LENGTHS = ("0", "-1", "9" * 30, "x", "", "٣", "1e3", "0x10")


def try_requests(protocol: str, count: int, i: int, draw: Random, tally: Tally) -> None:
    """Read so many requests; those left whole must be read as what they are."""
    for _ in range(count):
        tally.requests += 1
        (_try_v1 if protocol == "v1" else _try_v2)(i, draw, tally)


def _try_v1(i: int, draw: Random, tally: Tally) -> None:
    instances = [
        draw.choice(({"b64": base64.b64encode(draw.randbytes(9)).decode()}, [1, 2], "text", {"data": 1})) for _ in range(3)
    ]
    content: Any = {"instances": instances}
    whole = draw.random() < 0.25
    body = json.dumps(content).encode() if whole else _damaged(draw, content)
    try:
        found = kserve_v1.records(body)
    except ProtocolFault as fault:
        _refused(fault, whole, i, tally)
        return
    if whole:
        tally.innocents += 1
        sent = [
            base64.b64decode(one["b64"]) if isinstance(one, dict) and "b64" in one else json.dumps(one).encode()
            for one in instances
        ]
        if [one.body for one in found] != sent:
            tally.fail(i, "wrong", f"v1: read {found} of {instances}")
    answers = [_answer(draw) for _ in found]
    try:
        reply = json.loads(kserve_v1.reply(answers))
    except ProtocolFault as fault:
        _unanswered(fault, [one for one in answers if not _too_deep(one.body)], i, tally)
        return
    if len(reply["predictions"]) != len(found):
        tally.fail(i, "wrong", "v1: the answer has another number of records")


def _try_v2(i: int, draw: Random, tally: Tally) -> None:
    model = draw.choice(MODELS)
    head, binary, sent = _request(draw, model)
    whole = draw.random() < 0.25
    body = json.dumps(head).encode()
    if draw.random() < 0.0005:
        head["inputs"][0]["shape"] = [1] + [2**39] * 300_000
        body, whole = json.dumps(head).encode(), False
    elif not whole:
        body = _damaged(draw, head)
    length = None if not binary else str(len(body))
    if not whole and draw.random() < 0.2:
        length = draw.choice((*LENGTHS, str(draw.randrange(len(body) + 9))))
    tail = binary if whole or draw.random() < 0.8 else mutated(draw, binary)
    try:
        asked = open_inference.request(body + tail, length, model)
    except ProtocolFault as fault:
        _refused(fault, whole, i, tally)
        return
    if whole:
        tally.innocents += 1
        if [one.body for one in asked.records] != sent:
            tally.fail(i, "wrong", f"v2: read {[one.body for one in asked.records]} of {sent}")
    _reply(asked, model, i, draw, tally)


def _reply(asked: open_inference.InferRequest, model: ModelInput, i: int, draw: Random, tally: Tally) -> None:
    answers = [_answer(draw) for _ in asked.records]
    try:
        headers, body = open_inference.reply(asked, "toy", "1.0", model, answers)
    except ProtocolFault as fault:
        wants_label = not asked.outputs.keys().isdisjoint(OF_CLASSES)
        _unanswered(fault, [one for one in answers if not wants_label or label_of(one.value) is not None], i, tally)
        return
    content = json.loads(body[: int(headers.get(open_inference.LENGTH, len(body)))])
    if any(output["shape"] != [len(asked.records)] for output in content["outputs"]):
        tally.fail(i, "wrong", "v2: the answer has another number of records")


def _request(draw: Random, model: ModelInput) -> tuple[dict[str, Any], bytes, list[bytes]]:
    """A good request: its JSON, its binary data, and the records that are to be read."""
    n = draw.randrange(1, 5)
    outputs = draw.choice(({}, {"outputs": [{"name": "answer", "parameters": {"binary_data": True}}]}, {"id": "日"}))
    if model.takes == "tensor":
        rows = np.float32([[draw.randrange(9) for _ in range(4)] for _ in range(n)])
        tensor = {"name": "input", "shape": [n, 1, 2, 2], "datatype": "FP32"}
        records = [row.tobytes() for row in rows]
        if draw.random() < 0.5:
            return {"inputs": [{**tensor, "data": rows.ravel().tolist()}], **outputs}, b"", records
        return {"inputs": [{**tensor, "parameters": {"binary_data_size": rows.nbytes}}], **outputs}, rows.tobytes(), records
    records = [draw.randbytes(draw.randrange(20)) for _ in range(n)]
    binary = b"".join(struct.pack("<I", len(one)) + one for one in records)
    tensor = {"name": "input", "shape": [n], "datatype": "BYTES", "parameters": {"binary_data_size": len(binary)}}
    return {"inputs": [tensor], **outputs}, binary, records


def _damaged(draw: Random, content: Any) -> bytes:
    if draw.random() < 0.3:
        return mutated(draw, json.dumps(content).encode())
    for _ in range(draw.choice((1, 1, 2, 3))):
        content = changed(draw, content)
    return written(content)


def _answer(draw: Random) -> RecordAnswer:
    """What a model may say of a record, also nonsense."""
    odd = {"label": value(draw, 1), "probabilities": draw.choice(({"a": value(draw, 1)}, value(draw, 1)))}
    if draw.random() < 0.5:
        odd = {"label": "a", "probabilities": {"a": value(draw, 1)}}
    said = draw.choice((odd, {"label": "7", "probabilities": {"7": 0.5}}, value(draw, 2), {"error": value(draw, 1)}))
    return RecordAnswer(draw.choice((200, 200, 400, 500)), draw.choice((written(said), b"\xff", b"")))


def _too_deep(body: bytes) -> bool:
    """Whether it is JSON that no list can hold."""
    try:
        json.loads(body)
    except RecursionError:
        return True
    except ValueError:
        pass
    return False


def _unanswered(fault: ProtocolFault, answers: list[RecordAnswer], i: int, tally: Tally) -> None:
    """An error instead of a reply is right where no record has an answer that can stand in it."""
    if any(one.good and one.is_text for one in answers):
        tally.fail(i, "lost", f"a good answer was not given: {fault.message}")


def _refused(fault: ProtocolFault, whole: bool, i: int, tally: Tally) -> None:
    tally.refused += 1
    if whole:
        tally.fail(i, "lost", f"a good request was refused: {fault.message}")
    if fault.status not in STATUSES or not fault.message.isprintable():
        tally.fail(i, "unplanned", f"{fault.status} {fault.message!r}")
