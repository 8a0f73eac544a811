"""Streams of our own host beside LitServe's and TorchServe's: the same handler, weights, steps, threads and slots.

32 clients ask for answers of 4 to 64 tokens; every piece is compared with what its request gets alone. Then one request in
eight is poisoned: its prefill or its fourth step raises, or its body is junk. What is counted is what innocents lost.
"""

from __future__ import annotations

import random
import re
import shutil
import statistics
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comparison.step_model import StepModel
from benchmarks.comparison.stream_systems import SLOTS, SYSTEMS, THREADS, Server, StreamYard
from benchmarks.comparison.systems import Shares
from benchmarks.measuring.alone import OneAtATime
from benchmarks.measuring.by_steps import SIZES, randomize
from benchmarks.measuring.judged_streams import (
    CLIENTS,
    CONTENT_TYPE,
    JUNK,
    LONGEST,
    ODD,
    ONE_IN,
    PATIENCE_S,
    SHORTEST,
    WARM_UP_S,
    Asked,
    StreamClients,
    summary,
)
from benchmarks.measuring.rounds import Cell, Reading, Readings, in_turn, rows_beside
from benchmarks.measuring.servers import built
from benchmarks.measuring.stress import folder
from slotwise.bench.http_connection import run
from slotwise.console import say
from slotwise.worker import End, StepState
from slotwise.worker.environment.cores import available_cores
from slotwise.worker.steps.step_engine import StepRow

HANDLER = "poisoned_translator"
SIZE = {
    **SIZES["10 million"],
    "init_std": 0.1,
    "tie_word_embeddings": False,
}  # else every token is the one before, whatever the text
POISONS = {
    "its prefill fails": "prefill",
    "its fourth step fails": "step",
    "its body is not JSON": JUNK,
    "its body is other JSON": ODD,
}
WORDS = re.findall(r"\w+", "Life is like a box of chocolates: you never know what the cat on this mat had for dinner today.")
LEAST_MARGIN = 1e-3  # between the two likeliest tokens: a near tie may fall otherwise in another shape of batch
WARM_S = 5.0
WELL_S = 1.0
PIECES = ("streams_s", "first_p50_ms", "first_p99_ms", "gap_p50_ms", "gap_p99_ms")
COUNTS = ("innocent", "right", "lost", "cut_short", "wrong", "poisoned")


@dataclass(frozen=True)
class StreamReading(Reading):
    """A round: rps are pieces a second, p50_ms and p99_ms whole streams'."""

    found: Mapping[str, Any] = field(default_factory=dict)


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Every round asks each system once; then each is poisoned."""
    yard = StreamYard(_made(work), work, f"{HANDLER}:PoisonedTranslator", "transformers")
    alone = Alone(StepModel(yard.settings(careful=False)))
    texts = alone.texts(CLIENTS)
    rows, settings = _speed(options, yard, texts, alone)
    poisoned = [row for name in SYSTEMS for row in _poisoned(options, yard, name, texts, alone)]
    plan = {"clients": CLIENTS, "slots": SLOTS, "threads": THREADS, "tokens": [SHORTEST, LONGEST], "one_in": ONE_IN}
    plan |= {"seconds": options.seconds, "rounds": options.rounds, "patience_s": PATIENCE_S}
    return {"plan": plan, "settings": settings, "rows": rows, "poisoned": poisoned}


def _made(work: Path) -> Path:
    """The folder of the model: a network of 10 million random parameters under the handler that can be poisoned."""
    (work / "store").mkdir()
    made = folder(built("translation", work), work, HANDLER, HANDLER)
    shutil.copy(Path(__file__).with_name("forced_translator.py"), made)
    randomize(made, SIZE)
    described = (made / "model.toml").read_text("utf-8").replace('decoding = "closed"', 'decoding = "steps"', 1)
    (made / "model.toml").write_text(described.replace("files = [", 'files = ["forced_translator.py", ', 1), "utf-8")
    return made


class Alone:
    """What each request gets where nobody else is there."""

    def __init__(self, model: StepModel) -> None:
        self.model = model
        self.items: dict[str, Any] = {}
        self.outputs: dict[str, list[Any]] = {}
        self.pieces = cache(self._pieces)

    def texts(self, count: int) -> list[str]:
        """So many texts whose answers differ from one another, and are no near ties."""
        draw, kept, answers = random.Random(0), list[str](), set[tuple[str, ...]]()
        while len(kept) < count:
            text = " ".join(draw.sample(WORDS, draw.randint(4, 10)))
            margin = self._learn(text)
            answer = tuple(self.pieces(text, LONGEST))
            if margin > LEAST_MARGIN and answer not in answers:
                kept.append(text)
                answers.add(answer)
        return kept

    def _learn(self, text: str) -> float:
        """Decode the longest answer; the least that the likeliest token was ahead."""
        engine, handler = self.model.engine, self.model.handler
        item = self.items[text] = self.model.read(Asked(text, LONGEST).body())
        state, outputs = StepState(item, random.Random(0)), [np.asarray(engine.prefill(0, item))]
        while not isinstance(decided := handler.advance(state, outputs[-1]), End):
            state.tokens.append(decided.token)
            outputs.append(np.asarray(engine.step([StepRow(0, decided.token, len(state.tokens) - 1)]))[0])
        self.outputs[text] = outputs
        best = np.sort(np.stack(outputs)[:, handler.words], axis=1)
        return float((best[:, -1] - best[:, -2]).min())

    def _pieces(self, text: str, tokens: int) -> tuple[str, ...]:
        state, found = StepState(replace(self.items[text], most=tokens), random.Random(0)), list[str]()
        for output in self.outputs[text]:
            decided = self.model.handler.advance(state, output)
            if decided.piece is not None:
                found.append(decided.piece)
            if isinstance(decided, End):
                break
            state.tokens.append(decided.token)
        return tuple(found)


def _started(yard: StreamYard, name: str, text: str) -> Server:
    """A system that has answered once."""
    say(f"starting {name}")
    server = SYSTEMS[name].make(yard)
    server.start()
    server.wait(Asked(text, SHORTEST).body(), CONTENT_TYPE)
    return server


@contextmanager
def _all_started(yard: StreamYard, names: Sequence[str], text: str) -> Iterator[dict[str, Server]]:
    servers: dict[str, Server] = {}
    with ExitStack() as stack:
        for name in names:
            servers[name] = _started(yard, name, text)
            stack.callback(servers[name].stop)
        yield servers


def _speed(
    options: Namespace, yard: StreamYard, texts: Sequence[str], alone: Alone
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row a system, without poison; and what each was set to."""
    names = [name for name, system in SYSTEMS.items() if system.speed]
    with _all_started(yard, names, texts[0]) as servers, OneAtATime({name: one.pid for name, one in servers.items()}) as turns:

        def ask(cell: Cell, name: str) -> StreamReading:
            server = servers[name]
            with turns.running(name):
                clients = StreamClients(SYSTEMS[name].target(server), texts, alone.pieces, seed=len(asked))
                shares = Shares([server.pid])
                asked.append(name)
                run(clients.run(WARM_UP_S + options.seconds))
                spent = shares.taken(), time.monotonic() - shares.began
            found = {**summary(clients.outcomes, WARM_UP_S, WARM_UP_S + options.seconds), "shares": spent[0]}
            pieces = max(1, sum(len(one.times_s) for one in clients.outcomes))
            found["cpu_ms"] = {who: 1000 * share * spent[1] * available_cores() / pieces for who, share in spent[0].items()}
            return _reading(found)

        asked: list[str] = []
        for name in names:
            with turns.running(name):
                run(StreamClients(SYSTEMS[name].target(servers[name]), texts, alone.pieces).run(WARM_S))
        cell = (f"translation of {SHORTEST} to {LONGEST} tokens, 10 million parameters", CLIENTS)
        readings = in_turn([cell], names, ask, options.rounds, say=say, warm_ups=1)
        return _rows(readings), {name: one.described() for name, one in servers.items()}


