"""Find the numbers that OpenVINO would not compute exactly: on the CPU it has 32 bits for those of 64, and says nothing.

What a graph computes of its own shapes is small. What depends on a request may be any number, but the places that ArgMax,
MaxPool and their kind find are small, and what is made of them is at most as large as the arithmetic says. A whole number of 32
bits counts where it comes in or is made of another number: its quotients and remainders are float32 there, and an index that is
not in a table is no error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

WIDE = {"i64": "int64", "u64": "uint64", "f64": "float64"}
WHOLE = {"i32": "int32", "u32": "uint32"}
SMALL = ("boolean", "i8", "u8", "i16", "u16")
PLACES = ("ShapeOf", "MaxPool", "AdaptiveMaxPool", "Unique", "TopK", "NonZero", "NonMaxSuppression", "MulticlassNms",
          "MatrixNms", "Bucketize", "SearchSorted")  # fmt: skip
MOST_PLACES = 2.0**24  # of a tensor; float32 has every whole number until there
MOST_ROWS = 2.0**20  # or steps, of a side whose size is the request's
FIRST, ALL = slice(1), slice(None)
NO_LARGER: dict[str, slice] = {  # what these give is no larger than these of their inputs
    **dict.fromkeys(
        ("Abs", "Broadcast", "Ceiling", "Clamp", "Convert", "Floor", "Gather", "GatherElements", "GatherND", "Negative",
         "ReduceMax", "ReduceMin", "Reshape", "Result", "Round", "Slice", "Split", "Squeeze", "StridedSlice", "Tile",
         "Transpose", "Unsqueeze", "VariadicSplit"), FIRST),
    **dict.fromkeys(
        ("Concat", "FloorMod", "Maximum", "Minimum", "Mod", "Pad", "Range", "ScatterElementsUpdate", "ScatterNDUpdate",
         "ScatterUpdate"), ALL),
    "Select": slice(1, 3),
    "OneHot": slice(2, 4),
}  # fmt: skip
WITH_BODY = ("Loop", "TensorIterator", "If")
LEAST, MOST = -(2**31), 2**31 - 1
NO_END = 2**63 - 1  # a Slice without an end has it, or its negative


def wide_number(graph: Any, *, looked_up: bool) -> str:
    """Why OpenVINO may answer otherwise than this graph says; "" where it does not. graph: as OpenVINO reads it.

    looked_up: whoever makes the inputs takes care that an index is in its table, so that such an input is small.
    """
    return next(_wide(graph, looked_up), "")


def _wide(graph: Any, looked_up: bool, counter: int = -1) -> Iterator[str]:
    free = set()  # outputs that depend on the request's numbers
    most = dict[tuple[str, int], float]()  # outputs that depend on places, and how large they are at most
    for node in graph.get_ordered_ops():
        kind = node.get_type_name()
        if kind == "Constant":
            yield from _wide_constant(node)
            continue
        sources = [one.get_source_output() for one in node.inputs()]
        depends = any(_key(one) in free for one in sources)
        if kind == "Parameter":
            depends = not (looked_up and _is_index(node)) and counter != graph.get_parameter_index(node)
        elif not depends and any(_key(one) in most for one in sources):
            largest = _largest(node, kind, [most.get(_key(one), _bound(one)) for one in sources])
            depends = largest > MOST
            most |= {_key(output): largest for output in node.outputs() if not depends}
        if depends and kind in WITH_BODY:
            for body, count in _bodies(node, kind):
                yield from _wide(body, looked_up, count)
        for output in node.outputs() if depends else ():
            held = _kind(output)
            made = kind == "Parameter" or (kind == "Convert" and _kind(sources[0]) not in (*SMALL, *WHOLE))
            if held[0] in "iub" and (kind in PLACES or (kind == "Convert" and _kind(sources[0]) == "boolean")):
                most[_key(output)] = _places(node) if kind in PLACES else 1.0
                continue
            if held in WIDE or (held in WHOLE and made):
                yield f"openvino does not compute the {(WIDE | WHOLE)[held]} of {node.get_friendly_name()} exactly"
            free.add(_key(output))
        if kind == "Result" and _kind(node.output(0)) == "f64":
            yield f"openvino does not compute the float64 of {node.get_friendly_name()} exactly"


def _places(node: Any) -> float:
    """How many places a node finds one among: TopK (ArgMax, too) along its axis, ShapeOf along the longest side."""
    kind, shape = node.get_type_name(), node.input(0).get_partial_shape()
    if kind not in ("TopK", "ShapeOf") or shape.rank.is_dynamic:
        return MOST_PLACES
    sides = [float(side.get_length()) if side.is_static else math.inf for side in shape]
    if kind == "TopK":
        return min(sides[int(node.get_attributes()["axis"])], MOST_PLACES)
    sized = [side for side in sides if side < math.inf]
    free = [min(MOST_PLACES / max(math.prod(sized), 1), MOST_ROWS)] if len(sized) < len(sides) else []
    return float(max([*sized, *free], default=0))


def _largest(node: Any, kind: str, inputs: Sequence[float]) -> float:
    """How large what a node gives is at most, in absolute value, by how large its inputs are; infinity where nobody knows."""
    if _kind(node.output(0)) == "boolean":
        return 1.0
    if kind in NO_LARGER:
        return max(inputs[NO_LARGER[kind]])
    if kind in ("Add", "Subtract"):
        return sum(inputs)
    if kind == "Multiply":
        return math.prod(inputs)
    if kind in ("CumSum", "ReduceSum"):
        return inputs[0] * MOST_PLACES
    if kind == "Divide" and (divisor := node.input(1).get_source_output().get_node()).get_type_name() == "Constant":
        return inputs[0] if (abs(divisor.data) >= 1).all() else math.inf
    return math.inf


def _bound(output: Any) -> float:
    """How large numbers that depend on no request are at most."""
    node = output.get_node()
    if node.get_type_name() == "Constant":
        return float(abs(node.data.astype(float)).max(initial=0))
    return MOST_PLACES


def _wide_constant(node: Any) -> Iterator[str]:
    """A constant that 32 bits do not hold."""
    if _kind(node.output(0)) not in ("i64", "u64", "u32"):
        return
    values = node.data
    if ((values < LEAST) | (values > MOST))[(values < NO_END) & (values > -NO_END)].any():
        yield f"openvino has no 64 bits for the constants of {node.get_friendly_name()}"


def _is_index(parameter: Any) -> bool:
    """Whether a table is looked up with this input as it is."""
    return any(one.get_node().get_type_name() == "Gather" and one.get_index() == 1 for one in _users(parameter))


def _users(node: Any) -> Iterator[Any]:
    for one in node.output(0).get_target_inputs():
        yield one
        if one.get_node().get_type_name() == "Convert":
            yield from _users(one.get_node())


def _bodies(node: Any, kind: str) -> Iterator[tuple[Any, int]]:
    """The graphs within a node, each with the place of its input that counts its rounds."""
    if kind == "If":
        yield from ((node.get_function(branch), -1) for branch in (0, 1))
    else:
        yield node.get_function(), node.get_special_body_ports()[0] if kind == "Loop" else -1


def _key(output: Any) -> tuple[str, int]:
    return output.get_node().get_name(), output.get_index()


def _kind(output: Any) -> str:
    return str(output.get_element_type().get_type_name())
