"""Fit the graph of a `tensors` model: its inputs and outputs by name, found in the graph and confirmed by running it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slotwise import console
from slotwise.archive.network.alike import alike
from slotwise.archive.network.named_examples import named_examples
from slotwise.archive.network.network_output import checked_graph
from slotwise.errors import SlotwiseError, first_line, missing_package
from slotwise.model_spec import ModelSpec
from slotwise.worker.tensors.named_engine import KINDS
from slotwise.worker.tensors.tensor_body import Item, NamedTensor, records_of

HANDLER = "tensors"
ROWS = 5
FREE = "export it with a free batch axis, the first of each input and output"


def fit_tensors(spec: ModelSpec, sources: list[Path], real: Sequence[Item] = ()) -> tuple[ModelSpec, dict[str, Any]]:
    """Look at the graph and run it. Returns the description with `options.tensors`, and the facts for the report.

    real: records to run it on, in place of the examples and made-up ones.

    Raises SlotwiseError where the graph is none of tensors with a free batch, or does not keep its rows apart.
    """
    if spec.labels or spec.output:
        raise SlotwiseError(f"{spec.name} answers all outputs of its graph", "write no labels and no output in model.toml")
    source, graph = graph_of(spec, sources)
    inputs = _inputs(graph, spec, source.name)
    outputs = [value.name for value in graph.graph.output]
    rows = list(real) or _rows(spec, sources, inputs)
    ran: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    for name in [name for name in ("onnxruntime", "openvino") if importlib.util.find_spec(name)]:
        try:
            ran[name] = KINDS[name](source, 1, outputs)
            found[name] = _run(ran[name], rows, inputs)
        except SlotwiseError:
            raise
        except Exception as error:
            if not found:
                hint = 'name records that it answers in model.toml: examples = ["record.json"]'
                raise SlotwiseError(f"{source.name} does not run on {name}: {first_line(error)}", hint) from error
            console.say(f"{spec.name}: {source.name} cannot serve on {name}: {first_line(error)}")
    if not found:
        raise missing_package("onnxruntime", f"the handler {spec.handler}")
    first, values = next(iter(found.items()))
    engines = [name for name in found if name == first or _same(values, found[name], ran[first], ran[name], inputs)]
    for name in found.keys() - set(engines):
        console.say(f"{spec.name}: {source.name} is not served on {name}: it gives other values there than on {first}")
    facts = {"inputs": [_fact(one) for one in inputs], "outputs": [_fact(one) for one in _outputs(values)], "engines": engines}
    return spec.model_copy(update={"options": {**spec.options, "tensors": facts}}), {"tensors": facts}


def graph_of(spec: ModelSpec, sources: list[Path]) -> tuple[Path, Any]:
    """The graph's file, and the graph. Raises SlotwiseError where there is none."""
    source = _source(spec, sources)
    return source, checked_graph(source)


def _source(spec: ModelSpec, sources: list[Path]) -> Path:
    if spec.weights.onnx is None:
        raise SlotwiseError(f"{spec.name} names no graph", 'write in model.toml: [weights] and below it onnx = "model.onnx"')
    if importlib.util.find_spec("onnx") is None:
        raise missing_package("onnx", f"the handler {spec.handler}")
    source = next((path for folder in sources if (path := folder / spec.weights.onnx).is_file()), None)
    if source is None:
        raise SlotwiseError(f"{spec.weights.onnx} is named in model.toml but is not in {sources[-1]}", "add the file")
    return source


def _inputs(graph: Any, spec: ModelSpec, file: str) -> list[NamedTensor]:
    """The graph's inputs; sides that it leaves free are those of model.toml."""
    from onnx import helper  # noqa: PLC0415  optional

    constants = {tensor.name for tensor in graph.graph.initializer}
    values = [value for value in graph.graph.input if value.name not in constants]
    unknown = next((name for name in spec.inputs if name not in {value.name for value in values}), None)
    if unknown is not None:
        has = ", ".join(value.name for value in values)
        raise SlotwiseError(f"{file} has no input {unknown!r}: it has {has}", "correct [inputs] in model.toml")
    found = []
    for value in values:
        if not value.type.HasField("tensor_type"):
            raise SlotwiseError(f"{file}: its input {value.name!r} is no tensor", "write a handler of its own")
        tensor = value.type.tensor_type
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if kind.kind not in "fiub":
            raise SlotwiseError(f"{file}: its input {value.name!r} holds no numbers", 'texts in columns: handler = "tabular"')
        sides = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
        if not sides or sides[0] is not None:
            raise SlotwiseError(f"{file}: the batch of its input {value.name!r} is fixed", FREE)
        shape = _shape(sides[1:], spec.inputs.get(value.name), value.name, file)
        found.append(NamedTensor(value.name, kind.name, shape))
    return found


