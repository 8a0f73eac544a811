"""Time 64 records in one request of the Open Inference Protocol against 64 requests of one, through the gateway."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import struct
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import psutil

from benchmarks.measuring.rounds import Cell, Reading, in_turn, ratio, rows
from benchmarks.measuring.spent import cpu_s
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.bench.bodies import RequestBody, examples
from slotwise.bench.http_connection import Connection, Target, run
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.frontend import process
from slotwise.frontend.grpc.open_inference_messages import CLASSES, SERVICE
from slotwise.frontend.process import GatewayRecord
from slotwise.server.lifecycle import ServerRecord
from slotwise.tune.space import TrialSetting
from slotwise.tune.variant import write_variant

RECORDS = 64
SETTING = TrialSetting(16, 1, 2, 1)
SINGLES, ONE, ONE_GRPC = "64 requests", "one request, REST", "one request, gRPC"
SINGLES_V2 = "64 requests of one record, REST"
SYSTEMS = (SINGLES, SINGLES_V2, ONE, ONE_GRPC)
ENOUGH_QUEUE = ["--port", "0", "--translation-port", "-1", "--grpc-port", "0", "--max-queued", str(RECORDS)]
Wave = Callable[[], Awaitable[list[str]]]  # sends all records, and gives their answers in order


def compare(options: Namespace, record: ServerRecord, infos: Sequence[ArchiveInfo]) -> dict[str, Any]:
    """Waves of 64 records, the next when all are answered; how long one takes, and what it costs."""
    sent: dict[str, list[RequestBody]] = {}
    for info in infos:
        name = f"{info.name}-{RECORDS}"  # an archive beside the model's own
        _register(record, info, name)
        usual = [body for body in examples(str(info.path)) if body.name.endswith((".f32", ".png"))]
        sent[name] = [usual[i % len(usual)] for i in range(RECORDS)]
    front = process.start_detached("default", ENOUGH_QUEUE)
    while not front.status()["ready"]:
        time.sleep(0.2)
    spent: dict[tuple[Cell, str], list[dict[str, float]]] = {}
    answers: dict[tuple[str, str], list[str]] = {}

    def measure(cell: Cell, system: str) -> Reading:
        model, gateway = cell[0], psutil.Process(front.pid)
        waiting = _Waves(front, model, sent[model])
        before = cpu_s(gateway, record)
        seconds, answers[model, system], lost = run(waiting.sent_for(system, options.seconds))
        after = cpu_s(gateway, record)
        each = {name: 1000 * (after[name] - before[name]) / len(seconds) for name in ("front", "server")}
        spent.setdefault((cell, system), []).append(each)
        slowest = sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]
        return Reading((RECORDS * len(seconds) - lost) / sum(seconds), 1000 * statistics.median(seconds), 1000 * slowest, lost)

    readings = in_turn([(name, RECORDS) for name in sent], list(SYSTEMS), measure, options.rounds, say=say, warm_ups=1)
    table = rows(readings, detail=True)
    for row in table:
        cell = (row["workload"], row["concurrency"])
        counted = spent[cell, row["system"]][-options.rounds :]
        row["cpu_ms"] = {name: round(statistics.median(one[name] for one in counted), 1) for name in counted[0]}
        took = [reading.p50_ms or 0.0 for reading in readings[cell][row["system"]]]
        compared = ratio(took, [reading.p50_ms or 0.0 for reading in readings[cell][SINGLES]]) if all(took) else None
        row["to_singles"] = compared and compared._asdict()
        row["same"] = _same(answers[row["workload"], row["system"]], answers[row["workload"], SINGLES])
    return {"records": RECORDS, "setting": str(SETTING), "rows": table}


def _register(record: ServerRecord, info: ArchiveInfo, name: str) -> None:
    """Serve the model under that name, with SETTING."""
    archive = record.model_store / f"{name}.mar"
    wishes: dict[str, int | str] = {"initial_workers": SETTING.workers, "threads": SETTING.threads}
    write_variant(info.path, archive, record.profile, wishes)
    with ManagementClient(record) as client:
        client.register(
            archive.name,
            name=name,
            initial_workers=SETTING.workers,
            batch_size=SETTING.batch_size,
            max_batch_delay=SETTING.max_batch_delay,
        )
        client.wait_ready(name, SETTING.workers)


class _Waves:
    """One model's records, sent in waves."""

    def __init__(self, front: GatewayRecord, model: str, bodies: Sequence[RequestBody]) -> None:
        self.front, self.model, self.bodies = front, model, bodies

    async def sent_for(self, system: str, seconds: float) -> tuple[list[float], list[str], int]:
        """How long each wave took, the last one's answers, and how many answers were lost."""
        if system == ONE_GRPC:
            async with grpc.aio.insecure_channel(self.front.grpc) as channel:
                return await self._repeat(self._over_grpc(channel), seconds)
        v2 = Target(f"{self.front.url}/v2/models/{self.model}/infer", {})
        target = Target(f"{self.front.url}/predictions/{self.model}", {}) if system == SINGLES else v2
        if system == SINGLES:
            requests = [target.request(body.data, body.content_type) for body in self.bodies]
        elif system == ONE:
            requests = [_of_v2(v2.url, [body.data for body in self.bodies])]
        else:
            requests = [_of_v2(v2.url, [body.data]) for body in self.bodies]
        connections = [Connection(target) for _ in requests]

        async def wave() -> list[str]:
            asked = zip(connections, requests, strict=True)
            replies = await asyncio.gather(*(connection.ask(request) for connection, request in asked))
            if system == SINGLES:
                return [reply.body.decode() if reply.status == 200 else "" for reply in replies]
            return [answer for reply in replies for answer in json.loads(reply.body)["outputs"][0]["data"]]

        try:
            return await self._repeat(wave, seconds)
        finally:
            for connection in connections:
                connection.close()

    def _over_grpc(self, channel: Any) -> Wave:
        message = CLASSES["ModelInferRequest"](model_name=self.model)
        message.raw_input_contents.append(_packed([body.data for body in self.bodies]))
        message.inputs.add(name="input", datatype="BYTES", shape=[len(self.bodies)])
        message.outputs.add(name="answer")
        data, ask = message.SerializeToString(), channel.unary_unary(f"/{SERVICE}/ModelInfer")

        async def wave() -> list[str]:
            (packed,) = CLASSES["ModelInferResponse"].FromString(await ask(data)).raw_output_contents
            return _unpacked(packed)

        return wave

    async def _repeat(self, wave: Wave, seconds: float) -> tuple[list[float], list[str], int]:
        answers = await wave()  # opens the connections
        took, lost, ends_at = [], 0, time.perf_counter() + seconds
        while time.perf_counter() < ends_at:
            began = time.perf_counter()
            answers = await wave()
            took.append(time.perf_counter() - began)
            lost += RECORDS - sum(map(bool, answers))
        return took, answers, lost


def _of_v2(url: str, bodies: list[bytes]) -> bytes:
    """A V2 request with binary data, whose answers are JSON."""
    data = _packed(bodies)
    tensor = {"name": "input", "shape": [len(bodies)], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "answer"}]}).encode()
    target = Target(url, {"inference-header-content-length": str(len(head))})
    return target.request(head + data, "application/octet-stream")


def _packed(bodies: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(body)) + body for body in bodies)


def _unpacked(packed: bytes) -> list[str]:
    found, at = [], 0
    while at < len(packed):
        (length,) = struct.unpack_from("<I", packed, at)
        found.append(packed[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return found


def _same(answers: list[str], others: list[str]) -> dict[str, float]:
    """How many of these answers have the other's label, and by how much a probability differs at most."""
    pairs = [(json.loads(one), json.loads(other)) for one, other in zip(answers, others, strict=True) if one and other]
    each = [
        abs(probability - other["probabilities"].get(label, 0.0))
        for one, other in pairs
        for label, probability in one["probabilities"].items()
    ]
    labels = sum(one["label"] == other["label"] for one, other in pairs)
    return {"labels": labels, "probability": round(max(each, default=math.nan), 6)}
