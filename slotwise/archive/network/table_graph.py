"""Fit the graph of a `tabular` model: its inputs are compared with the columns, and rows are run, before it serves."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from slotwise import console
from slotwise.archive.network.expected import check_expected, read_expected, unproven
from slotwise.archive.network.graph_classes import labelled, with_classes
from slotwise.archive.network.named_examples import named_examples
from slotwise.archive.network.network_output import check_output, checked_graph, named_output
from slotwise.errors import SlotwiseError, missing_package
from slotwise.model_spec import ModelSpec
from slotwise.worker.environment.settings import Settings
from slotwise.worker.labels import SCORELESS, kind_of
from slotwise.worker.tables.columns import Row, TableSchema
from slotwise.worker.tables.table_body import rows_of
from slotwise.worker.tables.table_engine import TableEngine, load_table

HANDLER = "tabular"
NOISE_ROWS = 8
EXPECTED = 'expected = "expected.json" in model.toml compares them'
FAR = 1e-3  # a row may differ so much with its mates


def fit_table(spec: ModelSpec, sources: list[Path]) -> tuple[ModelSpec, dict[str, Any]]:
    """Look at the graph and run it. Returns the description with `options.onnx` and labels, and the facts for the report.

    Raises SlotwiseError where the graph is not for these columns, refuses an example, or gives what nobody has named.
    """
    source = _source(spec, sources)
    graph = checked_graph(source)
    output = named_output(graph, spec, source)
    opsets = {one.domain or "ai.onnx": one.version for one in graph.opset_import}
    facts: dict[str, Any] = {"opset": str(opsets.get("ai.onnx", "")), "batch": "dynamic"}
    if len(graph.graph.output) > 1:
        facts["output"] = output
    spec = spec.model_copy(update={"options": {**spec.options, "onnx": facts}})
    engine = _engine(spec, source)
    rows = _rows(spec, sources, engine)
    outputs = _together(spec, source.name, engine, rows)
    check_output(spec, source.name, outputs)
    expected = read_expected(spec, sources)
    if expected:
        check_expected(spec, source.name, expected, engine)
    elif why := unproven(graph):
        console.say(f"{spec.name}: {why}: rows at a threshold may be answered otherwise than by its library ({EXPECTED})")
    label, classes = labelled(graph, output)
    if classes and kind_of(spec.model_dump()) not in SCORELESS:
        engine.outputs = [label]
        spec = with_classes(spec, source.name, classes, np.ravel(engine(rows)), outputs)
    labels, scores = len(spec.labels), outputs.shape[1]
    if labels and scores != labels and (labels, scores) != (2, 1):
        raise SlotwiseError(f"{source.name} gives {scores} scores, but there are {labels} labels", "a label for each score")
    told = {"expected": {"file": expected.file, "rows": len(expected.rows)}} if expected else {}
    return spec, {"onnx": facts, **told}


def _source(spec: ModelSpec, sources: list[Path]) -> Path:
    if not spec.input.columns:
        raise SlotwiseError(f"{spec.name} names no columns", 'write in model.toml: [input.columns] and below it age = "float"')
    if spec.weights.onnx is None:
        raise SlotwiseError(f"{spec.name} names no graph", 'write in model.toml: [weights] and below it onnx = "model.onnx"')
    for package in ("onnx", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise missing_package(package, "a table's model")
    source = next((path for folder in sources if (path := folder / spec.weights.onnx).is_file()), None)
    if source is None:
        raise SlotwiseError(f"{spec.weights.onnx} is named in model.toml but is not in {sources[-1]}", "add the file")
    return source


def load_graph(spec: ModelSpec, source: Path, output: str = "") -> TableEngine:
    """The graph as a worker loads it. output: the one that is run, in place of model.toml's. Raises ValueError."""
    model = spec.model_dump(mode="json", exclude_none=True)
    engine = load_table(source.parent, Settings(model={**model, "weights": {"onnx": source.name}}, threads=1))
    if output:
        engine.outputs = [output]
    return engine


def _engine(spec: ModelSpec, source: Path) -> TableEngine:
    try:
        return load_graph(spec, source)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise SlotwiseError(
            f"{source.name} cannot serve: {reason}",
            'correct [input.columns]; age = {kind = "int", input = "NAME"} names the input that a column is a part of',
        ) from error


def _rows(spec: ModelSpec, sources: list[Path], engine: TableEngine) -> list[Row]:
    """The rows of the examples, and of noise that the graph runs. Raises SlotwiseError for an example that is refused."""
    columns = engine.columns
    rows = list(named_examples(spec, sources, lambda body, headers: rows_of(body, headers, columns), "[input.columns]"))
    for i, row in enumerate(rows):
        _run(spec, engine, [row], f"row {i + 1} of its examples")
    texts = rows or [engine.columns.example()]
    for i, row in enumerate(_noise(engine.columns, texts)):
        try:
            engine([row])
        except Exception as error:  # a text that nobody has trained it on, perhaps
            if not rows and i == NOISE_ROWS - 1:
                hint = 'name rows that it answers in model.toml: examples = ["row.json"]'
                raise SlotwiseError(f"{spec.name} does not run on made-up rows: {str(error).splitlines()[0]}", hint) from error
            continue
        rows.append(row)
    return rows


def _noise(columns: TableSchema, like: list[Row]) -> Iterator[Row]:
    draw = np.random.default_rng(0)
    for i in range(NOISE_ROWS):
        numbers, texts = like[i % len(like)]
        made = numbers + draw.normal(size=numbers.shape) * (1 if i % 2 else 50)
        whole = [columns.all[place].kind != "float" for place in columns.numbers]
        made = np.where(whole, np.abs(np.round(made)) % 2 if i % 2 else np.abs(np.round(made)), made)
        yield made, texts


def _together(spec: ModelSpec, file: str, engine: TableEngine, rows: list[Row]) -> Any:
    """The outputs of all rows, [b, outputs]. Raises SlotwiseError where a row has others among mates than alone."""
    alone = np.concatenate([_run(spec, engine, [row], "a row") for row in rows])
    together = _run(spec, engine, rows, f"{len(rows)} rows at once")
    if together.shape != alone.shape or not np.allclose(together, alone, rtol=FAR, atol=FAR, equal_nan=True):
        raise SlotwiseError(
            f"{file} gives several rows at once other values than each alone", "export it with a free batch axis"
        )
    return alone


def _run(spec: ModelSpec, engine: TableEngine, rows: list[Row], what: str) -> Any:
    try:
        return engine(rows)
    except Exception as error:
        raise SlotwiseError(
            f"{spec.name} does not run on {what}: {str(error).splitlines()[0]}", "is this the graph of these columns?"
        ) from error
