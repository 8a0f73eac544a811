"""Fit the model of a `tabular` archive: its inputs are compared with the columns, and rows are run, before it serves."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from slotwise import console
from slotwise.archive.network.alike import alike
from slotwise.archive.network.expected import check_expected, read_expected, unproven
from slotwise.archive.network.graph_classes import labelled, with_classes
from slotwise.archive.network.named_examples import named_examples
from slotwise.archive.network.network_output import check_output, checked_graph, named_output
from slotwise.errors import SlotwiseError, first_line, missing_package
from slotwise.model_spec import ModelSpec
from slotwise.worker.engines.versions import release
from slotwise.worker.environment.settings import Settings
from slotwise.worker.labels import SCORELESS, declared_output, kind_of
from slotwise.worker.tables.columns import Row, TableSchema
from slotwise.worker.tables.table_body import rows_of
from slotwise.worker.tables.table_engine import TableEngine, load_table
from slotwise.worker.tables.table_library import ENGINES, LibraryEngine, form_of

HANDLER = "tabular"
GRAPH = "onnx"
Engine = TableEngine | LibraryEngine
NOISE_ROWS = 8
EXPECTED = 'expected = "expected.json" in model.toml compares them'


def fit_table(spec: ModelSpec, sources: list[Path]) -> tuple[ModelSpec, dict[str, Any]]:
    """Look at the model and run it. Returns the description with what its numbers are and its labels, and facts for the report.

    Raises SlotwiseError where it is not for these columns, refuses an example, or gives what nobody has named.
    """
    source, form = _source(spec, sources)
    graph, output, facts = None, "", dict[str, Any]()
    if form == GRAPH:
        graph = checked_graph(source)
        output = named_output(graph, spec, source)
        opsets = {one.domain or "ai.onnx": one.version for one in graph.opset_import}
        about = {"opset": str(opsets.get("ai.onnx", "")), "batch": "dynamic"}
        about |= {"output": output} if len(graph.graph.output) > 1 else {}
        facts = {"onnx": about}
        spec = spec.model_copy(update={"options": {**spec.options, "onnx": about}})
    engine = _engine(spec, source)
    if isinstance(engine, LibraryEngine):
        facts = {"library": f"{engine.name} {release(form)}"}
        spec = _of_kind(spec, source.name, engine)
    rows = _rows(spec, sources, engine)
    outputs = _together(spec, source.name, engine, rows)
    if isinstance(engine, LibraryEngine) and engine.kind != "regression" and outputs.shape[1] == 1 and len(spec.labels) != 2:
        raise SlotwiseError(
            f"{source.name} gives the score of the second of two classes, and nobody names them",
            'write in model.toml: labels = ["no", "yes"]',
        )
    check_output(spec, source.name, outputs)
    expected = read_expected(spec, sources)
    if expected:
        check_expected(spec, source.name, expected, engine)
    elif graph and (why := unproven(graph)):
        console.say(f"{spec.name}: {why}: rows at a threshold may be answered otherwise than by its library ({EXPECTED})")
    if kind_of(spec.model_dump()) not in SCORELESS:
        spec = _with_classes(spec, source.name, engine, graph, output, rows, outputs)
    labels, scores = len(spec.labels), outputs.shape[1]
    if labels and scores != labels and (labels, scores) != (2, 1):
        raise SlotwiseError(f"{source.name} gives {scores} scores, but there are {labels} labels", "a label for each score")
    told = {"expected": {"file": expected.file, "rows": len(expected.rows)}} if expected else {}
    return spec, {**facts, **told}


def _source(spec: ModelSpec, sources: list[Path]) -> tuple[Path, str]:
    """The model's file, and its form: GRAPH, or one of ENGINES."""
    if not spec.input.columns:
        raise SlotwiseError(f"{spec.name} names no columns", 'write in model.toml: [input.columns] and below it age = "float"')
    form = form_of(spec.model_dump()) or GRAPH
    name: str | None = getattr(spec.weights, form)
    if name is None:
        hint = f'write in model.toml: [weights] and below it onnx = "model.onnx" (or {", ".join(ENGINES)})'
        raise SlotwiseError(f"{spec.name} names no model", hint)
    for package in ("onnx", "onnxruntime") if form == GRAPH else (form,):
        if importlib.util.find_spec(package) is None:
            raise missing_package(package, "a table's model")
    source = next((path for folder in sources if (path := folder / name).is_file()), None)
    if source is None:
        raise SlotwiseError(f"{name} is named in model.toml but is not in {sources[-1]}", "add the file")
    return source, form


