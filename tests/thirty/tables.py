"""Models of tables: scikit-learn, XGBoost, LightGBM."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.thirty.made import JSON, REQUESTS, Made, Shelf, Truth, as_json, classified, described, valued

TABLES = Shelf()
SKL = ("sklearn", "skl2onnx")
NAMES = ["length", "width", "height", "weight"]
FLOATS = "[input.columns]\n" + "".join(f'{name} = "float"\n' for name in NAMES)
WEIGHTS = '[weights]\nonnx = "model.onnx"\n'
KINDS = ["ash", "birch", "cedar"]
CITIES = ["Lima", "Oslo", "Rome"]


def numbers(classes: int = 3, count: int = 200, seed: int = 0) -> tuple[Any, Any]:
    """x [count, 4] float32, and y [count] of so many classes, which x mostly tells."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, len(NAMES))).astype(np.float32)
    return x, (x @ draw.normal(size=(len(NAMES), classes)) + 0.3 * draw.normal(size=(count, classes))).argmax(1)


def values(count: int = 200) -> tuple[Any, Any]:
    """x [count, 4] float32, and y [count], a value."""
    x, _ = numbers(count=count)
    return x, (3 * x[:, 0] - x[:, 1] * x[:, 2] + 10).astype(np.float32)


def exported(folder: Path, model: Any, initial: Any = None, **options: Any) -> None:
    """Write scikit-learn's model as an ONNX graph."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    initial = initial or [("x", FloatTensorType([None, len(NAMES)]))]
    graph = to_onnx(model, initial_types=initial, options=options.pop("options", None), target_opset=options.pop("opset", None))
    (folder / "model.onnx").write_bytes(graph.SerializeToString())


def asked(x: Any, truths: Sequence[Truth]) -> Made:
    """Rows of four numbers, as objects, lists and CSV in turn."""
    bodies = []
    for i, row in enumerate(x[:REQUESTS].tolist()):
        named = dict(zip(NAMES, row, strict=True))
        lines = f"{','.join(NAMES)}\n{','.join(map(repr, row))}\n".encode()
        bodies.append([as_json(named), as_json(row), (lines, {"content-type": "text/csv"})][i % 3])
    bad = [as_json({**dict.fromkeys(NAMES, 1.0), "width": "wide"}), as_json([1.0, 2.0]), (b"{", JSON)]
    return Made(bodies, list(truths[:REQUESTS]), bad)


def classifier(folder: Path, model: Any, labels: Sequence[str] = KINDS, top: str = "", **options: Any) -> Made:
    """Train, export and describe one that classifies four numbers; its classes are texts."""
    x, y = numbers(len(labels))
    model.fit(x, np.array(labels)[y])
    exported(folder, model, options={id(model): {"zipmap": False}}, **options)
    described(folder, "tabular", top or 'output = "probabilities"', FLOATS + WEIGHTS)
    return asked(x, classified(model.predict_proba(x), model.classes_))


def regressor(folder: Path, model: Any) -> Made:
    """Train, export and describe one that gives a value."""
    x, y = values()
    model.fit(x, y)
    exported(folder, model)
    described(folder, "tabular", 'output = "regression"', FLOATS + WEIGHTS)
    return asked(x, valued(model.predict(x)))


@TABLES.add("sk-logistic", "scikit-learn", "a linear classifier behind a scaler", needs=SKL)
def logistic(folder: Path) -> Made:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return classifier(folder, make_pipeline(StandardScaler(), LogisticRegression()))


@TABLES.add("sk-mixed", "scikit-learn", "numbers, whole numbers and texts, some missing: an input for each column", needs=SKL)
def mixed(folder: Path) -> Made:
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    draw = np.random.default_rng(1)
    ages, cities = draw.integers(18, 90, 300), draw.choice(CITIES, 300)
    income = np.where(draw.random(300) < 0.2, np.nan, draw.normal(50, 20, 300)).astype(np.float32)
    table = np.array([ages.tolist(), income.tolist(), cities.tolist()], object).T
    y = np.where((ages > 50) ^ (cities == "Oslo"), "yes", "no")
    columns = ColumnTransformer([("n", SimpleImputer(), [0, 1]), ("c", OneHotEncoder(), [2])])
    model = make_pipeline(columns, RandomForestClassifier(20, max_depth=5, random_state=0)).fit(table, y)
    kinds = {"age": FloatTensorType, "income": FloatTensorType, "city": StringTensorType}
    exported(folder, model, [(name, kind([None, 1])) for name, kind in kinds.items()], options={id(model): {"zipmap": False}})
    described(folder, "tabular", 'output = "probabilities"\nexamples = ["row.json"]',
              f'[input.columns]\nage = "int"\nincome = "float?"\ncity = {json.dumps(CITIES)}\n{WEIGHTS}')  # fmt: skip
    rows = [{"age": age, "income": income if income == income else None, "city": city} for age, income, city in table]
    (folder / "row.json").write_text(json.dumps(rows[0]))
    bad = [as_json({**rows[0], "city": "Paris"}), as_json({**rows[0], "age": 1.5}), as_json({"age": 3})]
    return Made(
        [as_json(row) for row in rows[:REQUESTS]], classified(model.predict_proba(table), model.classes_)[:REQUESTS], bad
    )


@TABLES.add("sk-forest", "scikit-learn", "a random forest that gives a value", needs=SKL)
def forest(folder: Path) -> Made:
    from sklearn.ensemble import RandomForestRegressor

    return regressor(folder, RandomForestRegressor(20, random_state=0))


@TABLES.add("sk-boosting", "scikit-learn", "gradient boosting", needs=SKL)
def boosting(folder: Path) -> Made:
    from sklearn.ensemble import GradientBoostingClassifier

    return classifier(folder, GradientBoostingClassifier(n_estimators=15, random_state=0))


@TABLES.add("sk-scaled-tree", "scikit-learn", "trees behind a scaler, by our export; asked next to their thresholds", needs=SKL)
def scaled_tree(folder: Path) -> Made:
    from slotwise.archive.library.scikit_learn import export

    model, x = scaled_trees(folder)
    export(folder, model, x)
    edges = np.array(json.loads((folder / "expected.json").read_text())["rows"])[len(x) :]
    return asked(edges, classified(model.predict_proba(edges[:REQUESTS]), model.classes_))


@TABLES.add("sk-scaled-tree-float", "scikit-learn", "the same in float32, as skl2onnx writes it, and what was expected of it",
            "answers otherwise than expected.json", needs=SKL)  # fmt: skip
def scaled_tree_in_float32(folder: Path) -> Made:
    from slotwise.archive.library.expected_answers import write_expected

    model, x = scaled_trees(folder)
    exported(folder, model, options={id(model): {"zipmap": False}})
    write_expected(folder, model.predict_proba, x)
    return Made([], [], [])


def scaled_trees(folder: Path) -> tuple[Any, Any]:
    """Trained and described."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = numbers()
    model = make_pipeline(StandardScaler(), RandomForestClassifier(20, random_state=0)).fit(x, np.array(KINDS)[y])
    described(folder, "tabular", 'output = "probabilities"\nexpected = "expected.json"', FLOATS + WEIGHTS)
    return model, x.astype(np.float64)


