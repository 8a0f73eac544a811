"""Closed batches against steps: the same translations, of 4 to 64 tokens each, from one process of our own host, asked in turn.

Both are transformers in fp32 with the same weights; the lengths are forced (forced_translator.py). A client of the closed
batches has its first piece when it has its answer. The demonstration model is so small that most of a step is not arithmetic,
so networks of 10 and 105 million random parameters are asked, too; a round is long enough for a few answers of each client.
"""

from __future__ import annotations

import json
import random
import shutil
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.measuring import stress
from benchmarks.measuring.rounds import Cell, in_turn
from benchmarks.measuring.servers import built, server
from benchmarks.measuring.timed_answers import SYSTEMS, PieceReading, Timed, asked, loaded, rows
from slotwise.archive import build_proof
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.bench.bodies import RequestBody
from slotwise.bench.http_connection import Target, run
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
SENTENCE = {"id": "1", "text": "Life is like a box of chocolates."}
BODY = RequestBody(
    json.dumps({"payload": {"fromLang": "en", "toLang": "fr", "records": [SENTENCE]}}).encode(), "application/json"
)


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Every round asks both decodings once."""
    translation = built("translation", work)
    found = [row for size in SIZES for row in _measured(options, work, translation, size)]
    return {"rows": found, "slots": SLOTS}


def _measured(options: Namespace, work: Path, translation: ArchiveInfo, size: str) -> list[dict[str, Any]]:
    """The rows of a network with so many parameters."""
    infos = {decoding: _archive(translation, work, decoding, size) for decoding in SYSTEMS}
    with server(work, "slotwise", engine="transformers", precision="fp32") as record:
        with ManagementClient(record) as client:
            for info in infos.values():
                deploy(client, info, {"batch_size": SLOTS, "max_batch_delay": 2, "initial_workers": 1, "response_timeout": 60})
        check_together(record, infos["closed"].name)
        targets = {name: Target.of(record, info.name) for name, info in infos.items()}
        for length in (SHORTEST, LONGEST // 2, LONGEST):
            texts = {name: run(_asked(target, SYSTEMS[name], length)).text for name, target in targets.items()}
            if len(set(texts.values())) > 1:
                raise SlotwiseError(f"the two decodings answer otherwise: {texts}")

        def ask(cell: Cell, system: str) -> PieceReading:
            return _loaded(targets[system], SYSTEMS[system], options.seconds)

        cell = (f"translation of {SHORTEST} to {LONGEST} tokens, {size} parameters", CLIENTS)
        return rows(in_turn([cell], list(SYSTEMS), ask, options.rounds, say=say, warm_ups=1))


def check_together(record: ServerRecord, model: str) -> None:
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


def randomize(made: Path, shape: Mapping[str, float]) -> None:
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


def _loaded(target: Target, accept: str, seconds: float) -> PieceReading:
    """CLIENTS ask one answer after the other for so many seconds."""
    draw = random.Random(0)
    return loaded(lambda: _asked(target, accept, draw.randint(SHORTEST, LONGEST)), CLIENTS, seconds)


async def _asked(target: Target, accept: str, length: int) -> Timed:
    """Ask for an answer of this length. Raises SlotwiseError where there is none."""
    return await asked(Target(f"{target.url}?max_tokens={length}", target.headers), accept, BODY)
