"""Closed batches against steps: the same translations, of 4 to 64 tokens each, from one process of our own host, asked in turn.

Both are transformers in fp32 with the same weights; the lengths are forced (forced_translator.py). A client of the closed
batches has its first piece when it has its answer. The demonstration model is so small that most of a step is not arithmetic,
so networks of 10 and 105 million random parameters are asked, too; a round is long enough for a few answers of each client.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import statistics
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.measuring import stress
from benchmarks.measuring.rounds import Cell, Reading, Readings, in_turn, ratio, rows_beside
from benchmarks.measuring.servers import built, server
from slotwise.archive import build_proof
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.bench.http_connection import Target, run
from slotwise.bench.load import percentile
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.deploy.deploy import deploy
from slotwise.errors import SlotwiseError
from slotwise.server.lifecycle import ServerRecord

HANDLER = "forced_translator"
CLIENTS, SHORTEST, LONGEST, SLOTS = 32, 4, 64, 32
PROOF_S = 1200.0  # of a build: a closed batch of a large network takes seconds, and rows that are not proven run one by one


def _shape(width: int, layers: int, heads: int) -> dict[str, int]:
    """Of a network with as many layers in its encoder as in its decoder."""
    parts = {"layers": layers, "attention_heads": heads, "ffn_dim": 4 * width}
    either = {f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in parts.items()}
    return {"d_model": width, "vocab_size": 8000, **either}


SIZES: dict[str, dict[str, int]] = {"0.2 million": {}, "10 million": _shape(256, 4, 4), "105 million": _shape(768, 6, 12)}
SYSTEMS = {"closed": "application/json", "steps": "text/event-stream"}
BODY = json.dumps(
    {"payload": {"fromLang": "en", "toLang": "fr", "records": [{"id": "1", "text": "Life is like a box of chocolates."}]}}
).encode()


@dataclass(frozen=True)
class PieceReading(Reading):
    """A round whose first pieces were timed, too."""

    first_p50_ms: float = 0.0
    first_p99_ms: float = 0.0


class Timed(NamedTuple):
    """One answer: seconds to its first piece and to its end, and its text."""

    first_s: float
    whole_s: float
    text: str


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Every round asks both decodings once."""
    translation = built("translation", work)
    rows = [row for size in SIZES for row in _measured(options, work, translation, size)]
    return {"rows": rows, "slots": SLOTS}


