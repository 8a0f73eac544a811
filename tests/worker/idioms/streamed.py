"""Handlers that stream are asked here: streams join, leave, wait for their readers and go on, and each is as if it were alone.

What is right is what a new handler's own `stream` gives to its end. Beside each handler stands how its streams go: `together`,
a piece of each in turn, or `apart`, where a stream sets something that the others would compute with.
"""

from __future__ import annotations

import copy
import json
import random
from contextvars import copy_context
from pathlib import Path
from typing import Any

from slotwise.worker import Headers, Settings, StreamHandler
from slotwise.worker.steps.streams import Stream, StreamPiece
from tests.support.seed import SEED
from tests.worker.idioms.asked import Idiom, Kind
from tests.worker.toy import begin

ITEMS = [{"pieces": 1 + i * 5 % 7, "number": i} for i in range(12)]
TURNS = 2000  # more than any history here takes


class Streams(StreamHandler):
    """An item says how many pieces it wants, and a number that all of them depend on."""

    def load(self, model_dir: Path, settings: Settings) -> Any:
        return None

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [json.loads(body)]

    def example(self) -> Any:
        return {"pieces": 2, "number": 1}


def right(kind: Kind, item: Any) -> tuple[list[Any], bool]:
    """What a new handler's generator gives, and whether it comes to its end."""
    return copy_context().run(_right, kind, copy.deepcopy(item))


def _right(kind: Kind, item: Any) -> tuple[list[Any], bool]:
    handler, pieces = kind(), list[Any]()
    handler.engine = handler.load(Path("."), Settings())
    try:
        for piece in handler.stream(item):
            pieces.append({"text": piece} if isinstance(piece, str) else json.loads(json.dumps(piece)))
    except Exception:
        return pieces, False
    return pieces, True


class History:
    """Streams of one worker, in an order that chance gives."""

    def __init__(self, kind: Kind) -> None:
        self.chance = random.Random(f"{SEED} {kind.__name__}")
        self.runner = begin(kind(), Settings(batch_size=4)).runner
        self.given: dict[int, list[Any]] = {}
        self.ended: dict[int, bool] = {}  # whether at its end
        self.order: list[int] = []

    def offer(self, number: int, item: Any, sent: list[Any] = []) -> None:  # noqa: B006  is copied
        """Another stream joins, of which a client has these pieces already."""
        self.given[number] = list(sent)
        self.runner.offer([Stream(number, copy.deepcopy(item), sent=tuple(json.dumps(one).encode() for one in sent))])

    def turn(self) -> None:
        """One turn of all."""
        for event in self.runner.turn():
            number = int(str(event.id))
            if isinstance(event, StreamPiece):
                self.given[number].append(json.loads(event.data))
                self.order.append(number)
            else:
                self.ended[number] = event.error is None

    def by_chance(self, items: list[Any], owed: list[tuple[list[Any], bool]]) -> None:
        """These items' streams join by and by; some are held for a while, some are cancelled, some were begun elsewhere."""
        waiting, held, gone, chance = list(enumerate(items)), list[int](), set[int](), self.chance
        for _ in range(TURNS):
            while waiting and chance.random() < 0.4:
                number, item = waiting.pop(0)
                pieces = owed[number][0]
                self.offer(number, item, pieces[: chance.randrange(len(pieces) + 1)] if chance.random() < 0.2 else [])
            open_now = [number for number in self.given if number not in self.ended and number not in gone]
            if open_now and chance.random() < 0.05:
                gone.add(number := chance.choice(open_now))
                self.runner.cancel(number)
            elif open_now and chance.random() < 0.1:
                held.append(number := chance.choice(open_now))
                self.runner.hold(number)
            if held and chance.random() < 0.4:
                self.runner.go_on(held.pop(0))
            self.turn()
            if not waiting and not held and not self.runner.busy:
                break
        assert not self.runner.busy
        for number, (pieces, whole) in enumerate(owed):
            given = self.given[number]
            assert given == pieces[: len(given)], items[number]
            if number not in gone:
                assert (len(given) == len(pieces), self.ended[number]) == (True, whole), items[number]

    def at_once(self, items: list[Any]) -> list[int]:
        """These streams join at once. Returns whose piece came, one after the other."""
        self.given.clear(), self.order.clear()
        for number, item in enumerate(items):
            self.offer(number, item)
        for _ in range(TURNS):
            self.turn()
            if not self.runner.busy:
                break
        return self.order


def no_stream_is_wrong(kind: Kind) -> None:
    """Each stream has all its own pieces, whoever runs beside it; and they run side by side, or do not."""
    idiom: Idiom = kind.idiom
    owed = [right(kind, item) for item in idiom.bodies]
    assert any(one[: len(owed[0][0])] != owed[0][0][: len(one)] for one, _ in owed), "whose piece is whose would not be seen"
    history = History(kind)
    for _ in range(2):
        numbers = [history.chance.randrange(len(owed)) for _ in range(10)]
        history.given.clear(), history.ended.clear()
        history.by_chance([idiom.bodies[number] for number in numbers], [owed[number] for number in numbers])
    longest = max(range(len(owed)), key=lambda number: len(owed[number][0]) * owed[number][1])
    order = history.at_once([idiom.bodies[longest]] * 3)
    assert (order == [0, 1, 2] * len(owed[longest][0])) is not idiom.apart, order
