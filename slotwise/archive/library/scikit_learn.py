"""Write a scikit-learn model as a graph that answers as scikit-learn does, and what it was compared with.

    export("credit", pipeline, rows)     # credit/model.onnx and credit/expected.json, for the columns of credit/model.toml

scikit-learn computes in float64, and its trees compare in float32. A graph in float32 scales otherwise and then takes another
branch; one in float64 compares otherwise. So a graph is written in float64, with a cast to float32 in front of a tree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from slotwise.archive.library.expected_answers import FILE, write_expected
from slotwise.archive.network.expected import difference, read_expected
from slotwise.archive.network.table_graph import load_model
from slotwise.errors import SlotwiseError, first_line, missing_package
from slotwise.model_spec import ModelSpec, load_spec

TREES = ("sklearn.tree", "sklearn.ensemble._forest", "sklearn.ensemble._gb", "sklearn.ensemble._iforest")


def export(folder: str | Path, model: Any, rows: Any, *, edges: bool = True) -> None:
    """Write the graph that FOLDER/model.toml names in [weights], and FOLDER/expected.json beside it.

    model: a fitted classifier, regressor or pipeline. rows: an array [b, columns] or a data frame in the order of
    [input.columns], of what the model was trained on; the model is asked for them. edges: also at its thresholds.

    Raises SlotwiseError where no graph that can be written answers all of these rows as the model does.
    """
    folder = Path(folder)
    spec = load_spec(folder)
    if not spec.input.columns or spec.weights.onnx is None:
        raise SlotwiseError(f"{folder}/model.toml names no columns or no graph", "write [input.columns] and [weights] there")
    answer = model.predict_proba if hasattr(model, "predict_proba") else model.predict
    write_expected(folder, answer, rows, edges=edges)
    expected = read_expected(spec.model_copy(update={"expected": FILE}), [folder])
    assert expected is not None
    target = folder / spec.weights.onnx
    whys = []
    for fraction in ("float64", "float32"):
        try:
            graph = _graph(spec, model, fraction)
            target.write_bytes(graph.SerializeToString(deterministic=True))
            why = difference(spec, expected, load_model(spec, target, _output(graph, model)))
        except SlotwiseError:
            raise
        except Exception as error:  # no converter, or a graph that does not run
            why = first_line(error)
        if not why:
            return
        whys.append(f"in {fraction}: {why}")
        target.unlink(missing_ok=True)
    (folder / FILE).unlink()
    raise SlotwiseError(
        f"no graph answers as this {type(model).__name__} does: {'; '.join(whys)}",
        "leave out the step that a graph computes otherwise; edges=False compares the rows alone, and not at thresholds",
    )


def _output(graph: Any, model: Any) -> str:
    """The last output: probabilities stand behind labels, values alone."""
    return str(graph.graph.output[-1].name if hasattr(model, "predict_proba") else graph.graph.output[0].name)


def _graph(spec: ModelSpec, model: Any, fraction: str) -> Any:
    """The graph in float64, with float32 in front of a tree; or all of it in float32. Raises what skl2onnx raises."""
    try:
        import skl2onnx  # noqa: PLC0415  optional
        from skl2onnx.common import data_types as types  # noqa: PLC0415
    except ImportError as error:
        raise missing_package("skl2onnx", "a model of scikit-learn") from error
    wide = fraction == "float64"
    number = types.DoubleTensorType if wide else types.FloatTensorType
    kinds = {"int": types.Int64TensorType, "bool": types.Int64TensorType, "text": types.StringTensorType}
    columns = spec.input.columns
    if any(column.kind == "text" for column in columns):
        inputs = [(one.name, number([None, 1]) if one.missing else kinds.get(one.kind, number)([None, 1])) for one in columns]
    else:
        inputs = [("x", number([None, len(columns)]))]
    wanted = _with_cast(model) if wide else model
    options = {id(wanted): {"zipmap": False}} if hasattr(model, "predict_proba") else None
    return skl2onnx.to_onnx(wanted, initial_types=inputs, options=options, target_opset={"": 17, "ai.onnx.ml": 3})


def _with_cast(model: Any) -> Any:
    """The model with a cast in front of its last step, where that is a tree: its own first step is that cast."""
    from skl2onnx.sklapi import CastTransformer  # noqa: PLC0415  optional
    from sklearn.pipeline import Pipeline  # noqa: PLC0415  optional

    steps = list(model.steps) if isinstance(model, Pipeline) else [("model", model)]
    if not type(steps[-1][1]).__module__.startswith(TREES):
        return model
    return Pipeline([*steps[:-1], ("float32", CastTransformer(dtype=np.float32)), steps[-1]])