def _shape(sides: list[int | None], declared: list[int] | None, name: str, file: str) -> tuple[int, ...]:
    in_graph = "x".join(str(side or "?") for side in sides)
    if declared is None:
        if None in sides:
            line = f"write in model.toml: [inputs] and below it {name} = [{', '.join(str(side or 16) for side in sides)}]"
            raise SlotwiseError(f"{file}: a record's {name!r} is {in_graph}, and nobody says how long it is", line)
        return tuple(side for side in sides if side is not None)
    if len(declared) != len(sides) or any(side not in (None, own) for side, own in zip(sides, declared, strict=True)):
        raise SlotwiseError(f"{file}: a record's {name!r} is {in_graph}, but model.toml says {declared}", "correct [inputs]")
    return tuple(declared)


def _rows(spec: ModelSpec, sources: list[Path], inputs: list[NamedTensor]) -> list[Item]:
    """The records of the examples, and made-up ones where those are few."""
    rows = list(named_examples(spec, sources, lambda body, headers: records_of(body, headers, inputs), "[inputs]"))
    return rows if len(rows) > 1 else [*rows, *_noise(inputs)]


def _noise(inputs: list[NamedTensor], *, full: bool = False) -> Iterator[Item]:
    """Made-up records. full: their small whole numbers are any that the dtype holds; else they are 0 and 1."""
    draw = np.random.default_rng(0)

    def numbers(one: NamedTensor) -> Any:
        kind = np.dtype(one.dtype)
        if kind.kind == "f":
            return draw.normal(size=one.shape).astype(kind)
        if full and kind.kind in "iu" and kind.itemsize <= 2:  # of larger ones no engine but onnxruntime is asked
            return draw.integers(np.iinfo(kind).min, np.iinfo(kind).max, one.shape, kind, endpoint=True)
        return draw.integers(0, 2, one.shape).astype(kind)

    for _ in range(ROWS):
        yield {one.name: numbers(one) for one in inputs}


def _same(values: dict[str, Any], others: dict[str, Any], first: Any, other: Any, inputs: list[NamedTensor]) -> bool:
    """Whether another engine gives what the first one does, and takes no record that the first one refuses."""

    def answered(engine: Any, row: Item) -> Any:
        try:
            return engine({name: value[None] for name, value in row.items()})
        except Exception:  # an index that is in no table
            return {}

    return _alike(values, others) and all(
        _alike(answered(first, row), answered(other, row)) for row in _noise(inputs, full=True)
    )


def _run(engine: Any, rows: list[Item], inputs: list[NamedTensor]) -> dict[str, Any]:
    """The outputs of all rows, each alone. Raises SlotwiseError where there is not one a row, or mates change it."""

    def collated(some: list[Item]) -> dict[str, Any]:
        return {one.name: np.stack([row[one.name] for row in some]) for one in inputs}

    singles = [engine(collated([row])) for row in rows]
    together = engine(collated(rows))
    for name, value in together.items():
        parts = [np.asarray(one[name]) for one in singles]
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise SlotwiseError(f"its output {name!r} holds no numbers", 'texts and labels: handler = "tabular"')
        if any(part.shape[:1] != (1,) for part in parts) or array.shape != (len(rows), *parts[0].shape[1:]):
            raise SlotwiseError(f"its output {name!r} has the shape {list(array.shape)} for {len(rows)} records", FREE)
    alone = {name: np.concatenate([one[name] for one in singles]) for name in together}
    if not _alike(alone, together):
        raise SlotwiseError("it gives several records at once other values than each alone", FREE)
    return alone


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)


def _outputs(values: dict[str, Any]) -> list[NamedTensor]:
    """Half precision is answered as float32, which holds it exactly and every protocol knows."""
    kinds = {name: np.asarray(value).dtype.name.replace("float16", "float32") for name, value in values.items()}
    return [NamedTensor(name, kinds[name], np.shape(value)[1:]) for name, value in values.items()]


def _fact(one: NamedTensor) -> dict[str, Any]:
    return {"name": one.name, "dtype": one.dtype, "shape": list(one.shape)}
