"""Run a table's model with the library that made it, from its own file: LightGBM, XGBoost, or scikit-learn by skops.

Each computes as it does for its author: nothing is converted. A file that answers in two ways, or that another release of
scikit-learn wrote than the one that is installed, is refused: who could say what it would answer?
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from slotwise.worker.environment.settings import Settings
from slotwise.worker.tables.columns import Row, TableSchema, columns_of

PROBABILITIES, LOGITS, VALUES = "probabilities", "logits", "regression"
LIGHTGBM_KINDS = {**dict.fromkeys(("binary", "multiclass", "multiclassova", "cross_entropy"), PROBABILITIES), "": ""}
XGBOOST_KINDS = {"binary:logistic": PROBABILITIES, "multi:softprob": PROBABILITIES, "binary:logitraw": LOGITS}
LABELS_ONLY = ("multi:softmax", "binary:hinge")
TRUSTED = ("sklearn.", "numpy.", "scipy.")  # packages whose types model.toml may trust
HARMLESS = ("numpy.dtype",)  # skops makes it of an array that it looks at besides
UNNAMED = ("Column_", "f")  # what LightGBM and XGBoost call columns that nobody has named, before their number


class LibraryEngine:
    """Runs a library's model on rows of `TableSchema`.

    columns: those of model.toml. kind: what the library says its numbers are; "" where it does not. classes: of a classifier
    that knows their names, in the order of its scores.
    """

    name: ClassVar[str]
    precision: ClassVar[str] = "fp64"
    device: ClassVar[str] = "cpu"
    dtype: ClassVar[str] = "float64"  # in what it holds numbers

    kind: str = ""
    classes: Sequence[str] = ()

    def __init__(self, listed: Sequence[Mapping[str, Any]]) -> None:
        self.columns = columns_of(listed, lambda name: self.dtype)

    def __call__(self, rows: Sequence[Row]) -> Any:
        """b rows to [b, outputs]."""
        return np.asarray(self._outputs(rows), np.float64).reshape(len(rows), -1)

    def _outputs(self, rows: Sequence[Row]) -> Any:
        raise NotImplementedError

    def labels(self, rows: Sequence[Row]) -> Any:
        """What a classifier that knows its classes calls these rows: [b]."""
        raise NotImplementedError


class LightGbm(LibraryEngine):
    """A booster as `booster.save_model("model.txt")` writes it. A text is one of the model's own categories."""

    name = "lightgbm"

    def __init__(self, path: Path, listed: Sequence[Mapping[str, Any]], settings: Settings) -> None:
        import lightgbm  # noqa: PLC0415  optional

        super().__init__(listed)
        self.threads = settings.threads
        lightgbm.register_logger(_Silent())
        self.booster = lightgbm.Booster(model_file=str(path))
        _same_names(self.columns, self.booster.feature_name(), lambda name: name.replace(" ", "_"))
        self.kind = LIGHTGBM_KINDS.get(_lightgbm_objective(path), VALUES)
        self.codes = _codes(self.columns, self.booster.pandas_categorical or [])

    def _outputs(self, rows: Sequence[Row]) -> Any:
        return self.booster.predict(_matrix(self.columns, rows, self.codes), num_threads=self.threads)


class XgBoost(LibraryEngine):
    """A booster as `booster.save_model("model.json")` or "model.ubj" writes it."""

    name = "xgboost"
    precision = "fp32"
    dtype = "float32"

    def __init__(self, path: Path, listed: Sequence[Mapping[str, Any]], settings: Settings) -> None:
        import xgboost  # noqa: PLC0415  optional

        super().__init__(listed)
        self.matrix, self.threads = xgboost.DMatrix, settings.threads
        self.booster = xgboost.Booster({"nthread": settings.threads})
        self.booster.load_model(path)
        names = self.booster.feature_names or [f"f{i}" for i in range(self.booster.num_features())]
        _same_names(self.columns, names)
        if self.columns.texts or "c" in (self.booster.feature_types or ()):
            raise ValueError("its columns are numbers here: encode texts and categories before it, or export it to ONNX")
        objective = json.loads(self.booster.save_config())["learner"]["learner_train_param"]["objective"]
        if objective in LABELS_ONLY:
            raise ValueError(f"{objective} gives a label and no scores: train it with multi:softprob or binary:logistic")
        self.kind = XGBOOST_KINDS.get(objective, VALUES if ":" in objective else "")
        self.rounds = _rounds(self.booster, str(settings.model.get("options", {}).get("trees", "")))

    def _outputs(self, rows: Sequence[Row]) -> Any:
        numbers = _matrix(self.columns, rows, {}).astype(np.float32)
        return self.booster.predict(
            self.matrix(numbers, nthread=self.threads), iteration_range=(0, self.rounds), validate_features=False
        )


