"""Make an ONNX graph fit for batches: convert an old opset, and make a batch axis that is fixed at 1 dynamic.

A changed graph is tried: three rows at once must give what each of them gives alone in the original graph. Where they do not,
the graph stays as it was, and its rows are run one by one.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

from slotwise.archive.network.network_output import named_output
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.model_spec import ModelSpec

OPSET = 17  # both engines run it; older graphs are converted where onnx can
TOLERANCE = 1e-3
BATCH = "batch"


def fit(spec: ModelSpec, sources: list[Path]) -> tuple[ModelSpec, list[Path], dict[str, Any]]:
    """Prepare the model's ONNX graph, where it has one.

    Returns what the build goes on with: the description with `options.onnx`, the folders to take files from, and the facts for
    the build's report.
    """
    name = spec.weights.onnx
    source = next((folder / name for folder in sources if name and (folder / name).is_file()), None)
    if source is None or importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxruntime") is None:
        return spec, sources, {}
    folder, facts = prepare(spec, source)
    described = spec.model_copy(update={"options": {**spec.options, "onnx": facts}})
    return described, [folder, *sources] if folder else sources, {"onnx": facts}


def prepare(spec: ModelSpec, source: Path) -> tuple[Path | None, dict[str, Any]]:
    """Convert a graph where that is needed. Returns the folder of the graph to serve, None for `source` itself, and facts.

    The facts: "batch" is "dynamic", "made dynamic" or "row by row"; "opset" is the version, or `9 -> 17`; "input" is its name;
    "output" is the name of the one that is served, where there are several; "softmax" is there where that is a softmax's.

    Raises SlotwiseError where the graph's input is not one tensor of spec.input.shape, and where nobody says which of several
    outputs is served.
    """
    import onnx  # noqa: PLC0415  optional

    try:
        graph = onnx.load(source)
        onnx.checker.check_model(graph)
    except Exception as error:
        raise SlotwiseError(
            f"{source.name} is no ONNX graph: {str(error).splitlines()[0]}", "export the model again"
        ) from error
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
    changed = _dynamic(converted) if fixed else converted
    good = _same(graph, changed, tensor.name, output, spec)
    kept = changed if good else graph
    facts["batch"] = ("made dynamic" if good else "row by row") if fixed else "dynamic"
    facts["opset"] = facts["opset"] if good else str(opset)
    data = kept.SerializeToString(deterministic=True)
    folder = project.cache_dir() / spec.name / f"onnx-{hashlib.sha256(data).hexdigest()[:16]}"
    target = folder / str(spec.weights.onnx)
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        partial.write_bytes(data)
        partial.replace(target)
    return folder, facts


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


def _dynamic(graph: Any) -> Any:
    """A copy of the graph with a dynamic batch axis. A Reshape to [1, ...] keeps the first side of its input instead."""
    import onnx  # noqa: PLC0415  optional

    copy = onnx.ModelProto()
    copy.CopyFrom(graph)
    constants = {tensor.name: tensor for tensor in copy.graph.initializer}
    for value in [*copy.graph.input, *copy.graph.output]:
        dims = value.type.tensor_type.shape.dim
        if value.name not in constants and dims and dims[0].dim_value == 1:
            dims[0].dim_param = BATCH
    del copy.graph.value_info[:]
    for node in copy.graph.node:
        shape = constants.get(node.input[1]) if node.op_type == "Reshape" and node.input[0] not in constants else None
        sides = onnx.numpy_helper.to_array(shape).copy() if shape is not None else None
        if sides is not None and sides.ndim == 1 and len(sides) > 1 and sides[0] == 1:
            sides[0] = 0
            name = f"{node.output[0]}_shape"  # its own: another Reshape may share the constant
            copy.graph.initializer.append(onnx.numpy_helper.from_array(sides, name))
            node.input[1] = name
    return copy


def _same(graph: Any, changed: Any, name: str, output: str, spec: ModelSpec) -> bool:
    """Whether three different rows at once give what each of them gives alone in the original graph."""
    import numpy as np  # noqa: PLC0415  slow to import
    import onnxruntime  # noqa: PLC0415  optional

    draw = np.random.default_rng(0)
    sides = next(value for value in graph.graph.input if value.name == name).type.tensor_type.shape.dim
    shape = [dim.dim_value or side for dim, side in zip(list(sides)[1:], spec.input.shape, strict=True)]
    rows = draw.normal(size=(3, *shape)).astype(spec.input.dtype)
    if spec.input.dtype == "uint8":
        rows = draw.integers(0, 256, size=rows.shape, dtype=np.uint8)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4

    def run(model: Any, batch: Any) -> Any:
        session = onnxruntime.InferenceSession(model.SerializeToString(), quiet, providers=["CPUExecutionProvider"])
        return session.run([output], {name: batch})[0]

    try:
        together = run(changed, rows)
        alone = np.concatenate([run(graph, rows[i : i + 1]) for i in range(3)])
    except Exception:
        return False
    return together.shape == alone.shape and bool(np.allclose(together, alone, rtol=TOLERANCE, atol=TOLERANCE))
