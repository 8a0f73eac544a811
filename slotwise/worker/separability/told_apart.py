"""Tell of which kinds a batch's requests are: what their rows are made of, and which settings they bring.

A setting is a short value by name, in a row, in the JSON of its body, or in a header that theirs has asked for, of which few
different ones come: a language, a threshold, whether scores are wanted. Theirs may take the first request's for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from slotwise.worker.separability.kinds import made_of

OPENED = 4096  # bytes of a body without a type in which JSON is looked for
FEW = 8  # values of one name: of more it is no setting, but what the request is about
MOST_NAMES, MOST_NEW = 64, 24  # that are known by their values; settings that are new
MOST_DEEP, MOST_LETTERS = 3, 40
ROUTES = frozenset({"explain", "describe"})  # such requests go to theirs alone
PLAIN = frozenset({bool, int, float, str, bytes, type(None)})


class KindsOfRequests:
    """Knows the settings of one handler's requests. new: those that came when all were known already."""

    def __init__(self) -> None:
        self.values: dict[str, set[object]] = {}
        self.new: set[object] = set()

    def kinds(
        self, rows: Sequence[Any], headers: Sequence[Mapping[str, Any]], asked: Iterable[str], learning: bool
    ) -> set[object]:
        """Of which kinds these are. asked: names of headers. learning: their settings are known from now on."""
        opened = [{name: _opened(value) for name, value in row.items()} if type(row) is dict else row for row in rows]
        found: set[object] = set(map(made_of, opened))
        names = [name for name in asked if name not in ROUTES]
        for row in opened:
            found |= self._new(_settings(row), learning)
        for own in headers if names else ():
            told = {str(name).lower(): value for name, value in own.items()}
            found |= self._new(((f"header {name}", told.get(name)) for name in names), learning)
        return found

    def _new(self, settings: Iterable[tuple[str, object]], learning: bool) -> set[object]:
        """Those among these that are new."""
        found = set[object]()
        for name, value in settings:
            if type(value) not in PLAIN or (name not in self.values and len(self.values) >= MOST_NAMES):
                continue
            known, setting = self.values.setdefault(name, set()), (name, type(value), value)
            if setting not in known and len(known) <= FEW:
                known.add(setting)
                if not learning and len(self.new) < MOST_NEW:
                    self.new.add(setting)
            if len(known) <= FEW and setting in self.new:
                found.add(setting)
        return found


def _opened(value: Any) -> Any:
    """The JSON in bytes that have no type: many clients do not say that it is."""
    if isinstance(value, bytes | bytearray) and len(value) <= OPENED and value[:1] in (b"{", b"["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _settings(row: Any, name: str = "", deep: int = 0) -> Iterator[tuple[str, object]]:
    """The short values that a row has by name, also in what it has by name."""
    if type(row) is dict and deep <= MOST_DEEP:
        for key, value in row.items():
            yield from _settings(value, f"{name}.{key}", deep + 1)
    elif isinstance(row, str | bytes | bytearray):
        if len(row) <= MOST_LETTERS:
            yield name, bytes(row) if isinstance(row, bytearray) else row
    elif deep:
        yield name, row
