"""Run one request hook by hook and say what each hook made: what `slotwise debug` asks of the archive's own worker.

    python -P -B -m slotwise.worker.hosts.debugging FILE HEADERS PROFILE

In the extracted archive, its folder first on PYTHONPATH. HEADERS are JSON. Writes one line of JSON a stage: {"stage": "decode",
"ms": 0.3, "made": ["float32 [3, 224, 224], from -2.1 to 2.6"]}; where a hook raised, "error" with the file and the line, and
"code", the author's own line. The last stage is the whole answer, as a server would have it of the same pipeline.
"""

from __future__ import annotations

import json
import linecache
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from slotwise.worker.answer import serialise
from slotwise.worker.batch import Row
from slotwise.worker.environment.settings import Settings
from slotwise.worker.fair_order import each_once
from slotwise.worker.handler import BatchHandler
from slotwise.worker.hosts.local import entry_of
from slotwise.worker.hosts.proving import fault_of, handler_class
from slotwise.worker.inputs import packed
from slotwise.worker.outputs import ROWS, on_host
from slotwise.worker.ownership import owned
from slotwise.worker.pipeline import Pipeline
from slotwise.worker.request import Headers, Request
from slotwise.worker.slot_errors import SlotError

Made = TypeVar("Made")
PARTS, SHOWN = 6, 100  # of what is nested, and characters of a text
ROWS_AT_ONCE = 8


class Stopped(Exception):
    """A stage raised; that was said."""


def described(value: Any) -> list[str]:
    """What a value is, in lines: its type and shape, and of numbers how far they go."""
    if isinstance(value, SlotError):
        return [f"the error {value.code}: {value.message}"]
    if isinstance(value, Mapping):
        lines = [(f"{name!s:.40}: ", part) for name, part in value.items()]
    elif isinstance(value, list | tuple):
        if any(type(part) not in (int, float, str, bool, type(None)) for part in value):
            lines = [(f"[{i}] ", part) for i, part in enumerate(value)]
        else:
            return [f"{type(value).__name__} of {len(value)}: {value!r:.{SHOWN}}"]
    else:
        return [_one(value)]
    found = [f"{type(value).__name__} of {len(value)}"]
    for name, part in lines[:PARTS]:
        first, *more = described(part)
        found += [f"  {name}{first}", *(f"  {line}" for line in more)]
    return found + ([f"  and {len(lines) - PARTS} more"] if len(lines) > PARTS else [])


def _one(value: Any) -> str:
    array = on_host(value)
    if not isinstance(array, np.ndarray | np.generic):
        size = f" of {len(value)}" if isinstance(value, str | bytes) else ""
        return f"{type(value).__name__}{size}: {value!r:.{SHOWN}}"
    array = np.asarray(array)
    name = f"{array.dtype} {list(array.shape)}"
    if not array.size or array.dtype.kind not in "biuf":
        return name
    odd = int((~np.isfinite(array)).sum()) if array.dtype.kind == "f" else 0
    wrong = f", {odd} of {array.size} NaN or infinite" if odd else ""
    if odd == array.size:
        return name + wrong
    if array.dtype.kind == "b":
        return name
    numbers = array[np.isfinite(array)] if odd else array
    return f"{name}, from {numbers.min():.6g} to {numbers.max():.6g}{wrong}"


def debug(folder: Path, body: bytes, headers: Mapping[str, str], profile: str, say: Callable[[dict[str, Any]], None]) -> None:
    """Take one request through the handler of the archive in `folder`; each stage is said as it is done."""

    def stage(name: str, make: Callable[[], Made], lines: Callable[[Made], list[str]] = described) -> Made:
        started = time.perf_counter()
        try:
            made = make()
            told = lines(made)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            say({"stage": name, "ms": _since(started), **_fault(error, folder)})
            raise Stopped from error
        say({"stage": name, "ms": _since(started), "made": told})
        return made

    settings = Settings.load(folder, {**os.environ, "SLOTWISE_PROFILE": profile}, batch_size=ROWS_AT_ONCE).but(padding="none")
    settings.limit_threads()
    handler = stage(
        "import",
        lambda: handler_class(*entry_of(folder))(),
        lambda made: [f"{type(made).__name__}, of {type(made).__mro__[1].__name__}"],
    )
    handler.settings = settings
    handler.engine = stage("load", lambda: handler.load(folder, settings), _engine)
    request = Request(body, Headers(headers), "debug")
    pipeline = Pipeline(handler)
    if handler.streams:
        pipeline.hooks.way = ROWS
        handler.predict([])  # starts its runner
    try:
        _hooks(handler, pipeline, packed.plain(request), stage)
    finally:
        answer = pipeline.answer([request])[0]
        text = answer.body.decode("utf-8", "replace")
        say({"stage": "answer", "status": answer.status, "made": [f"{answer.status} {answer.content_type}", f"{text:.2000}"]})