@TABLES.add("sk-several-values", "scikit-learn", "several values a row, by name", needs=SKL)
def several_values(folder: Path) -> Made:
    from sklearn.linear_model import Ridge

    x, y = values()
    model = Ridge().fit(x, np.stack([y, x[:, 3]], axis=1))
    exported(folder, model)
    described(folder, "tabular", 'output = "regression"\nlabels = ["price", "days"]', FLOATS + WEIGHTS)
    return asked(x, valued(model.predict(x)))


@TABLES.add("sk-quantile", "scikit-learn", "a quantile", needs=SKL)
def quantile(folder: Path) -> Made:
    from sklearn.ensemble import GradientBoostingRegressor

    return regressor(folder, GradientBoostingRegressor(loss="quantile", alpha=0.9, n_estimators=20, random_state=0))


@TABLES.add("sk-machine", "scikit-learn", "a support vector machine with two classes", needs=SKL)
def machine(folder: Path) -> Made:
    from sklearn.svm import SVC

    x, y = numbers(2)
    model = SVC(random_state=0).fit(x, np.array(KINDS)[y])
    exported(folder, model, options={id(model): {"zipmap": False, "raw_scores": True}})
    described(folder, "tabular", 'output = "probabilities:regression"', FLOATS + WEIGHTS)
    far = model.decision_function(x)
    return asked(x, valued(np.stack([-far, far], axis=1)))  # as skl2onnx has it


@TABLES.add("sk-network", "scikit-learn", "a network of its own kind, with classes that are numbers", needs=SKL)
def network(folder: Path) -> Made:
    from sklearn.neural_network import MLPClassifier

    x, y = numbers()
    model = MLPClassifier((8,), max_iter=60, random_state=0).fit(x, y)
    exported(folder, model, options={id(model): {"zipmap": False}})
    described(folder, "tabular", 'output = "probabilities"', FLOATS + WEIGHTS)
    return asked(x, classified(model.predict_proba(x), model.classes_))


