"""Compare a table's graph with what its library answers, row by row, and say where a tree's branches are proven by nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.errors import SlotwiseError
from slotwise.model_spec import ModelSpec
from slotwise.worker.labels import SCORELESS, kind_of
from slotwise.worker.slot_errors import SlotError
from slotwise.worker.tables.columns import Row, TableSchema
from slotwise.worker.tables.table_engine import TableEngine
from slotwise.worker.tables.table_library import LibraryEngine

FAR = 1e-5  # of the largest number: float32 sums otherwise than float64, but no tree's other branch is as near
AT_ONCE = 1024
TREES = ("TreeEnsembleClassifier", "TreeEnsembleRegressor", "TreeEnsemble")
MOVES = ("Cast", "Concat", "Identity", "Reshape", "Flatten", "Gather", "ArrayFeatureExtractor", "Imputer", "OneHotEncoder",
         "LabelEncoder", "Squeeze", "Unsqueeze", "Slice", "Split", "Transpose", "FeatureVectorizer")  # fmt: skip
EXACT = "skl2onnx"  # its thresholds in float32 are where scikit-learn's are
LINE = (
    "slotwise.archive.library.scikit_learn.export writes a graph that answers as scikit-learn does; "
    'in another way: float64 inputs, and "float" columns, with a cast to float32 in front of a tree of scikit-learn'
)


@dataclass(frozen=True)
class Expected:
    """rows and answers [b, n] of a file, in its order."""

    file: str
    rows: list[Any]
    answers: Any


def read_expected(spec: ModelSpec, sources: list[Path]) -> Expected | None:
    """What model.toml expects; None where it names no file. Raises SlotwiseError for one that cannot be read."""
    if spec.expected is None:
        return None
    path = next((path for folder in sources if (path := folder / spec.expected).is_file()), None)
    if path is None:
        raise SlotwiseError(f"{spec.expected} is named in model.toml but is not in {sources[-1]}", "add the file")
    try:
        data = json.loads(path.read_bytes())
        rows, answers = data["rows"], np.array(data["answers"], np.float64)
        answers = answers.reshape(len(rows), -1)
        if not rows or not answers.size or not np.isfinite(answers).all():
            raise ValueError("there are no answers")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise SlotwiseError(
            f"{spec.expected} holds no rows and answers: {error}", 'it is {"rows": [...], "answers": [[...], ...]}, one each'
        ) from error
    return Expected(spec.expected, rows, answers)


def check_expected(spec: ModelSpec, file: str, expected: Expected, engine: TableEngine | LibraryEngine) -> None:
    """Raise SlotwiseError where the model answers otherwise than expected, and say for how many rows."""
    if why := difference(spec, expected, engine):
        raise SlotwiseError(f"{file} answers otherwise than {expected.file}: {why}", LINE)


def difference(spec: ModelSpec, expected: Expected, engine: TableEngine | LibraryEngine) -> str:
    """How the model's answers differ from those that are expected; "" where they do not. Raises for rows it is not for."""
    rows = list(_rows(expected, engine.columns))
    parts = [engine(rows[at : at + AT_ONCE]) for at in range(0, len(rows), AT_ONCE)]
    given = np.concatenate([np.asarray(part, np.float64) for part in parts])
    wanted = expected.answers
    if given.shape != wanted.shape:
        return f"{given.shape[1]} numbers a row, not {wanted.shape[1]}"
    kind = kind_of(spec.model_dump())
    near = FAR * max(1.0, float(np.abs(wanted).max()))
    wrong = ~(np.abs(given - wanted) <= near).all(axis=1)
    if kind not in SCORELESS and given.shape[1] > 1:
        wrong |= given.argmax(axis=1) != wanted.argmax(axis=1)  # a tie has the library's label, too
    if not wrong.any():
        return ""
    first = int(wrong.argmax())
    this, not_this = (", ".join(f"{number:.9g}" for number in row[:4]) for row in (given[first], wanted[first]))
    return f"{int(wrong.sum())} of {len(wrong)} rows; row {first + 1} gives {this}, not {not_this}"


def _rows(expected: Expected, columns: TableSchema) -> Iterator[Row]:
    for i, row in enumerate(expected.rows):
        try:
            yield columns.of_record(row) if isinstance(row, dict) else columns.of_list(row)
        except (SlotError, TypeError) as error:
            message = f"{expected.file}: row {i + 1}: {error}"
            raise SlotwiseError(message, "correct the row, or [input.columns]") from error


def unproven(graph: Any) -> str:
    """Why nobody knows that the branches of the graph's trees are the library's; "" where it has none, or they are.

    The numbers that a tree compares must be the client's own, moved and not computed, in float32, by an exporter that
    rounds thresholds for that.
    """
    trees = [node for node in graph.graph.node if node.op_type in TREES]
    if not trees:
        return ""
    made_by = {name: node for node in graph.graph.node for name in node.output}
    waiting = [name for node in trees for name in node.input]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        node = made_by.get(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        if node.op_type not in (*MOVES, *TREES):
            return f"a tree compares numbers that the graph computes ({node.op_type})"
        waiting += node.input
    wide = [value.name for value in graph.graph.input if value.type.tensor_type.elem_type == 11]  # DOUBLE
    if wide and not any(node.op_type == "Cast" for node in graph.graph.node):
        return f"a tree compares the float64 of {wide[0]}"
    return "" if graph.producer_name == EXACT else "the graph's maker may have rounded the thresholds of its trees"
