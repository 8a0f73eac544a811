"""Run a table's model: an ONNX graph with ONNX Runtime, one input for all columns or one for each; or a library's own file.

These models compute in the numbers that their file says, on the CPU: there is no precision to choose.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker.engines.choice import output_of
from slotwise.worker.environment.settings import Settings
from slotwise.worker.tables.columns import Row, TableSchema, columns_of
from slotwise.worker.tables.table_library import ENGINES, LibraryEngine, form_of

logger = logging.getLogger(__name__)

TYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16", "tensor(int64)": "int64",
    "tensor(int32)": "int32", "tensor(bool)": "bool", "tensor(string)": "object",
}  # fmt: skip


@dataclass(frozen=True)
class GraphInput:
    """One input of a graph. dtype: numpy's, object for texts. places: which of a row's numbers or texts it takes, in order."""

    name: str
    dtype: str
    places: tuple[int, ...]

    def of(self, rows: Sequence[Row]) -> Any:
        """What this input is given for these rows: [b, columns]."""
        if self.dtype == "object":
            return np.array([[texts[place] for place in self.places] for _, texts in rows], object)
        return np.stack([numbers for numbers, _ in rows])[:, self.places].astype(self.dtype)


class TableEngine:
    """Runs a graph on rows of `TableSchema`, for one output.

    columns: those of model.toml, which know what the graph's numbers can hold.
    """

    name = "onnxruntime"
    precision = "fp32"
    device = "cpu"

    def __init__(self, session: Any, columns: TableSchema, inputs: Sequence[GraphInput], output: str) -> None:
        self.session, self.columns, self.inputs, self.outputs = session, columns, inputs, [output]

    def __call__(self, rows: Sequence[Row]) -> Any:
        """b rows to [b, outputs]."""
        given = {one.name: one.of(rows) for one in self.inputs}
        return np.asarray(self.session.run(self.outputs, given)[0]).reshape(len(rows), -1)


def load_table(model_dir: Path, settings: Settings) -> TableEngine | LibraryEngine:
    """Load the archive's model. Raises ValueError, one sentence, where its inputs are not the columns of model.toml."""
    if form := form_of(settings.model):
        return ENGINES[form](model_dir / settings.model["weights"][form], settings.model["input"]["columns"], settings)
    return load_graph(model_dir, settings)


def load_graph(model_dir: Path, settings: Settings) -> TableEngine:
    """Load the archive's graph. Raises ValueError as `load_table` does."""
    import onnxruntime  # noqa: PLC0415  optional

    if settings.engine not in ("auto", "onnxruntime") or settings.device != "cpu":
        logger.info("a table's graph runs on onnxruntime on the CPU, whatever the profile %s says", settings.profile)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    path = str(model_dir / settings.model["weights"]["onnx"])
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    columns = columns_of(settings.model["input"]["columns"])
    inputs = graph_inputs(columns, session.get_inputs())
    held = {name: one.dtype for one in inputs for name in _names(columns, one)}
    columns = columns_of(settings.model["input"]["columns"], held.__getitem__)
    return TableEngine(session, columns, inputs, output_of(settings.model) or session.get_outputs()[0].name)


def graph_inputs(columns: TableSchema, listed: Sequence[Any]) -> list[GraphInput]:
    """What each of the graph's inputs takes. listed: as onnxruntime lists them, with a name, a type and a shape.

    Raises ValueError where a column has no input or an input no column, and where types or numbers of columns differ.
    """
    named = {one.name: one for one in listed}
    only = listed[0].name if len(listed) == 1 else ""
    members: dict[str, list[int]] = {name: [] for name in named}
    for i, column in enumerate(columns.all):
        target = column.input or only or column.name
        if target not in named:
            raise ValueError(f"the graph has no input {target!r} for the column {column.name!r}: it has {_listed(named)}")
        members[target].append(i)
    return [_graph_input(columns, one, members[one.name]) for one in listed]


def _graph_input(columns: TableSchema, one: Any, members: Sequence[int]) -> GraphInput:
    dtype = TYPES.get(one.type)
    if dtype is None or len(one.shape) != 2:
        raise ValueError(f"the graph's input {one.name!r} is {one.type} {one.shape}, which no columns make")
    if type(one.shape[0]) is int:
        raise ValueError(f"the graph's input {one.name!r} has a batch that is fixed at {one.shape[0]}")
    if type(one.shape[1]) is int and one.shape[1] != len(members):
        names = ", ".join(repr(columns.names[i]) for i in members) or "none"
        raise ValueError(f"the graph's input {one.name!r} takes {one.shape[1]} columns, but model.toml has {names} for it")
    for i in members:
        column = columns.all[i]
        if column.is_text != (dtype == "object"):
            raise ValueError(f"the column {column.name!r} is {column.kind}, but the graph's input {one.name!r} is {one.type}")
        if column.missing and "float" not in dtype:
            raise ValueError(f"the column {column.name!r} may be missing, but the graph's input {one.name!r} is {one.type}")
        if column.kind == "float" and "float" not in dtype:
            raise ValueError(f"the column {column.name!r} is float, but the graph's input {one.name!r} is {one.type}")
    order = columns.texts if dtype == "object" else columns.numbers
    return GraphInput(one.name, dtype, tuple(order.index(i) for i in members))


def _names(columns: TableSchema, one: GraphInput) -> list[str]:
    order = columns.texts if one.dtype == "object" else columns.numbers
    return [columns.names[order[place]] for place in one.places]


def _listed(named: dict[str, Any]) -> str:
    return ", ".join(f"{name} ({one.type})" for name, one in named.items())
