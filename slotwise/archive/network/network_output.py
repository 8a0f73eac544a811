"""Look at what a network gives before a given classifier serves it: which of its outputs, and what the numbers are.

A wrong guess would be answered with 200: the first output of scikit-learn's classifiers is the label, and a softmax over
probabilities changes them all. What is not plain is refused, with the line of model.toml that says it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slotwise import console
from slotwise.errors import SlotwiseError, first_line
from slotwise.model_spec import ModelSpec
from slotwise.worker.labels import CLASSIFIERS, declared_output

SLACK = 1e-4  # of rows that sum to one, in half precision as well


def checked_graph(source: Path) -> Any:
    """The ONNX graph in a file. Raises SlotwiseError where there is none."""
    import onnx  # noqa: PLC0415  optional

    try:
        graph = onnx.load(source)
        onnx.checker.check_model(graph)
    except Exception as error:
        raise SlotwiseError(f"{source.name} is no ONNX graph: {first_line(error)}", "export the model again") from error
    return graph


def named_output(graph: Any, spec: ModelSpec, source: Any) -> str:
    """The name of the ONNX graph's output that is served: the one that model.toml names, or the only one.

    Raises SlotwiseError where that is not known, or it holds no numbers.
    """
    outputs = {value.name: value for value in graph.graph.output}
    named = spec.output if spec.output in outputs else declared_output(spec.model_dump())[0]
    listed = ", ".join(f"{name} ({_kind(value)})" for name, value in outputs.items())
    numbers = [name for name, value in outputs.items() if _kind(value).startswith("float")]
    line = f'write in model.toml: output = "{(numbers or [""])[0]}"' if numbers else "cut the graph, or write a handler"
    if named and named not in outputs:
        raise SlotwiseError(f"{source.name} has no output {named}: it has {listed}", line)
    chosen = named or next(iter(outputs))
    if spec.handler not in CLASSIFIERS:  # an author's own handler may want anything
        if len(outputs) > 1 and not named:
            console.say(f"{spec.name}: {source.name} has the outputs {listed}: {spec.handler} is given {chosen}")
        return chosen
    if len(outputs) > 1 and not named:
        raise SlotwiseError(f"{source.name} has the outputs {listed}, and nobody says which is served", line)
    if chosen not in numbers:
        if not outputs[chosen].type.HasField("tensor_type"):
            line = "export it with a tensor in its place (skl2onnx: options={'zipmap': False})"
        raise SlotwiseError(f"{source.name}: its output {chosen} is {_kind(outputs[chosen])}: no scores", line)
    return chosen


def own_output(spec: ModelSpec, sources: Sequence[Path]) -> str:
    """The name of the output of the model's ONNX graph that is served; "" where there is no graph, or nobody can read it.

    sources: where the model's files may be, the first ones first.
    """
    name = spec.weights.onnx
    source = next((folder / name for folder in sources if name and (folder / name).is_file()), None)
    if source is None or importlib.util.find_spec("onnx") is None:
        return ""
    import onnx  # noqa: PLC0415  optional

    return named_output(onnx.load(source, load_external_data=False), spec, source)


def check_output(spec: ModelSpec, file: str, outputs: Any) -> None:
    """Raise SlotwiseError where outputs [b, ...] of a given classifier's network may be taken for what they are not.

    outputs: of ordinary and loud inputs. What model.toml says of them is believed, unless they show that it is wrong.
    """
    if spec.handler not in CLASSIFIERS:
        return
    rows = np.asarray(outputs, np.float64).reshape(len(outputs), -1)
    rows = rows[np.isfinite(rows).all(axis=1)]
    if not rows.size:
        return
    said = _said(spec)
    if said == "embedding" and spec.labels:
        raise SlotwiseError(
            f"{spec.name} answers an embedding, which has no use for labels",
            'write no labels in model.toml, or output = "regression"',
        )
    low, high, count = float(rows.min()), float(rows.max()), rows.shape[1]
    within = low >= -SLACK and high <= 1 + SLACK
    sums = f"numbers from {low:.3g} to {high:.3g}"
    if said == "probabilities" and not within:
        raise SlotwiseError(
            f"{file} gives {sums}, which are no probabilities",
            'write in model.toml: output = "logits", "regression" or "embedding"',
        )
    if count == 1 and said in ("", "probabilities", "logits"):
        if not said or len(spec.labels) != 2:
            raise SlotwiseError(
                f"{file} gives one number a row ({sums}), which is no score for each label",
                'write in model.toml: output = "regression"; or, with two labels, "probabilities" or "logits" of the second',
            )
    elif not said and (within or spec.handler == "tabular"):
        if not within:
            raise SlotwiseError(
                f"{file} gives {count} numbers a row ({sums}), and nobody says what they are",
                'write in model.toml: output = "regression" (or "logits")',
            )
        one = "sum to one already" if np.abs(rows.sum(axis=1) - 1).max() <= SLACK else "lie between 0 and 1"
        raise SlotwiseError(
            f"{file} gives rows that {one}: a softmax would change them",
            'write in model.toml: output = "probabilities" (or "logits")',
        )


def _said(spec: ModelSpec) -> str:
    """What is known of the numbers without looking: from model.toml, or from a softmax at the end of the graph."""
    if kind := declared_output(spec.model_dump())[1]:
        return kind
    if "softmax" in spec.options:
        return "logits" if spec.options["softmax"] else "probabilities"
    return "probabilities" if spec.options.get("onnx", {}).get("softmax") else ""


def _kind(value: Any) -> str:
    """What an output of a graph holds, in a word or two: float32 [b, 3]."""
    if not value.type.HasField("tensor_type"):
        return str(value.type.WhichOneof("value")).removesuffix("_type")
    from onnx import helper  # noqa: PLC0415  optional

    tensor = value.type.tensor_type
    sides = [str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "b" for dim in tensor.shape.dim]
    try:
        name = str(np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
    except (KeyError, TypeError):
        name = "of an unknown type"
    return f"{'text' if name == 'object' else name} [{', '.join(sides)}]"