def _measured(options: Namespace, work: Path, translation: ArchiveInfo, size: str) -> list[dict[str, Any]]:
    """The rows of a network with so many parameters."""
    infos = {decoding: _archive(translation, work, decoding, size) for decoding in SYSTEMS}
    with server(work, "slotwise", engine="transformers", precision="fp32") as record:
        with ManagementClient(record) as client:
            for info in infos.values():
                deploy(client, info, {"batch_size": SLOTS, "max_batch_delay": 2, "initial_workers": 1, "response_timeout": 60})
        _check_together(record, infos["closed"].name)
        targets = {name: Target.of(record, info.name) for name, info in infos.items()}
        for length in (SHORTEST, LONGEST // 2, LONGEST):
            texts = {name: run(_asked(target, SYSTEMS[name], length)).text for name, target in targets.items()}
            if len(set(texts.values())) > 1:
                raise SlotwiseError(f"the two decodings answer otherwise: {texts}")

        def ask(cell: Cell, system: str) -> PieceReading:
            return _loaded(targets[system], SYSTEMS[system], options.seconds)

        cell = (f"translation of {SHORTEST} to {LONGEST} tokens, {size} parameters", CLIENTS)
        return _rows(in_turn([cell], list(SYSTEMS), ask, options.rounds, say=say, warm_ups=1))


def _check_together(record: ServerRecord, model: str) -> None:
    """Raise SlotwiseError where this model's batches run row by row: on a busy machine a worker has no time to prove them."""
    for file in (record.state_dir / "workers").glob("*.json"):
        told = json.loads(file.read_text("utf-8"))
        if told.get("model") == model and "one by one" in str(told.get("rows")):
            raise SlotwiseError(f"nothing to compare with: {told['rows']}", hint="measure on a quiet machine")


def _archive(translation: ArchiveInfo, work: Path, decoding: str, size: str) -> ArchiveInfo:
    """The translation model's weights, or random ones, under the forced handler."""
    made = stress.folder(translation, work, f"{HANDLER}_{decoding}_{size.split()[0].replace('.', '_')}", HANDLER)
    if SIZES[size]:
        randomize(made, SIZES[size])
    described = (made / "model.toml").read_text("utf-8")
    for name, usual, here in (("decoding", '"closed"', f'"{decoding}"'), ("max_output_tokens", "256", str(LONGEST))):
        assert f"{name} = {usual}" in described
        described = described.replace(f"{name} = {usual}", f"{name} = {here}", 1)
    (made / "model.toml").write_text(described, "utf-8")
    with patch.multiple(build_proof, ENGINE_S=PROOF_S, LIMIT_S=2 * PROOF_S, MOST_ROWS=SLOTS):
        return built(str(made), work)


def randomize(made: Path, shape: dict[str, int]) -> None:
    """Put random weights of this shape into a model's folder, in fp32 only."""
    from slotwise.worker.engines.torchvision_compat import ensure_importable

    ensure_importable()
    import torch
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    torch.manual_seed(0)
    config = M2M100Config.from_pretrained(made / "model", local_files_only=True, **shape)
    M2M100ForConditionalGeneration(config).save_pretrained(made / "model")
    shutil.rmtree(made / "int8")
    (made / "int8").mkdir()
    (made / "int8" / "refused.txt").write_text("nobody measures it here\n", "utf-8")


def _rows(readings: Readings) -> list[dict[str, Any]]:
    """The rows with their ratios to closed batches, first pieces among them."""
    table = rows_beside(readings, "closed")
    for row in table:
        found = readings[row["workload"], row["concurrency"]]
        for key in ("first_p50_ms", "first_p99_ms"):
            values, closed = ([getattr(reading, key) for reading in found[name]] for name in (row["system"], "closed"))
            beside = ratio(values, closed)
            row[key] = round(statistics.median(values), 1)
            row[f"{key.removesuffix('_ms')}_to_closed"] = beside._asdict() if beside else None
    return table


def _loaded(target: Target, accept: str, seconds: float) -> PieceReading:
    """CLIENTS ask one answer after the other for so many seconds."""
    draw = random.Random(0)
    lengths = iter(lambda: draw.randint(SHORTEST, LONGEST), None)
    timed: list[Timed] = []
    failed = 0

    async def client(until: float, lengths: Iterator[int | None]) -> None:
        nonlocal failed
        while time.perf_counter() < until:
            try:
                timed.append(await _asked(target, accept, next(lengths) or SHORTEST))
            except (OSError, ValueError, SlotwiseError) as error:
                say(f"lost: {error}")
                failed += 1

    async def all_clients() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(client(began + seconds, lengths) for _ in range(CLIENTS)))
        return time.perf_counter() - began

    took = run(all_clients())
    first, whole = (sorted(1000 * one[i] for one in timed) for i in (0, 1))
    numbers = [percentile(ordered, p) for ordered in (whole, first) for p in (50, 99)]
    return PieceReading(len(timed) / took, numbers[0], numbers[1], failed, first_p50_ms=numbers[2], first_p99_ms=numbers[3])


async def _asked(target: Target, accept: str, length: int) -> Timed:
    """Ask for an answer of this length. Raises SlotwiseError where it is another one, or none."""
    began, first, body = time.perf_counter(), 0.0, b""
    asking = Target(f"{target.url}?max_tokens={length}", {**target.headers, "accept": accept, "connection": "close"})
    reader, writer = await asyncio.open_connection(*asking.address)
    try:
        writer.write(asking.request(BODY, "application/json"))
        head = await reader.readuntil(b"\r\n\r\n")
        while part := await reader.read(1 << 16):
            first = first or time.perf_counter() - began
            body += part
    finally:
        writer.close()
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise SlotwiseError(f"{head[:60]!r}: {body[:200]!r}")
    return Timed(first, time.perf_counter() - began, _text(body, whole=accept == SYSTEMS["closed"]))


def _text(body: bytes, *, whole: bool) -> str:
    """The translation in an answer, or in the events of one. Raises SlotwiseError where it broke off."""
    if whole:
        (result,) = json.loads(body)["result"]
        if "text" not in result:
            raise SlotwiseError(f"the record was refused: {result}")
        return str(result["text"])
    lines = body.decode().splitlines()  # the chunks' own lines are no events
    if "event: end" not in lines:
        raise SlotwiseError(f"a stream without an end: {body[-200:]!r}")
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    return "".join(piece["text"] for piece in data if "text" in piece)