class SciKitLearn(LibraryEngine):
    """A model or a pipeline as `skops.io.dump(model, "model.skops")` writes it: no pickle, and only types that skops trusts, or
    model.toml (`[options] trusted`).

    It gets a data frame where it was trained on one, else an array, or of one column of texts a list. It runs on one thread:
    the sums of several would depend on which of them ends first.
    """

    name = "scikit-learn"

    def __init__(self, path: Path, listed: Sequence[Mapping[str, Any]], settings: Settings) -> None:
        super().__init__(listed)
        self.model = _loaded(path, settings.model.get("options", {}).get("trusted", []))
        for key in [key for key in self.model.get_params() if key.split("__")[-1] == "n_jobs"]:
            self.model.set_params(**{key: None})
        names = getattr(self.model, "feature_names_in_", None)
        count = getattr(self.model, "n_features_in_", None)
        if names is not None:
            _same_names(self.columns, [str(name) for name in names])
        elif (count is None and (len(self.columns), len(self.columns.texts)) != (1, 1)) or count not in (
            None,
            len(self.columns),
        ):
            wanted = "a list of texts" if count is None else f"{count} columns"
            raise ValueError(f"it was trained on {wanted}, but model.toml has {len(self.columns)} columns")
        self.given = self._frame if names is not None else self._texts if count is None else self._array
        self.classifies = hasattr(self.model, "predict_proba")
        if not self.classifies and not hasattr(self.model, "predict"):
            raise ValueError(f"a {type(self.model).__name__} predicts nothing")
        self.kind = PROBABILITIES if self.classifies else VALUES
        self.classes = _class_names(self.model) if self.classifies else ()
        self.answer: Callable[[Any], Any] = self.model.predict_proba if self.classifies else self.model.predict

    def _outputs(self, rows: Sequence[Row]) -> Any:
        return self.answer(self.given(rows))

    def labels(self, rows: Sequence[Row]) -> Any:
        return self.model.predict(self.given(rows))

    def _array(self, rows: Sequence[Row]) -> Any:
        if not self.columns.texts:
            return np.stack([numbers for numbers, _ in rows])
        table = np.empty((len(rows), len(self.columns)), object)
        for place, column in enumerate(self._by_column(rows)):
            table[:, place] = column
        return table

    def _texts(self, rows: Sequence[Row]) -> list[str]:
        return [texts[0] for _, texts in rows]

    def _frame(self, rows: Sequence[Row]) -> Any:
        import pandas  # noqa: PLC0415  optional

        return pandas.DataFrame(dict(zip(self.columns.names, self._by_column(rows), strict=True)))

    def _by_column(self, rows: Sequence[Row]) -> list[list[Any]]:
        """Each column's values, in the columns' order, as Python's own."""
        numbers = np.stack([numbers for numbers, _ in rows]).T.tolist()
        texts = list(zip(*(texts for _, texts in rows), strict=True))
        taken = {place: numbers[i] for i, place in enumerate(self.columns.numbers)}
        taken |= {place: list(texts[i]) for i, place in enumerate(self.columns.texts)}
        whole: dict[str, type] = {"int": int, "bool": bool}
        return [
            list(map(whole[column.kind], taken[i])) if column.kind in whole and not column.missing else taken[i]
            for i, column in enumerate(self.columns.all)
        ]


ENGINES: dict[str, Callable[[Path, Sequence[Mapping[str, Any]], Settings], LibraryEngine]] = {
    "lightgbm": LightGbm, "xgboost": XgBoost, "skops": SciKitLearn,
}  # fmt: skip
"""A form of [weights], which is the package that it needs, and what runs it."""


def form_of(model: Mapping[str, Any]) -> str:
    """Which of ENGINES' forms a model's weights have; "" where none."""
    return next((form for form in ENGINES if model.get("weights", {}).get(form)), "")