@TABLES.add("sk-words", "scikit-learn", "counts of words in a text (TF-IDF)", needs=SKL)
def words(folder: Path) -> Made:
    from skl2onnx.common.data_types import StringTensorType
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    draw = np.random.default_rng(2)
    good, bad = ["good", "fine", "tasty"], ["bad", "stale", "cold"]
    texts = [f"the {draw.choice(['soup', 'rice', 'tea'])} was {draw.choice(good if i % 2 else bad)}" for i in range(80)]
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, ["yes" if i % 2 else "no" for i in range(80)])
    exported(folder, model, [("text", StringTensorType([None, 1]))],
             options={id(model): {"zipmap": False}, TfidfVectorizer: {"locale": "C"}})  # fmt: skip
    described(
        folder, "tabular", 'output = "probabilities"\nexamples = ["row.json"]', f'[input.columns]\ntext = "text"\n{WEIGHTS}'
    )
    (folder / "row.json").write_text(json.dumps({"text": texts[0]}))
    asks = [*texts[: REQUESTS - 2], "Nothing known here", "GOOD tea, good rice!"]
    bad_ones = [as_json({"text": ""}), as_json({"text": 7})]
    return Made([as_json({"text": one}) for one in asks], classified(model.predict_proba(asks), model.classes_), bad_ones)


@TABLES.add("sk-outliers", "scikit-learn", "outliers: a score, and a label that is no class", needs=SKL)
def outliers(folder: Path) -> Made:
    from sklearn.ensemble import IsolationForest

    x, _ = numbers()
    model = IsolationForest(n_estimators=10, random_state=0).fit(x)
    exported(folder, model, opset={"": 17, "ai.onnx.ml": 3})
    described(folder, "tabular", 'output = "scores:regression"', FLOATS + WEIGHTS)
    return asked(x, valued(model.decision_function(x)))


@TABLES.add("sk-clusters", "scikit-learn", "distances to the middles of clusters", needs=SKL)
def clusters(folder: Path) -> Made:
    from sklearn.cluster import KMeans

    x, _ = numbers()
    model = KMeans(3, n_init=1, random_state=0).fit(x)
    exported(folder, model)
    described(folder, "tabular", 'output = "scores:regression"', FLOATS + WEIGHTS)
    return asked(x, valued(model.transform(x)))


@TABLES.add("sk-dicts", "scikit-learn", "exported with a list of dicts, as is the default",
            "options={'zipmap': False}", needs=SKL)  # fmt: skip
def dicts(folder: Path) -> Made:
    from sklearn.linear_model import LogisticRegression

    x, y = numbers()
    model = LogisticRegression().fit(x, np.array(KINDS)[y])
    exported(folder, model)
    described(folder, "tabular", 'output = "output_probability:probabilities"', FLOATS + WEIGHTS)
    return asked(x, classified(model.predict_proba(x), model.classes_))


@TABLES.add("xgb-classes", "XGBoost", "classes, through onnxmltools", needs=("xgboost", "onnxmltools"))
def xgb_classes(folder: Path) -> Made:
    from onnxmltools import convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType
    from xgboost import XGBClassifier

    x, y = numbers()
    model = XGBClassifier(n_estimators=10, max_depth=3).fit(x, y)
    graph = convert_xgboost(model, initial_types=[("x", FloatTensorType([None, 4]))], target_opset=15)
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    described(folder, "tabular", 'output = "probabilities"\nlabels = ["ash", "birch", "cedar"]', FLOATS + WEIGHTS)
    return asked(x, classified(model.predict_proba(x), KINDS))


@TABLES.add("xgb-value", "XGBoost", "a value, some numbers missing", needs=("xgboost", "onnxmltools"))
def xgb_value(folder: Path) -> Made:
    from onnxmltools import convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType
    from xgboost import XGBRegressor

    x, y = values()
    x[::5, 2] = np.nan
    model = XGBRegressor(n_estimators=10, max_depth=3).fit(x, y)
    graph = convert_xgboost(model, initial_types=[("x", FloatTensorType([None, 4]))], target_opset=15)
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
    described(folder, "tabular", 'output = "regression"', FLOATS.replace('height = "float"', 'height = "float?"') + WEIGHTS)
    rows = [{name: None if value != value else value for name, value in zip(NAMES, row, strict=True)} for row in x.tolist()]
    bad = [as_json({**rows[0], "width": None}), as_json({**rows[0], "depth": 1})]
    return Made([as_json(row) for row in rows[:REQUESTS]], valued(model.predict(x))[:REQUESTS], bad)


