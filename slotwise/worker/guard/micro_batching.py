"""Keep TorchServe's MicroBatching alive where a step of theirs raises.

It runs their preprocess, inference and postprocess in threads. In TorchServe's code such a thread ends at the first exception,
and whoever waits for what it took waits for ever: this batch, and every one after it. Here the thread hands the exception on
instead, and it is raised once all parts of the batch have come back, so that nothing of it is left for the next one.
"""

from __future__ import annotations

import importlib
import queue
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

MODULE = "ts.handler_utils.micro_batching"
STEPS = ["preprocess", "inference", "postprocess"]


@dataclass(frozen=True)
class Failed:
    """Stands for what a step would have given, had it not raised this."""

    error: BaseException


def install() -> None:
    """Before theirs is loaded: replace what its threads run, where there is a TorchServe whose MicroBatching is known."""
    try:
        module: Any = importlib.import_module(MODULE)
    except ImportError:
        return
    known = getattr(module, "HANDLER_METHODS", None) == STEPS and hasattr(module, "execute_call")
    if known and hasattr(getattr(module, "MicroBatching", None), "handle"):
        module.execute_call = run_step
        module.MicroBatching.handle = handle


def need_installed(entry: Any) -> None:
    """Raise ValueError where theirs is answered by a MicroBatching that is not kept alive."""
    kind = getattr(sys.modules.get(MODULE), "MicroBatching", None)
    if kind is not None and isinstance(entry, kind) and kind.handle is not handle:
        raise ValueError("this TorchServe's MicroBatching is not known to the guard: let the handler answer without it")


def entry_of(entry: Any) -> Any:
    """A method of the handler whose steps a MicroBatching runs. Of any other object that can be called it is its own."""
    kind = getattr(sys.modules.get(MODULE), "MicroBatching", None)
    if kind is not None and isinstance(entry, kind):
        return getattr(entry.handler, STEPS[0])
    return entry if isinstance(entry, FunctionType | MethodType) else getattr(entry, "__call__", entry)  # noqa: B004


def run_step(
    taken: queue.Queue[Any], given: queue.Queue[Any], step: Callable[[Any], Any], thread_local_data: Any, event: Any
) -> None:
    """One thread: run one step on part after part, until the event is set."""
    while not event.is_set():
        try:
            number, part = taken.get(timeout=0.5)
        except queue.Empty:
            continue
        thread_local_data.micro_batch_idx = number
        given.put((number, part if type(part) is Failed else _outcome(step, part)))


def _outcome(step: Callable[[Any], Any], part: Any) -> Any:
    try:
        return step(part)
    except BaseException as error:  # whatever it is, it is for who waits for the batch
        return Failed(error)


def handle(self: Any, data: Sequence[Any]) -> list[Any]:
    """MicroBatching's `handle`: all parts of a batch through all steps. Raises what a step raised for one of them."""
    parts = [data[start : start + self.micro_batch_size] for start in range(0, len(data), self.micro_batch_size)]
    for number, part in enumerate(parts):
        self.queues[f"{STEPS[0]}_in"].put_nowait((number, part))
    outcomes = dict(self.queues[f"{STEPS[-1]}_out"].get() for _ in parts)
    answers: list[Any] = []
    for number, part in enumerate(parts):
        outcome = outcomes[number]
        if type(outcome) is Failed:
            raise outcome.error
        if len(outcome) != len(part):
            raise ValueError(f"{len(outcome)} answers for a micro batch of {len(part)}")
        answers += outcome
    return answers
