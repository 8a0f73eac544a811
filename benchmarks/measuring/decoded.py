"""Captions and translation in closed batches and in steps: the demonstration models, each from one process of our own host.

The same engine (transformers, fp32), weights and slots; the answers are as long as the models make them. A client of the closed
batches has its first piece when it has its answer.
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarks.measuring.by_steps import check_together
from benchmarks.measuring.rounds import Cell, in_turn
from benchmarks.measuring.servers import built, server, unpacked
from benchmarks.measuring.timed_answers import SYSTEMS, PieceReading, asked, loaded, rows
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.bench.bodies import RequestBody, examples, with_records
from slotwise.bench.http_connection import Target, run
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.deploy.deploy import deploy
from slotwise.errors import SlotwiseError
from slotwise.files import project

MODELS = {"captions": "captions (GIT)", "translation": "translation (M2M100)"}
CLIENTS = (1, 8, 16)
SLOTS = 16


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Every round asks both decodings of both models by each number of clients."""
    infos = {(model, decoding): info for model in MODELS for decoding, info in _archives(model, work).items()}
    bodies = {model: _bodies(infos[model, "closed"]) for model in MODELS}
    with server(work, "slotwise", engine="transformers", precision="fp32") as record:
        with ManagementClient(record) as client:
            for info in infos.values():
                deploy(client, info, {"batch_size": SLOTS, "max_batch_delay": 2, "initial_workers": 1, "response_timeout": 60})
        targets = {which: Target.of(record, info.name) for which, info in infos.items()}
        for model in MODELS:
            check_together(record, infos[model, "closed"].name)
            _check_same(model, targets, bodies[model])

        def ask(cell: Cell, system: str) -> PieceReading:
            model = next(name for name, words in MODELS.items() if words == cell[0])
            turn = itertools.cycle(bodies[model])
            return loaded(lambda: asked(targets[model, system], SYSTEMS[system], next(turn)), cell[1], options.seconds)

        cells = [(words, clients) for words in MODELS.values() for clients in CLIENTS]
        found = rows(in_turn(cells, list(SYSTEMS), ask, options.rounds, say=say, warm_ups=1))
    return {"rows": found, "slots": SLOTS}


def _archives(model: str, work: Path) -> dict[str, ArchiveInfo]:
    """The model's archive as it is, in closed batches, and with the same weights in steps."""
    info = built(model, work)
    made = unpacked(info, work / f"{model}_steps")
    described = (project.model_folder(model) / "model.toml").read_text("utf-8")
    for usual, here in ((f'name = "{model}"', f'name = "{model}_steps"'), ('decoding = "closed"', 'decoding = "steps"')):
        assert usual in described
        described = described.replace(usual, here, 1)
    (made / "model.toml").write_text(described, "utf-8")
    return {"closed": info, "steps": built(str(made), work)}


def _bodies(info: ArchiveInfo) -> list[RequestBody]:
    """Its examples; a translation has one record."""
    return [with_records(body, 1) if info.name == "translation" else body for body in examples(str(info.path))]


def _check_same(model: str, targets: dict[tuple[str, str], Target], bodies: list[RequestBody]) -> None:
    """Raise SlotwiseError where the two decodings answer otherwise."""
    for body in bodies:
        texts = {name: run(asked(targets[model, name], accept, body)).text for name, accept in SYSTEMS.items()}
        say(f"{model}, {body.name}: {texts['closed']!r}")
        if len(set(texts.values())) > 1:
            raise SlotwiseError(f"the two decodings of {model} answer otherwise: {texts}")
