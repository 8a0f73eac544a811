"""A chain of pipelines: each part that a stage hands on is a request to the next one, batched with those of other requests.

    b items --first stage--> parts, a list an item --next stage--> an answer a part --> b lists of answers

Each stage is a whole Pipeline with its own handler, engine, isolation and budget. So a bad part costs that part, and whoever
asked for it gets all others. All parts of one request have one owner in every stage: they take turns with others as one.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from slotwise.worker.answer import Answer
from slotwise.worker.environment.settings import Settings
from slotwise.worker.handler import BatchHandler
from slotwise.worker.ownership import owned
from slotwise.worker.pipeline import Pipeline
from slotwise.worker.request import Headers, Request
from slotwise.worker.slot_errors import ModelFault, SlotError, StageFault

FOLDER = "stages"
MOST_PARTS = 256  # of one item


class Asked(NamedTuple):
    """What the first stage is asked. number: one that all bodies of a request have; without it each body is a request."""

    body: bytes
    headers: Mapping[str, str]
    number: int | None = None
    query: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class StagePart:
    """What a stage hands on: the body of a request to the next one.

    about: what stands beside the answer, as JSON can say it: {"box": [3, 5, 20, 31]}.
    """

    body: bytes
    about: Mapping[str, Any] = field(default_factory=dict)
    content_type: str = "application/octet-stream"


class StageChain:
    """pipelines: one a stage, in order. All but the last give StageParts."""

    name, precision, device = "stages", "", ""

    def __init__(self, pipelines: Sequence[Pipeline]) -> None:
        self.pipelines = list(pipelines)
        self.kept: dict[str, list[Any]] = {}  # of the batch that runs, by the request's id: what a stage's results were
        for pipeline in self.pipelines[:-1]:
            vars(pipeline.handler)["respond"] = self._keep
            pipeline.hooks.respond_is_authors = True
        self.whole_s = sum(pipeline.settings.response_timeout_s for pipeline in self.pipelines)
        self.until = math.inf  # when the call that runs has to be over
        self.name = "+".join(str(getattr(pipeline.handler.engine, "name", "own")) for pipeline in self.pipelines)

    def __call__(self, items: Sequence[tuple[Any, ...]], until: float = math.inf) -> list[Any]:
        """b items, each as Asked has it, to b outputs: a list of {"answer": ...} or {"error": ...} an item, or its SlotError.

        Where the first stage makes several items of one, it is a list of such lists.

        until: when the time of the batch is over for its model. A call that begins late has so much less than its pipelines'
        time that answers of the calls before it can still be encoded. Raises RuntimeError where a stage's engine is dead: then
        this worker has to end.
        """
        self._check_alive()
        self.until = min(time.monotonic() + self.whole_s * 3 / 4, until + self.whole_s / 4)
        asked = [Asked(*item) for item in items]
        requests = [Request(one.body, Headers(one.headers), str(i), query=one.query) for i, one in enumerate(asked)]
        answers = self._answers(0, requests, [i if one.number is None else one.number for i, one in enumerate(asked)])
        self._check_alive()
        return answers

    def _check_alive(self) -> None:
        if any(pipeline.dead for pipeline in self.pipelines):
            raise RuntimeError("the engine of a stage is dead")

    def _answers(self, level: int, requests: Sequence[Request], owners: Sequence[int]) -> list[Any]:
        """One result or SlotError a request, in order. owners: who asked for each, the same in every stage."""
        if level == len(self.pipelines) - 1:
            return [_value(answer) for answer in self._asked(level, requests, owners)]
        parts = self._parts(level, requests, owners)
        asked = [(part, owner) for own, owner in zip(parts, owners, strict=True) for part in _handed_on(own)]
        below = [Request(part.body, Headers({"content-type": part.content_type}), str(i)) for i, (part, _) in enumerate(asked)]
        answers = iter(self._answers(level + 1, below, [owner for _, owner in asked]))
        results = [own if isinstance(own, SlotError) else _joined(own, answers) for own in parts]
        assert next(answers, None) is None  # each answer is somebody's
        return results

    def _parts(self, level: int, requests: Sequence[Request], owners: Sequence[int]) -> list[list[Any] | SlotError]:
        """What this stage hands on of each request: StageParts and errors in their places, or the request's own error.

        Where a request has several items, it is a list of these, an item each.
        """
        self.kept = {}
        answers = self._asked(level, requests, owners)
        kept, self.kept = self.kept, {}
        return [
            _checked(kept[request.id]) if answer.status == 200 and request.id in kept else _fault(answer)
            for request, answer in zip(requests, answers, strict=True)
        ]

    def _asked(self, level: int, requests: Sequence[Request], owners: Sequence[int]) -> list[Answer]:
        """What this stage answers, within its share of the time that is left: it ends when three quarters of that are over."""
        pipeline, left_s = self.pipelines[level], max(0.0, self.until - time.monotonic())
        share_s = left_s / (len(self.pipelines) - level) * 4 / 3
        pipeline.timeout_s = min(pipeline.settings.response_timeout_s, share_s)
        return pipeline.answer(requests, owners) if requests else []

    def _keep(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        """In place of `respond`: the results are kept before any hook is called again."""
        if len(results) == 1 and isinstance(results[0], SlotError):
            raise results[0]
        self.kept[request.id] = [one if isinstance(one, SlotError) else owned(one) for one in results]
        return b"", "application/octet-stream"


def _checked(results: Sequence[Any]) -> list[Any] | SlotError:
    """The parts of one request. What is no StagePart is an error in its place; too many parts are the request's."""
    items = [list(one) if isinstance(one, list | tuple) else one if isinstance(one, SlotError) else [one] for one in results]
    count = sum(len(parts) for parts in items if isinstance(parts, list))
    if count > MOST_PARTS:
        return ModelFault(f"a stage found {count} parts, at most {MOST_PARTS} are handed on")
    checked = [parts if isinstance(parts, SlotError) else list(map(_part, parts)) for parts in items]
    return checked[0] if len(checked) == 1 else checked  # as BatchHandler.respond does it


