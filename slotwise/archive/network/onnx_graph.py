"""Make an ONNX graph fit for batches: convert an old opset, and make a batch axis that is fixed at 1 dynamic.

A changed graph is tried: three rows at once must give what each of them gives alone in the original graph. Where they do not,
the graph stays as it was, and its rows are run one by one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.archive.network.alike import alike
from slotwise.archive.network.detector_graph import HANDLER as DETECTOR
from slotwise.archive.network.detector_graph import fit_detector
from slotwise.archive.network.graph_classes import labelled, with_classes
from slotwise.archive.network.graph_files import kept_graph, with_whole_graph
from slotwise.archive.network.named_tensors import HANDLER as TENSORS
from slotwise.archive.network.named_tensors import fit_tensors
from slotwise.archive.network.network_output import checked_graph, named_output
from slotwise.archive.network.table_graph import HANDLER, fit_table
from slotwise.archive.network.text_network import HANDLERS, fit_texts
from slotwise.console import say
from slotwise.errors import SlotwiseError, first_line
from slotwise.model_spec import ModelSpec
from slotwise.worker.labels import CLASSIFIERS, SCORELESS, kind_of

OPSET = 17  # both engines run it; older graphs are converted where onnx can
BATCH = "batch"


def fit(spec: ModelSpec, sources: list[Path]) -> tuple[ModelSpec, list[Path], dict[str, Any]]:
    """Prepare the model's ONNX graph, where it has one.

    Returns what the build goes on with: the description with `options.onnx`, the folders to take files from, and the facts for
    the build's report.
    """
    spec, sources = with_whole_graph(spec, sources)
    if spec.handler == HANDLER:
        spec, told = fit_table(spec, sources)
        return spec, sources, told
    if spec.handler == TENSORS:
        spec, told = fit_tensors(spec, sources)
        return spec, sources, told
    if spec.handler == DETECTOR:
        spec, told = fit_detector(spec, sources)
        return spec, sources, told
    if spec.handler in HANDLERS:
        spec, told = fit_texts(spec, sources)
        return spec, sources, told
    name = spec.weights.onnx
    source = next((folder / name for folder in sources if name and (folder / name).is_file()), None)
    if source is None or importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxruntime") is None:
        return spec, sources, {}
    folder, facts = prepare(spec, source)
    spec = named_classes(spec, source)
    described = spec.model_copy(update={"options": {**spec.options, "onnx": facts}})
    return described, [folder, *sources] if folder else sources, {"onnx": facts}


def prepare(spec: ModelSpec, source: Path) -> tuple[Path | None, dict[str, Any]]:
    """Convert a graph where that is needed. Returns the folder of the graph to serve, None for `source` itself, and facts.

    The facts: "batch" is "dynamic", "made dynamic" or "row by row"; "opset" is the version, or `9 -> 17`; "input" is its name;
    "output" is the name of the one that is served, where there are several; "softmax" is there where that is a softmax's.

    Raises SlotwiseError where the graph's input is not one tensor of spec.input.shape, and where nobody says which of several
    outputs is served.
    """
    graph = checked_graph(source)
    tensor = _input(graph, spec, source)
    first = tensor.type.tensor_type.shape.dim[0]
    opset = next((o.version for o in graph.opset_import if o.domain in ("", "ai.onnx")), OPSET)  # a tree needs no other domain
    output = named_output(graph, spec, source)
    facts: dict[str, Any] = {"input": tensor.name, "opset": str(opset)}
    if len(graph.graph.output) > 1:
        facts["output"] = output
    if any(node.op_type == "Softmax" and output in node.output for node in graph.graph.node):
        facts["softmax"] = True  # so the handlers do not apply another one
    if opset >= OPSET and not first.HasField("dim_value"):
        return None, {**facts, "batch": "dynamic"}
    if first.HasField("dim_value") and first.dim_value != 1:
        raise SlotwiseError(
            f"{source.name}: its batch is fixed at {first.dim_value}", "export it with a dynamic batch, or a batch of 1"
        )
    converted = _converted(graph, opset)
    facts["opset"] = f"{opset} -> {OPSET}" if converted is not graph else str(opset)
    fixed = first.HasField("dim_value")
    changed, why = _tried(graph, converted, tensor.name, output, spec, fixed=fixed)
    good = not why
    if why and fixed:
        say(f"{source.name}: its batch is fixed at 1, and {why}: its rows run one by one, so a batch saves no time")
    kept = changed if good else graph
    facts["batch"] = ("made dynamic" if good else "row by row") if fixed else "dynamic"
    facts["opset"] = facts["opset"] if good else str(opset)
    return kept_graph(spec, kept), facts


def named_classes(spec: ModelSpec, source: Path) -> ModelSpec:
    """The spec of a given classifier with the graph's own classes as labels. Raises SlotwiseError where they contradict it."""
    if spec.handler not in CLASSIFIERS or kind_of(spec.model_dump()) in SCORELESS:
        return spec
    import onnx  # noqa: PLC0415  optional

    graph = onnx.load(source)
    output = named_output(graph, spec, source)
    label, classes = labelled(graph, output)
    if not classes:
        return spec
    tensor = _input(graph, spec, source)
    rows = _rows(graph, tensor.name, spec)
    try:
        runs = [_run(graph, [label, output], {tensor.name: rows[i : i + 1]}) for i in range(len(rows))]
        labels, scores = (np.concatenate(parts) for parts in zip(*runs, strict=True))
    except Exception:  # the trial says what does not run
        return spec
    return with_classes(spec, source.name, classes, labels, scores)