class _Silent:
    """LightGBM prints into the worker's log what every file lets it say."""

    def info(self, text: str) -> None: ...

    def warning(self, text: str) -> None: ...


def _matrix(columns: TableSchema, rows: Sequence[Row], codes: Mapping[int, Mapping[str, int]]) -> Any:
    """[b, columns], float64. codes: of a column of texts, each text's number."""
    numbers = np.stack([numbers for numbers, _ in rows])
    if not codes:
        return numbers
    table = np.empty((len(rows), len(columns)))
    table[:, columns.numbers] = numbers
    for i, place in enumerate(columns.texts):
        table[:, place] = [codes[place][texts[i]] for _, texts in rows]
    return table


def _codes(columns: TableSchema, categories: Sequence[Sequence[Any]]) -> dict[int, dict[str, int]]:
    """For each column of texts what LightGBM calls its categories. Raises ValueError where model.toml has others."""
    if len(columns.texts) != len(categories):
        raise ValueError(f"it has {len(categories)} columns of categories, but model.toml has {len(columns.texts)} of texts")
    codes = {}
    for place, known in zip(columns.texts, categories, strict=True):
        column = columns.all[place]
        if not column.values or not set(column.values) <= set(known):
            listed = ", ".join(f'"{value}"' for value in known)
            raise ValueError(f"the column {column.name!r} takes its categories: write {column.name} = [{listed}]")
        codes[place] = {value: i for i, value in enumerate(known)}
    return codes


def _same_names(columns: TableSchema, names: Sequence[str], spelt: Callable[[str], str] = str) -> None:
    """Raise ValueError where the model was trained on other columns, or in another order."""
    if len(names) != len(columns):
        raise ValueError(f"it was trained on {len(names)} columns, but model.toml has {len(columns)}")
    if any(list(names) == [f"{begin}{i}" for i in range(len(names))] for begin in UNNAMED):
        return
    for wanted, name in zip(names, columns.names, strict=True):
        if spelt(name) != wanted:
            raise ValueError(f"its column {wanted!r} is {name!r} in model.toml: they must stand in the order of training")


def _lightgbm_objective(path: Path) -> str:
    """The objective that a model file names; "" where it names none: an objective of the author's own."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("objective="):
                return line.removeprefix("objective=").split()[0]
            if line.startswith("Tree="):
                break
    return ""


def _rounds(booster: Any, trees: str) -> int:
    """How many rounds of trees answer. Raises ValueError where XGBoost itself answers in two ways and nobody says which."""
    rounds, best = int(booster.num_boosted_rounds()), booster.attr("best_iteration")
    if best is None or int(best) + 1 >= rounds or trees == "all":
        return rounds
    if trees == "best":
        return int(best) + 1
    raise ValueError(
        f"its training stopped early: XGBClassifier answers with {int(best) + 1} of {rounds} rounds, Booster with all;"
        ' write [options] and below it trees = "best", or "all"'
    )


def _loaded(path: Path, trusted: Sequence[str]) -> Any:
    """The model in a file of skops. Raises ValueError for types that nobody trusts, and for another release's."""
    import sklearn.exceptions  # noqa: PLC0415  optional
    import skops.io  # noqa: PLC0415  optional

    if foreign := [name for name in trusted if not name.startswith(TRUSTED)]:
        raise ValueError(f"options.trusted names {foreign[0]}, but only types of {', '.join(TRUSTED)} can be trusted")
    known = {*HARMLESS, *trusted}
    if unknown := sorted(set(skops.io.get_untrusted_types(file=path)) - known):
        raise ValueError(
            f"skops does not trust its {', '.join(unknown)}: if you made the file yourself,"
            f" write [options] and below it trusted = {json.dumps(unknown)}"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error", sklearn.exceptions.InconsistentVersionWarning)
        try:
            return skops.io.load(path, trusted=sorted(known))
        except sklearn.exceptions.InconsistentVersionWarning as error:
            raise ValueError(
                f"scikit-learn {error.original_sklearn_version} wrote it, and {error.current_sklearn_version} is installed"
            ) from error


def _class_names(model: Any) -> list[str]:
    """The names of a classifier's classes. Raises ValueError where it classifies into several outputs."""
    classes = model.classes_
    if isinstance(classes, list):
        raise ValueError("it gives several labels a row: export it to ONNX for the handler `tensors`")
    return [str(name) for name in classes]