def _hooks(handler: BatchHandler, pipeline: Pipeline, request: Request, stage: Callable[..., Any]) -> None:
    if pipeline.hooks.estimates:
        stage("cost", lambda: handler.cost(request.body, request.headers))
    items = stage("decode", lambda: _listed(handler.read(request)), lambda made: _counted(made, "item"))
    rows = [Row(0, owned(item)) for item in items if not isinstance(item, SlotError)]
    results: list[Any] = [item for item in items if isinstance(item, SlotError)]
    if rows:
        items_of = [owned(row.item) for row in rows]
        groups = stage("groups", lambda: each_once(handler.groups(items_of), len(rows)), lambda made: [str(made)[:SHOWN]])
        for group in groups:
            chosen = [rows[i] for i in group]
            inputs = stage("collate", lambda chosen=chosen: handler.collate([owned(row.item) for row in chosen]))
            stage("predict", lambda inputs=inputs: handler.predict(inputs))
            fresh = [Row(0, owned(row.item)) for row in chosen]
            stage("outputs", lambda fresh=fresh: _outputs(pipeline, fresh), lambda made: _counted(made, "row"))
            for row, ran in zip(chosen, fresh, strict=True):
                row.output, row.error, row.item = ran.output, ran.error, ran.item
        encoded = iter(stage("encode", lambda: [_encoded(handler, row) for row in rows], lambda made: _counted(made, "result")))
        results = [item if isinstance(item, SlotError) else next(encoded) for item in items]
    stage("respond", lambda: handler.respond(request, results), lambda made: [f"{made[1]}, {len(serialise(made[0]))} bytes"])


def _outputs(pipeline: Pipeline, rows: list[Row]) -> list[Any]:
    """Each row's own output, as a worker reads them."""
    pipeline.hooks.attempt(rows, len(rows))
    return [row.output if row.error is None else row.error.error() for row in rows]


def _encoded(handler: BatchHandler, row: Row) -> Any:
    return row.error.error() if row.error is not None else handler.encode(row.output, row.item)


def _listed(items: Any) -> list[Any]:
    if not isinstance(items, list):
        raise TypeError(f"decode gave {type(items).__name__}, and not a list of items")
    return items


def _counted(values: Sequence[Any], word: str) -> list[str]:
    shown = [f"{word} {i}: {line}" if not j else f"  {line}" for i, one in enumerate(values[:PARTS])
             for j, line in enumerate(described(one))]  # fmt: skip
    return [f"{len(values)} {word}{'s' * (len(values) != 1)}", *shown]


def _engine(engine: Any) -> list[str]:
    facts = [str(getattr(engine, name, "")) for name in ("name", "precision", "device")]
    return [", ".join(filter(None, facts)) or type(engine).__name__]


def _fault(error: BaseException, folder: Path) -> dict[str, Any]:
    """The error with its place, the author's line, and the error that it was made of."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(folder)]
    own = [frame for frame in frames if Path(frame.filename).relative_to(folder).parts[0] != "slotwise"]
    code = linecache.getline(own[-1].filename, own[-1].lineno or 0).strip() if own else ""
    fault = {
        "error": fault_of(error, folder)["fault"],
        "code": code,
        "because": [fault_of(one, folder)["fault"] for one in chain[1:]],
    }
    return fault | ({"status": error.code} if isinstance(error, SlotError) else {})


def _since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 2)


def main() -> None:
    """Say each stage of the request in the file that the command line names, for the archive in the working directory."""
    target = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the handler prints goes to standard error
    logging.basicConfig(level=logging.ERROR)
    file, headers, profile = sys.argv[1:]

    def say(told: dict[str, Any]) -> None:
        target.write(json.dumps(told) + "\n")
        target.flush()

    try:
        debug(Path.cwd(), Path(file).read_bytes(), json.loads(headers), profile, say)
    except Stopped:
        sys.exit(1)


if __name__ == "__main__":
    main()