def _reading(found: Mapping[str, Any]) -> StreamReading:
    failed = found["lost"] + found["cut_short"] + found["wrong"]
    whole = found["whole_p50_ms"], found["whole_p99_ms"]
    return StreamReading(found["pieces_s"], *whole, failed, shares=found.get("shares"), found=found)


def _rows(readings: Readings) -> list[dict[str, Any]]:
    """The rows, each with its ratio to LitServe in the same round, and the medians with their spread."""
    table = rows_beside(readings, "LitServe")
    for row in table:
        rounds = readings[row["workload"], row["concurrency"]][row["system"]]
        founds = [reading.found for reading in rounds if isinstance(reading, StreamReading)]
        for key in PIECES:
            values = [round(found[key], 1) for found in founds]
            row[key] = {"median": round(statistics.median(values), 1), "low": min(values), "high": max(values)}
        spent = [found["cpu_ms"] for found in founds]
        row["cpu_ms"] = {who: round(statistics.median(each[who] for each in spent), 3) for who in spent[0]}
        row |= _sum(founds)
    return table


def _poisoned(options: Namespace, yard: StreamYard, name: str, texts: Sequence[str], alone: Alone) -> list[dict[str, Any]]:
    """A row a poison: what innocents lost at this system, which runs alone. One that is not well is started anew."""
    table = []
    with ExitStack() as stack:
        server: Server | None = None
        stack.callback(lambda: server and server.stop())
        for poison, do in POISONS.items():
            founds, starts = [], 0
            for turn in range(options.rounds):
                if server is None:
                    server = _started(yard, name, texts[0])
                target = SYSTEMS[name].target(server)
                clients = StreamClients(target, texts, alone.pieces, do, seed=turn)
                run(clients.run(options.seconds))
                founds.append(summary(clients.outcomes, 0.0, options.seconds))
                if not _is_well(StreamClients(target, texts, alone.pieces, seed=turn)):
                    server.stop()
                    server, starts = None, starts + 1
            row = _sum(founds) | {"not_well": starts}
            row |= {key: round(statistics.median(found[key] for found in founds), 1) for key in ("pieces_s", "first_p99_ms")}
            table.append({"system": name, "poison": poison, **row})
            say(f"{name}, {poison}: {row}")
    return table


def _is_well(clients: StreamClients) -> bool:
    """Whether innocents alone are answered rightly again. Who was dropped just before has its time first."""
    run(clients.run(WELL_S))
    return all(one.kind == "right" for one in clients.outcomes)


def _sum(founds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What became of the streams of all rounds together, and what they were told."""
    row: dict[str, Any] = {key: sum(found[key] for found in founds) for key in COUNTS}
    for key in ("told", "poisoned_told"):
        row[key] = dict(sum((Counter(found[key]) for found in founds), Counter()).most_common())
    return row
