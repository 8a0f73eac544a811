"""Build a model from its folder, serve it on each engine, and compare every answer with the library's."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.archive.build import build
from slotwise.archive.inspection import inspect
from slotwise.errors import SlotwiseError
from slotwise.worker.separability.verdict import Verdict
from tests.thirty.made import Body, Brought, Made, Truth
from tests.worker.serving import Served

ENGINES = ("onnxruntime", "openvino", "torch")
GOOD, FEW = 16, 8  # a batch, and of how many one is bad


REFUSED = ("no engine can serve", "but it must be auto or one of", "does not compute the")  # what a worker says of an engine


@dataclass
class Result:
    """What became of one model. said: of the refusal at build, the line and its hint; "" where it was built.

    engines: those that served it. answers: how many were compared. wrong: 200 and not the library's answer, or a bad request's
    200. lost: a good request's error. rows: what its build proved of its rows, by engine: "apart", "one by one", "unknown".
    """

    said: str = ""
    engines: list[str] = field(default_factory=list)
    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    rows: dict[str, str] = field(default_factory=dict)


def tried(brought: Brought, place: Path) -> Result:
    """Make it, build it, ask it: each request alone, all sixteen in one batch, and with one bad in eight at every place."""
    folder = place / brought.name
    folder.mkdir()
    made = brought.make(folder)
    result = Result()
    try:
        archive = build(folder, place / "store")
    except SlotwiseError as error:
        result.said = f"{error.message}: {error.hint}"
        return result
    result.rows = {str(verdict.about): _kept(verdict) for verdict in inspect(archive).separability}
    for engine in ENGINES:
        if importlib.util.find_spec(engine) is None:
            continue
        try:
            served = Served.of(archive, {"engine": engine, "precision": "fp32"}, batch_size=GOOD)
        except ValueError as error:
            if any(said in str(error) for said in REFUSED):
                continue
            raise
        name = getattr(served.handler.engine, "name", engine)
        if name in result.engines:
            continue  # it has one engine, whatever the profile says
        result.engines.append(name)
        for batch, truths in batches(made):
            compare(served, name, batch, truths, made.tolerance, result)
    return result


def _kept(verdict: Verdict) -> str:
    if verdict.separable:
        return "apart"
    return "one by one" if verdict.most_rows == 1 else "unknown"


def batches(made: Made) -> Iterator[tuple[Sequence[Body], Sequence[Truth | None]]]:
    """What is sent together, and what is expected: None for a bad request."""
    for body, truth in zip(made.bodies, made.truths, strict=True):
        yield [body], [truth]
    yield made.bodies, made.truths
    for place in range(FEW):
        bodies, truths = list(made.bodies), list(made.truths)
        for i in range(place, len(bodies), FEW):
            bodies[i], truths[i] = made.bad[(i + place) % len(made.bad)], None  # type: ignore[call-overload]
        yield bodies, truths


def compare(served: Served, engine: str, batch: Any, truths: Any, tolerance: float, result: Result) -> None:
    """Send one batch twice, for plain answers and with every score, and note what is wrong or lost."""
    plain = served.ask([body for body, _ in batch], [headers for _, headers in batch])
    full = served.ask([body for body, _ in batch], [{**headers, "x-scores": "all"} for _, headers in batch])
    for i, (truth, answer, scored) in enumerate(zip(truths, plain, full, strict=True)):
        result.answers += 1
        where = f"{engine}, {i} of {len(batch)}: {answer.body[:200]!r}"
        if truth is None:
            if answer.code == 200 and "error" not in str(answer.value):
                result.wrong.append(f"{where} for a bad request")
            elif answer.code >= 500:
                result.wrong.append(f"{where}: a bad request's {answer.code}")
        elif answer.code != 200 or scored.code != 200:
            result.lost.append(f"{where}: {answer.code}")
        elif fault := differs(answer.value, scored.value, truth, tolerance):
            result.wrong.append(f"{where}: {fault}")


def differs(answer: Any, scored: Any, truth: Truth, tolerance: float) -> str:
    """How an answer differs from the library's; "" where it does not."""
    if isinstance(answer, list) and len(answer) == 1:
        answer, scored = answer[0], scored[0]  # a body that may hold several is answered by a list
    numbers = np.ravel(np.asarray(truth.numbers, np.float64))
    if truth.label is None:
        found = np.array(list(leaves(answer)), np.float64)
    else:
        found = np.asarray(scored["scores"], np.float64)
        close = len(numbers) > 1 and np.diff(np.sort(numbers)[-2:])[0] < tolerance
        if answer["label"] != truth.label and not close:
            return f"the label is {truth.label}"
        if abs(max(answer["probabilities"].values()) - numbers.max()) > tolerance + 1e-6:
            return f"the score is {numbers.max()}"
    if found.shape != numbers.shape or not np.allclose(found, numbers, rtol=tolerance, atol=tolerance):
        return f"the numbers are {json.dumps(numbers.tolist())[:200]}"
    return ""


def leaves(value: Any) -> Iterator[float]:
    """The numbers of an answer, in their order."""
    if isinstance(value, dict):
        for one in value.values():
            yield from leaves(one)
    elif isinstance(value, list):
        for one in value:
            yield from leaves(one)
    else:
        yield value