@TABLES.add("lgb-two", "LightGBM", "two classes, through onnxmltools", needs=("lightgbm", "onnxmltools"))
def lgb_two(folder: Path) -> Made:
    from lightgbm import LGBMClassifier

    x, y = numbers(2)
    model = LGBMClassifier(n_estimators=10, verbose=-1).fit(x, np.array(KINDS)[y])
    lightgbm_graph(folder, model)
    described(folder, "tabular", 'output = "probabilities"', FLOATS + WEIGHTS)
    return asked(x, classified(model.predict_proba(x), model.classes_))


@TABLES.add("lgb-value", "LightGBM", "a value", needs=("lightgbm", "onnxmltools"))
def lgb_value(folder: Path) -> Made:
    from lightgbm import LGBMRegressor

    x, y = values()
    model = LGBMRegressor(n_estimators=10, verbose=-1).fit(x, y)
    lightgbm_graph(folder, model)
    described(folder, "tabular", 'output = "regression"', FLOATS + WEIGHTS)
    return asked(x, valued(model.predict(x)))


@TABLES.add("lgb-own", "LightGBM", "its own file: three classes, asked next to their thresholds", needs=("lightgbm",))
def lgb_own(folder: Path) -> Made:
    from lightgbm import LGBMClassifier

    from slotwise.archive.library.expected_answers import write_expected

    x, y = numbers()
    model = LGBMClassifier(n_estimators=10, verbose=-1).fit(x.astype(np.float64), y)
    model.booster_.save_model(folder / "model.txt")
    write_expected(folder, model.predict_proba, x.astype(np.float64))
    edges = np.array(json.loads((folder / "expected.json").read_text())["rows"])[-REQUESTS:]
    described(folder, "tabular", f'labels = {json.dumps(KINDS)}\nexpected = "expected.json"',
              FLOATS + '[weights]\nlightgbm = "model.txt"\n')  # fmt: skip
    return asked(edges, classified(model.predict_proba(edges), KINDS))


@TABLES.add("xgb-own", "XGBoost", "its own file: a quantile, some numbers missing", needs=("xgboost",))
def xgb_own(folder: Path) -> Made:
    from xgboost import XGBRegressor

    x, y = values()
    x[::5, 2] = np.nan
    model = XGBRegressor(n_estimators=10, max_depth=3, objective="reg:quantileerror", quantile_alpha=0.9).fit(x, y)
    model.save_model(folder / "model.ubj")
    columns = FLOATS.replace('height = "float"', 'height = "float?"')
    described(folder, "tabular", "", f'{columns}[weights]\nxgboost = "model.ubj"\n')
    rows = [{name: None if value != value else value for name, value in zip(NAMES, row, strict=True)} for row in x.tolist()]
    return Made(
        [as_json(row) for row in rows[:REQUESTS]], valued(model.predict(x))[:REQUESTS], [as_json({**rows[0], "width": "w"})]
    )


@TABLES.add("sk-own", "scikit-learn", "its own file by skops: a pipeline on a data frame", needs=("sklearn", "skops", "pandas"))
def sk_own(folder: Path) -> Made:
    import pandas
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from skops.io import dump

    draw = np.random.default_rng(1)
    table = pandas.DataFrame({"age": draw.integers(18, 90, 300), "city": draw.choice(CITIES, 300)})
    columns = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["city"]))
    model = make_pipeline(columns, LogisticRegression()).fit(table, np.where(table["age"] > 50, "yes", "no"))
    dump(model, folder / "model.skops")
    described(
        folder, "tabular", "", f'[input.columns]\nage = "int"\ncity = {json.dumps(CITIES)}\n[weights]\nskops = "model.skops"\n'
    )
    rows = table[:REQUESTS].to_dict("records")
    bad = [as_json({**rows[0], "city": "Paris"}), as_json({**rows[0], "age": 1.5})]
    return Made([as_json(row) for row in rows], classified(model.predict_proba(table), model.classes_)[:REQUESTS], bad)


def lightgbm_graph(folder: Path, model: Any) -> None:
    """Write LightGBM's model as an ONNX graph."""
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    graph = convert_lightgbm(model, initial_types=[("x", FloatTensorType([None, 4]))], target_opset=15, zipmap=False)
    (folder / "model.onnx").write_bytes(graph.SerializeToString())
