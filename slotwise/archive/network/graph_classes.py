"""Find the classes that an ONNX graph names itself, in the order of its scores, as exporters of scikit-learn write them.

They are confirmed by running: for every row that is tried, the graph's own label is the class of the best score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slotwise.errors import SlotwiseError
from slotwise.model_spec import ModelSpec

NAMED = ("classlabels_strings", "classlabels_ints", "classlabels_int64s")
LOOKED_UP = "ArrayFeatureExtractor"  # takes the label out of a list of them


def labelled(graph: Any, output: str) -> tuple[str, list[str]]:
    """The graph's output that is a label, and the classes that its nodes name; "" and [] where there are none."""
    made_by = {name: node for node in graph.graph.node for name in node.output}
    for value in graph.graph.output:
        if value.name != output and len(value.type.tensor_type.shape.dim) == 1:
            found = _classes(graph, made_by, value.name)
            if found:
                return value.name, found
    return "", []


def with_classes(spec: ModelSpec, file: str, classes: Sequence[str], labels: Any, scores: Any) -> ModelSpec:
    """The spec with the graph's classes as its labels, where it has none.

    labels [b]: what the graph calls these rows. scores [b, classes]: of the same rows.

    Raises SlotwiseError where model.toml has the same names in another order.
    """
    values = np.asarray(scores).reshape(len(scores), -1)
    if values.shape[1] != len(classes) or np.shape(labels) != (len(values),):
        return spec
    best = values.max(axis=1)
    if any(_called(label) not in _best(row, top, classes) for label, row, top in zip(labels, values, best, strict=True)):
        return spec  # it names something else than the best score
    if not spec.labels:
        return spec.model_copy(update={"labels": list(classes)})
    check_order(spec, file, classes)
    return spec


def check_order(spec: ModelSpec, file: str, classes: Sequence[str]) -> None:
    """Raise SlotwiseError where model.toml has names of these classes at other places than `file` has them.

    NEGATIVE and negative are one name.
    """
    if _moved(spec.labels, classes) or _moved(_folded(spec.labels), _folded(classes)):
        listed = ", ".join(f'"{name}"' for name in classes)
        raise SlotwiseError(
            f"{file} gives its scores in the order {', '.join(classes)}, but model.toml has {', '.join(spec.labels)}",
            f"write in model.toml: labels = [{listed}], or no labels",
        )


def _moved(labels: Sequence[str], classes: Sequence[str]) -> bool:
    return any(label in classes and label not in classes[i : i + 1] for i, label in enumerate(labels))


def _folded(names: Sequence[str]) -> list[str]:
    return [name.casefold() for name in names]


def _best(row: Any, top: float, classes: Sequence[str]) -> list[str]:
    return [name for name, score in zip(classes, row, strict=True) if score == top]


def _classes(graph: Any, made_by: dict[str, Any], name: str) -> list[str]:
    """The classes that are named nearest to the value of this name."""
    import onnx  # noqa: PLC0415  optional

    constants = {tensor.name: tensor for tensor in graph.graph.initializer}
    waiting, seen = [name], {name}
    while waiting:
        node = made_by.get(waiting.pop(0))
        if node is None:
            continue
        for attribute in node.attribute:
            if attribute.name in NAMED and (attribute.strings or attribute.ints):
                return [_called(one) for one in attribute.strings or attribute.ints]
        if node.op_type == LOOKED_UP and node.input[0] in constants:
            return [_called(one) for one in np.ravel(onnx.numpy_helper.to_array(constants[node.input[0]]))]
        waiting += [source for source in node.input if source not in seen]
        seen.update(node.input)
    return []


def _called(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
