"""Handlers of tables: with scikit-learn, pandas, LightGBM and XGBoost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slotwise.worker import TorchServeHandler
from tests.worker.idioms.asked import apart, each_of, no_answer_is_wrong, together

ROWS = [{"age": float(20 + 7 * i), "income": 100.0 - 11 * i, "city": ("Bern", "Rome", "Oslo")[i % 3]} for i in range(8)]
UNITS = [{**row, "unit": ("months", "years")[i % 2]} for i, row in enumerate(ROWS)]
COLUMNS = ["age", "income"]


def known_rows() -> tuple[Any, Any]:
    """What models learn from: 64 rows of two columns, and their classes."""
    columns = np.random.default_rng(0).uniform(0, 100, (64, 2))
    return columns, (columns.sum(1) > 90).astype(int) + (columns[:, 0] > 60)


class Columns(TorchServeHandler):
    """Reads a request's columns in their order."""

    def initialize(self, context: Any) -> None:
        self.columns = COLUMNS
        self.prepare()

    def prepare(self) -> None:
        raise NotImplementedError

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return np.array([[row["body"][name] for name in self.columns] for row in data], np.float64)

    def postprocess(self, data: Any) -> Any:
        return np.asarray(data).tolist()


@together([*ROWS, {"age": 3.0}])
class AForest(Columns):
    """A random forest of scikit-learn: the probability of each class, by its name."""

    def prepare(self) -> None:
        forest = pytest.importorskip("sklearn.ensemble").RandomForestClassifier(3, random_state=0)
        self.model = forest.fit(*known_rows())

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return self.model.predict_proba(data)

    def postprocess(self, data: Any) -> Any:
        return [{str(name): float(score) for name, score in zip(self.model.classes_, row, strict=True)} for row in data]


@together([{**row, "income": (row["income"], -1.0)[i % 2]} for i, row in enumerate(ROWS)])
class MaskedColumns(Columns):
    """Masks what is missing, and answers the mean of what is there."""

    def prepare(self) -> None:
        pass

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return np.ma.masked_equal(super().preprocess(data), -1.0)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return np.asarray(data.mean(axis=1))


@together(ROWS)
class AScaler(Columns):
    """Scales on the way in; on the way out another scaler gives the value back."""

    def prepare(self) -> None:
        preprocessing = pytest.importorskip("sklearn.preprocessing")
        columns, classes = known_rows()
        self.into, self.out = preprocessing.StandardScaler(), preprocessing.StandardScaler()
        self.model = pytest.importorskip("sklearn.linear_model").Ridge()
        self.model.fit(self.into.fit_transform(columns), self.out.fit_transform(classes.reshape(-1, 1)))

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return self.into.transform(super().preprocess(data))

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return self.model.predict(data).reshape(-1, 1)

    def postprocess(self, data: Any) -> Any:
        return self.out.inverse_transform(data).tolist()


@together(ROWS)
class AFrame(Columns):
    """Makes a DataFrame of each request, fills what is missing, and gives its values."""

    def prepare(self) -> None:
        self.pandas = pytest.importorskip("pandas")
        self.usual = self.pandas.DataFrame(known_rows()[0], columns=COLUMNS)

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        frame = self.pandas.DataFrame([row["body"] for row in data]).reindex(columns=self.columns)
        frame["both"] = frame["age"] * frame["income"]
        frame = frame.fillna(self.usual.mean())
        return frame.to_numpy()

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return data.sum(1)


@together(ROWS)
class CodesOfWords(Columns):
    """Looks words up in a dict that was made once; an unknown one has a code of its own."""

    def prepare(self) -> None:
        self.codes = {"Bern": 1, "Rome": 2}

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return np.array([[row["body"]["age"], self.codes.get(row["body"]["city"], 0)] for row in data])

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return data @ np.array([1.0, 100.0])


@together(ROWS)
class ABooster(Columns):
    """LightGBM's booster."""

    def prepare(self) -> None:
        library = pytest.importorskip("lightgbm")
        given = {"objective": "multiclass", "num_class": 3, "verbose": -1, "num_threads": 1, "min_data_in_leaf": 4}
        self.model = library.train(given, library.Dataset(*known_rows()), 3)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return self.model.predict(data)


@together(ROWS)
class AMatrix(Columns):
    """XGBoost's booster, which takes a matrix of its own."""

    def prepare(self) -> None:
        self.library = pytest.importorskip("xgboost")
        columns, classes = known_rows()
        given = {"objective": "multi:softprob", "num_class": 3, "nthread": 1}
        self.model = self.library.train(given, self.library.DMatrix(columns, classes), 3)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return self.model.predict(self.library.DMatrix(data))


@apart(UNITS)
class TheUnitOnSelf(Columns):
    """Keeps the unit of a request on itself, and gives the value back in it."""

    def prepare(self) -> None:
        self.factors = {"months": 12.0, "years": 1.0}

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.factor = self.factors[data[0]["body"]["unit"]]
        return super().preprocess(data)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return data.sum(1)

    def postprocess(self, data: Any) -> Any:
        return [float(value) * self.factor for value in data]


@apart(UNITS)
class TheUnitInAScaler(Columns):
    """Tells a scaler the request's unit, by an attribute of it."""

    def prepare(self) -> None:
        self.scaler = pytest.importorskip("sklearn.preprocessing").StandardScaler().fit([[0.0], [2.0]])

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.scaler.scale_ = np.array([12.0 if data[0]["body"]["unit"] == "months" else 1.0])
        return super().preprocess(data)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return data.sum(1).reshape(-1, 1)

    def postprocess(self, data: Any) -> Any:
        return self.scaler.inverse_transform(data).tolist()


@apart(ROWS)
class AScalerOfEach(Columns):
    """Fits its scaler to the rows of the request, and gives the value back by it."""

    def prepare(self) -> None:
        self.scaler = pytest.importorskip("sklearn.preprocessing").MinMaxScaler()

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        columns = np.array([[data[0]["body"]["age"]], [data[0]["body"]["income"]]])
        return self.scaler.fit_transform(columns).reshape(1, 2)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return data.mean(1).reshape(-1, 1)

    def postprocess(self, data: Any) -> Any:
        return self.scaler.inverse_transform(data).tolist()


@apart(ROWS)
class TheFrameOfNow(Columns):
    """Writes each request into the one DataFrame that it has, and answers with a column of it."""

    def prepare(self) -> None:
        self.frame = pytest.importorskip("pandas").DataFrame([{"age": 0.0, "income": 0.0, "city": ""}])

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.frame.loc[0] = [data[0]["body"][name] for name in ("age", "income", "city")]
        return self.frame[self.columns].to_numpy(np.float64)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return data.sum(1)

    def postprocess(self, data: Any) -> Any:
        return [{"value": float(value), "city": self.frame["city"][0]} for value in data]


@each_of(__name__)
def test_no_answer_is_wrong(kind: type[TorchServeHandler], rows_at_once: list[int]) -> None:
    no_answer_is_wrong(kind, rows_at_once)