def _part(given: Any) -> StagePart | SlotError:
    return given if isinstance(given, SlotError) or _sound(given) else ModelFault("a stage handed on what is no StagePart")


def _handed_on(parts: Any) -> Iterator[StagePart]:
    """The StageParts among what `_checked` gives."""
    if isinstance(parts, StagePart):
        yield parts
    elif isinstance(parts, list):
        for one in parts:
            yield from _handed_on(one)


def _sound(part: Any) -> bool:
    """Whether the next stage can be asked for it, and its answer be written."""
    if type(part) is not StagePart or type(part.body) is not bytes or not isinstance(part.about, Mapping):
        return False
    if not isinstance(part.content_type, str) or not {"answer", "error"}.isdisjoint(part.about):
        return False
    try:
        json.dumps(dict(part.about), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _joined(parts: Any, answers: Iterator[Any]) -> Any:
    """What `_checked` gives with each part's answer in its place."""
    if isinstance(parts, list):
        return [_joined(one, answers) for one in parts]
    if isinstance(parts, SlotError):
        return parts.body()
    answer = next(answers)
    return {**parts.about, **(answer.body() if isinstance(answer, SlotError) else {"answer": answer})}


def _value(answer: Answer) -> Any:
    """What a stage answered: JSON's value, or the text."""
    if answer.status != 200:
        return _fault(answer)
    try:
        if "json" in answer.content_type:
            return json.loads(answer.body)
        if answer.content_type.startswith("text/"):
            return answer.body.decode()
    except (ValueError, RecursionError):
        return ModelFault("a stage answered what is no JSON, or no text of UTF-8")
    return ModelFault(f"a stage answered {answer.content_type[:40] or 'bytes'}: only JSON or a text can stand in the answer")


def _fault(answer: Answer) -> SlotError:
    try:
        return StageFault(answer.status, json.loads(answer.body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return StageFault(answer.status if answer.status >= 400 else 500, "a stage failed")


def load_chain(model_dir: Path, settings: Settings) -> StageChain:
    """The stages of the archive in `model_dir`, loaded and warmed up in their order. Raises what one of them raises."""
    about = settings.model["options"][FOLDER]
    pipelines = []
    for i, stage in enumerate(about):
        folder = model_dir / FOLDER / stage["name"]
        environ = {**os.environ, "SLOTWISE_PROFILE": settings.profile}
        own = Settings.load(folder, environ, batch_size=settings.batch_size)
        time_s = settings.response_timeout_s / (2 * len(about))  # of which a pipeline uses half for its model
        handler = _handler(folder, stage["handler"], f"_stage_{i}")
        pipelines.append(Pipeline.start(handler, folder, own.but(response_timeout_s=time_s)))
    return StageChain(pipelines)


def _handler(folder: Path, file: str, name: str) -> BatchHandler:
    """A handler of its own, from its file. Its folder is where it imports from."""
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(name, folder / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    handler = getattr(getattr(module.handle, "__self__", None), "handler", None)
    if not isinstance(handler, BatchHandler) or handler.streams:
        raise ValueError(f"the stage {folder.name}: {file} has no handler that answers whole")
    return type(handler)()