def _input(graph: Any, spec: ModelSpec, source: Path) -> Any:
    """The graph's one input. Weights that an old export lists as inputs do not count.

    Raises SlotwiseError where there are several, or the shape is not that of model.toml.
    """
    constants = {tensor.name for tensor in graph.graph.initializer}
    inputs = [value for value in graph.graph.input if value.name not in constants]
    expected = spec.input.name
    chosen = [value for value in inputs if expected in (None, value.name)]
    names = ", ".join(value.name for value in inputs)
    if len(inputs) != 1 or not chosen:
        raise SlotwiseError(
            f"{source.name} has the inputs {names}, but must have one{f', {expected}' if expected else ''}", "cut the graph"
        )
    sides = [dim.dim_value if dim.HasField("dim_value") else None for dim in chosen[0].type.tensor_type.shape.dim]
    shape = spec.input.shape
    free = None in sides[1:]
    if len(sides) != len(shape) + 1 or (
        not free and sorted(map(str, sides[1:])) != sorted(map(str, shape))
    ):  # pictures come h, w, c
        has = "x".join(str(side or "?") for side in sides)
        raise SlotwiseError(
            f"{source.name} takes {has}, but model.toml says input.shape = {shape}", "the shape of one item, without the batch"
        )
    return chosen[0]


def _converted(graph: Any, opset: int) -> Any:
    from onnx import version_converter  # noqa: PLC0415  optional

    if opset >= OPSET:
        return graph
    try:
        return version_converter.convert_version(graph, OPSET)
    except Exception:  # not every old operator has a successor; engines still run it
        return graph


def _tried(graph: Any, converted: Any, name: str, output: str, spec: ModelSpec, *, fixed: bool) -> tuple[Any, str]:
    """The graph to serve, and why it cannot be: "" where it gives what the original gives."""
    rows = _rows(graph, name, spec)
    try:
        changed = _dynamic(converted, {name: rows[:1]}) if fixed else converted
        return changed, _difference(graph, changed, name, output, rows)
    except Exception as error:
        return converted, f"not even one row runs: {first_line(error)}"


def _dynamic(graph: Any, row: Mapping[str, Any]) -> Any:
    """A copy of the graph with a dynamic batch axis. row: one row, by the input's name; the original runs it.

    A Reshape that gives one row of so many values gives as many rows as there are, of as many values each, however the exporter
    wrote its shape: as a weight, a constant or a computation.
    """
    import onnx  # noqa: PLC0415  optional

    copy = onnx.ModelProto()
    copy.CopyFrom(graph)
    constants = {tensor.name for tensor in copy.graph.initializer}
    for value in [*copy.graph.input, *copy.graph.output]:
        dims = value.type.tensor_type.shape.dim
        if value.name not in constants and dims and dims[0].dim_value == 1:
            dims[0].dim_param = BATCH
    del copy.graph.value_info[:]
    reshapes = [node for node in copy.graph.node if node.op_type == "Reshape" and node.input[0] not in constants]
    shapes = _shapes(graph, [node.output[0] for node in reshapes], row)
    for node in reshapes:
        sides = shapes[node.output[0]]
        if len(sides) > 1 and sides[0] == 1:
            name = f"{node.output[0]}_shape"  # its own: another Reshape may share the constant
            copy.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1, *sides[1:]], np.int64), name))
            node.input[1] = name
            for attribute in [one for one in node.attribute if one.name == "allowzero"]:
                node.attribute.remove(attribute)
    return copy


def _shapes(graph: Any, names: Sequence[str], row: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes that these values of the graph have for one row."""
    import onnx  # noqa: PLC0415  optional

    told = onnx.ModelProto()
    told.CopyFrom(graph)
    known = {value.name for value in told.graph.output}
    told.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    return {name: value.shape for name, value in zip(names, _run(told, names, row), strict=True)} if names else {}


def _run(graph: Any, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
    """The values of these names. Raises whatever the engine raises."""
    import onnxruntime  # noqa: PLC0415  optional

    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    session = onnxruntime.InferenceSession(graph.SerializeToString(), quiet, providers=["CPUExecutionProvider"])
    values: list[Any] = session.run(list(names), dict(inputs))
    return values


def _rows(graph: Any, name: str, spec: ModelSpec) -> Any:
    """Three different rows for the input."""
    draw = np.random.default_rng(0)
    sides = next(value for value in graph.graph.input if value.name == name).type.tensor_type.shape.dim
    shape = [dim.dim_value or side for dim, side in zip(list(sides)[1:], spec.input.shape, strict=True)]
    if spec.input.dtype == "uint8":
        return draw.integers(0, 256, size=(3, *shape), dtype=np.uint8)
    return draw.normal(size=(3, *shape)).astype(spec.input.dtype)


def _difference(graph: Any, changed: Any, name: str, output: str, rows: Any) -> str:
    """How three rows at once differ from what each of them gives alone in the original graph; "" where they do not."""
    try:
        together = _run(changed, [output], {name: rows})[0]
    except Exception as error:
        return f"three rows at once do not run: {first_line(error)}"
    alone = np.concatenate([_run(graph, [output], {name: rows[i : i + 1]})[0] for i in range(3)])
    if together.shape != alone.shape:
        return f"three rows at once give {together.shape}, alone {alone.shape}"
    if not alike(alone, together):
        return "three rows at once give other values than alone"
    return ""
