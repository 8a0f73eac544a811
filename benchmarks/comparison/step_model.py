"""The model of benchmarks/measuring/streams_beside.py and unread.py for servers of other people: the same handler and steps.

A turn reads who is new, all at once, and gives everybody else the next token: what a loop of any server calls again and again.
"""

import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slotwise.worker import End, Headers, Request, Settings, StepState
from slotwise.worker.steps.step_engine import StepRow


@dataclass
class OpenStream:
    """One stream. slot: of the engine. token: what its next step writes."""

    slot: int
    state: StepState
    token: int = 0


class Told(NamedTuple):
    """What a turn has for one stream. text: its piece, or None. failed: it is over, by an error of its own."""

    key: Any
    text: Any
    ended: bool
    failed: bool = False


class StepModel:
    """careful: whether a failed prefill of several is tried again one by one, so that only the guilty fail."""

    def __init__(self, settings: dict[str, Any]) -> None:
        folder = Path(settings["model_dir"])
        sys.path.append(str(folder))
        module, _, name = settings["handler"].partition(":")  # the archive's, beside its own modules
        self.handler = getattr(importlib.import_module(module), name)()
        model = json.loads((folder / "slotwise.json").read_text("utf-8"))["model"]
        chosen = {key: settings[key] for key in ("engine", "precision", "threads") if key in settings}
        self.engine = self.handler.load(folder, Settings(model=model, batch_size=settings["batch_size"], **chosen))
        self.careful = bool(settings.get("careful"))
        self.streams: dict[Any, OpenStream] = {}

    def read(self, body: Any) -> Any:
        """The item of a body, as bytes or as a server has parsed it. Raises anything where it is none."""
        data = bytes(body) if isinstance(body, bytes | bytearray) else json.dumps(body).encode()
        (item,) = self.handler.read(Request(data, Headers()))
        if isinstance(item, Exception):
            raise item
        return item

    @property
    def room(self) -> int:
        """How many may join."""
        return int(self.engine.slots) - len(self.streams)

    def turn(self, new: dict[Any, Any]) -> list[Told]:
        """Read the new items by key, and give each other stream a token. Whatever the engine raises is raised."""
        running = list(self.streams.items())
        told = self._joined(new) if new else []
        if running:
            rows = [StepRow(one.slot, one.token, len(one.state.tokens) - 1) for _, one in running]
            outputs = np.asarray(self.engine.step(rows))
            told += [self._advanced(key, one, output) for (key, one), output in zip(running, outputs, strict=True)]
        return told

    def leave(self, key: Any) -> None:
        """Free a stream's slot."""
        self.engine.free(self.streams.pop(key).slot)

    def clear(self) -> None:
        """Nobody is there any more."""
        for key in list(self.streams):
            self.leave(key)

    def _joined(self, new: dict[Any, Any]) -> list[Told]:
        taken = {one.slot for one in self.streams.values()}
        slots = [slot for slot in range(self.engine.slots) if slot not in taken][: len(new)]
        try:
            outputs = np.asarray(self.engine.prefill_all(slots, list(new.values())))
        except Exception:
            if not self.careful:
                raise
            if len(new) == 1:
                return [Told(key, None, True, failed=True) for key in new]
            return [told for key, item in new.items() for told in self._joined({key: item})]
        for (key, item), slot in zip(new.items(), slots, strict=True):
            self.streams[key] = OpenStream(slot, StepState(item, None))  # type: ignore[arg-type]  # greedy: nothing is drawn
        return [self._advanced(key, self.streams[key], output) for key, output in zip(new, outputs, strict=True)]

    def _advanced(self, key: Any, one: OpenStream, output: Any) -> Told:
        decided = self.handler.advance(one.state, output)
        if isinstance(decided, End):
            self.leave(key)
            return Told(key, decided.piece, True)
        one.token = decided.token
        one.state.tokens.append(decided.token)
        return Told(key, decided.piece, False)