def _of_kind(spec: ModelSpec, file: str, engine: LibraryEngine) -> ModelSpec:
    """The spec with what the library says that its numbers are. Raises SlotwiseError where model.toml says something else."""
    output, said = declared_output(spec.model_dump())
    if output or (said and engine.kind and said != engine.kind):
        line = f'write in model.toml: output = "{engine.kind or "regression"}"' + (", or nothing" if engine.kind else "")
        raise SlotwiseError(f"{file} gives {engine.kind or 'numbers'}, not {spec.output}", line)
    return spec if said or not engine.kind else spec.model_copy(update={"output": engine.kind})


def _with_classes(
    spec: ModelSpec, file: str, engine: Engine, graph: Any, output: str, rows: list[Row], outputs: Any
) -> ModelSpec:
    """The spec with the classes that the model names itself, where it has no labels."""
    if isinstance(engine, LibraryEngine):
        return with_classes(spec, file, engine.classes, engine.labels(rows), outputs) if engine.classes else spec
    label, classes = labelled(graph, output)
    if not classes:
        return spec
    engine.outputs = [label]
    return with_classes(spec, file, classes, np.ravel(engine(rows)), outputs)


def load_model(spec: ModelSpec, source: Path, output: str = "") -> Engine:
    """The model in a file as a worker loads it. output: of a graph, the one that is run, in place of model.toml's.

    Raises ValueError.
    """
    model = spec.model_dump(mode="json", exclude_none=True)
    form = form_of(model) or GRAPH
    engine = load_table(source.parent, Settings(model={**model, "weights": {form: source.name}}, threads=1))
    if output and isinstance(engine, TableEngine):
        engine.outputs = [output]
    return engine


def _engine(spec: ModelSpec, source: Path) -> Engine:
    try:
        return load_model(spec, source)
    except Exception as error:
        graphs = 'correct [input.columns]; age = {kind = "int", input = "NAME"} names the input that a column is a part of'
        hint = "correct model.toml, or write the file again" if form_of(spec.model_dump()) else graphs
        raise SlotwiseError(f"{source.name} cannot serve: {first_line(error)}", hint) from error


def _rows(spec: ModelSpec, sources: list[Path], engine: Engine) -> list[Row]:
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
                raise SlotwiseError(f"{spec.name} does not run on made-up rows: {first_line(error)}", hint) from error
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


def _together(spec: ModelSpec, file: str, engine: Engine, rows: list[Row]) -> Any:
    """The outputs of all rows, [b, outputs]. Raises SlotwiseError where a row has others among mates than alone."""
    alone = np.concatenate([_run(spec, engine, [row], "a row") for row in rows])
    together = _run(spec, engine, rows, f"{len(rows)} rows at once")
    if not alike(alone, together):
        hint = "no batch can be made of them" if isinstance(engine, LibraryEngine) else "export it with a free batch axis"
        raise SlotwiseError(f"{file} gives several rows at once other values than each alone", hint)
    return alone


def _run(spec: ModelSpec, engine: Engine, rows: list[Row], what: str) -> Any:
    try:
        return engine(rows)
    except Exception as error:
        raise SlotwiseError(
            f"{spec.name} does not run on {what}: {first_line(error)}", "is this the model of these columns?"
        ) from error
