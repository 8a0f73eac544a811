"""Tell of which kinds a batch's requests are: what their rows are made of, and which settings they bring.

A setting is a short value by name, in a row, in the JSON of its body, or in a header that theirs has asked for, of which few
different ones come: a language, a threshold, whether scores are wanted. Theirs may take the first request's for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slotwise.worker.separability.kinds import made_of

OPENED = 4096  # bytes of a body without a type in which JSON is looked for
FEW = 8  # values of one name: of more it is no setting, but what the request is about
MOST_NAMES, MOST_NEW = 64, 24  # that are known by their values; settings that are new
MOST_DEEP, MOST_LETTERS = 3, 40
ROUTES = frozenset({"explain", "describe"})  # such requests go to theirs alone
TEXTS = frozenset({str, bytes, bytearray})
PLAIN = TEXTS | {bool, int, float, type(None)}


class KindsOfRequests:
    """Knows the settings of one handler's requests: `values` by name. new: those that came when all were known already."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, object], set[object]] = {}
        self.new: set[object] = set()

    def kinds(
        self, rows: Sequence[Any], headers: Sequence[Mapping[str, Any]], asked: Iterable[str], learning: bool
    ) -> set[object]:
        """Of which kinds these are. asked: names of headers. learning: their settings are known from now on."""
        found = set[object]()
        for row in rows:
            opened = {name: _opened(value) for name, value in row.items()} if type(row) is dict else row
            found.add(made_of(opened))
            if type(opened) is dict:
                self._look_into(opened, "", 0, learning, found)
        names = [name for name in asked if name not in ROUTES]
        for own in headers if names else ():
            told = {str(name).lower(): value for name, value in own.items()}
            for name in names:
                self._note(("header", name), told.get(name), learning, found)
        return found

    def _look_into(self, named: dict[Any, Any], path: str, deep: int, learning: bool, found: set[object]) -> None:
        """Note the short values that a row has by name, also in what it has by name."""
        for name, value in named.items():
            kind = type(value)
            if kind is dict:
                if deep < MOST_DEEP:
                    self._look_into(value, f"{path}.{name}", deep + 1, learning, found)
            elif kind in PLAIN and (kind not in TEXTS or len(value) <= MOST_LETTERS):
                self._note((path, name), bytes(value) if kind is bytearray else value, learning, found)

    def _note(self, name: tuple[str, object], value: object, learning: bool, found: set[object]) -> None:
        """Know this setting; put it into `found` where it is new."""
        known = self.values.get(name)
        if known is None:
            if len(self.values) >= MOST_NAMES:
                return
            known = self.values[name] = set()
        if len(known) > FEW:
            return
        setting = (name, type(value), value)
        if setting not in known:
            known.add(setting)
            if not learning and len(known) <= FEW and len(self.new) < MOST_NEW:
                self.new.add(setting)
        if setting in self.new and len(known) <= FEW:
            found.add(setting)


def _opened(value: Any) -> Any:
    """The JSON in bytes that have no type: many clients do not say that it is."""
    if isinstance(value, bytes | bytearray) and len(value) <= OPENED and value[:1] in (b"{", b"["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value
