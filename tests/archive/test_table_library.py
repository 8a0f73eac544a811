"""Tables served by the library that made their model: as it answers itself; what is not plain is refused."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.archive.build import build
from slotwise.archive.library.expected_answers import write_expected
from slotwise.errors import SlotwiseError
from slotwise.model_spec import load_spec
from tests.worker.serving import Served

NAMES, KINDS, CITIES = ["length", "width", "height"], ["ash", "birch", "cedar"], ["Lima", "Oslo", "Rome"]
TREES = '[options]\ntrusted = ["sklearn.tree._tree.Tree"]'
FLOATS = "".join(f'{name} = "float"\n' for name in NAMES)
JSON = {"content-type": "application/json"}


def need(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed: scripts/setup.sh test")


def rows_and_classes(classes: int = 3, count: int = 300) -> tuple[Any, Any]:
    draw = np.random.default_rng(classes)
    x = draw.normal(size=(count, len(NAMES)))
    return x, (x @ draw.normal(size=(len(NAMES), classes))).argmax(1)


def described(folder: Path, weights: str, top: str = "", columns: str = FLOATS, options: str = "") -> Path:
    text = f'name = "{folder.name}"\nhandler = "tabular"\n{top}\n[input.columns]\n{columns}\n[weights]\n{weights}\n{options}\n'
    (folder / "model.toml").write_text(text)
    return folder


def built(folder: Path) -> Served:
    """Without the proof that rows keep apart, which is every build's."""
    return Served.of(build(folder, folder / "store", prove=lambda laid_out, spec: None), {})


def refusal(folder: Path) -> str:
    with pytest.raises(SlotwiseError) as caught:
        build(folder, folder / "store", prove=lambda laid_out, spec: None)
    return f"{caught.value.message} | {caught.value.hint}"


def scores(served: Served, rows: Any) -> Any:
    """What is answered to rows of numbers, one request each: [b, n]."""
    bodies = [json.dumps([None if value != value else value for value in row]).encode() for row in np.asarray(rows).tolist()]
    answers = served.ask(bodies, [{**JSON, "x-scores": "all"}] * len(bodies))
    assert {answer.code for answer in answers} == {200}
    return np.array([answer.value["scores"] for answer in answers])


def lightgbm_of(folder: Path, model: Any) -> None:
    model.booster_.save_model(folder / "model.txt")


def test_lightgbm_answers_as_itself_next_to_its_thresholds(tmp_path: Path) -> None:
    lightgbm = need("lightgbm")
    x, y = rows_and_classes()
    model = lightgbm.LGBMClassifier(n_estimators=12, verbose=-1).fit(x, y)
    lightgbm_of(tmp_path, model)
    write_expected(tmp_path, model.predict_proba, x)
    edges = np.array(json.loads((tmp_path / "expected.json").read_text())["rows"])[-64:]
    served = built(described(tmp_path, 'lightgbm = "model.txt"', f"expected = 'expected.json'\nlabels = {KINDS}"))
    np.testing.assert_array_equal(scores(served, edges), model.predict_proba(edges))
    assert served.handler.model["output"] == "probabilities"  # the library says it


def test_lightgbm_of_two_classes_wants_their_names(tmp_path: Path) -> None:
    lightgbm = need("lightgbm")
    x, y = rows_and_classes(2)
    model = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(x, y)
    lightgbm_of(tmp_path, model)
    assert 'labels = ["no", "yes"]' in refusal(described(tmp_path, 'lightgbm = "model.txt"'))
    served = built(described(tmp_path, 'lightgbm = "model.txt"', 'labels = ["no", "yes"]'))
    np.testing.assert_allclose(scores(served, x[:20]), model.predict_proba(x[:20]), atol=1e-12)


@pytest.mark.parametrize("objective", ["regression", "quantile", "poisson"])
def test_lightgbm_gives_values_also_where_numbers_are_missing(tmp_path: Path, objective: str) -> None:
    lightgbm = need("lightgbm")
    x, _ = rows_and_classes()
    y = np.abs(3 * x[:, 0] - x[:, 1])
    x[::4, 2] = np.nan
    model = lightgbm.LGBMRegressor(n_estimators=8, objective=objective, verbose=-1).fit(x, y)
    lightgbm_of(tmp_path, model)
    columns = FLOATS.replace('height = "float"', 'height = "float?"')
    served = built(described(tmp_path, 'lightgbm = "model.txt"', columns=columns))
    np.testing.assert_array_equal(scores(served, x[:24])[:, 0], model.predict(x[:24]))


def test_lightgbm_knows_the_numbers_of_its_own_categories(tmp_path: Path) -> None:
    lightgbm, pandas = need("lightgbm"), need("pandas")
    x, _ = rows_and_classes()
    cities = np.random.default_rng(0).choice(CITIES, len(x))
    table = pandas.DataFrame({"length": x[:, 0], "city": pandas.Categorical(cities, CITIES[::-1])})
    model = lightgbm.LGBMRegressor(n_estimators=8, min_child_samples=5, verbose=-1).fit(table, x[:, 0] + 5 * (cities == "Oslo"))
    lightgbm_of(tmp_path, model)
    columns = 'length = "float"\ncity = {}'
    said = refusal(described(tmp_path, 'lightgbm = "model.txt"', columns=columns.format('["Oslo", "Paris"]')))
    assert 'write city = ["Rome", "Oslo", "Lima"]' in said
    served = built(described(tmp_path, 'lightgbm = "model.txt"', columns=columns.format(json.dumps(CITIES))))
    rows = [{"length": float(one), "city": str(city)} for one, city in zip(x[:24, 0], cities, strict=False)]
    answers = served.ask([json.dumps(row).encode() for row in rows] + [b'{"length": 1, "city": "Paris"}'], [JSON] * 25)
    assert [answer.value["value"] for answer in answers[:24]] == model.predict(table[:24]).tolist()
    assert answers[24].code == 422


@pytest.mark.parametrize("file", ["model.json", "model.ubj"])
def test_xgboost_answers_as_itself(tmp_path: Path, file: str) -> None:
    xgboost = need("xgboost")
    x, y = rows_and_classes()
    x[::5, 1] = np.nan
    model = xgboost.XGBClassifier(n_estimators=6, max_depth=3).fit(x, y)
    model.save_model(tmp_path / file)
    columns = FLOATS.replace('width = "float"', 'width = "float?"')
    served = built(described(tmp_path, f'xgboost = "{file}"', f"labels = {KINDS}", columns))
    np.testing.assert_array_equal(scores(served, x[:40]).astype(np.float32), model.predict_proba(x[:40]))


def test_xgboost_that_stopped_early_says_which_trees_answer(tmp_path: Path) -> None:
    xgboost = need("xgboost")
    x, _ = rows_and_classes()
    y = x[:, 0] + np.random.default_rng(1).normal(size=len(x))
    model = xgboost.XGBRegressor(n_estimators=60, early_stopping_rounds=3).fit(
        x[:200], y[:200], eval_set=[(x[200:], y[200:])], verbose=0
    )
    model.save_model(tmp_path / "model.json")
    assert 'trees = "best"' in refusal(described(tmp_path, 'xgboost = "model.json"'))
    every = model.get_booster().predict(xgboost.DMatrix(x[:20]), iteration_range=(0, model.get_booster().num_boosted_rounds()))
    assert not np.array_equal(every, model.predict(x[:20]))
    for trees, wanted in (("best", model.predict(x[:20])), ("all", every)):
        served = built(described(tmp_path, 'xgboost = "model.json"', options=f'[options]\ntrees = "{trees}"'))
        np.testing.assert_array_equal(scores(served, x[:20])[:, 0].astype(np.float32), wanted)


def test_xgboost_that_gives_labels_or_takes_categories_is_refused(tmp_path: Path) -> None:
    xgboost = need("xgboost")
    x, y = rows_and_classes()
    xgboost.train({"objective": "multi:softmax", "num_class": 3}, xgboost.DMatrix(x, y), 2).save_model(tmp_path / "model.json")
    assert "multi:softprob" in refusal(described(tmp_path, 'xgboost = "model.json"', f"labels = {KINDS}"))
    kinds = xgboost.DMatrix(np.column_stack([x[:, :2], y]), x[:, 0], feature_types=["q", "q", "c"], enable_categorical=True)
    xgboost.train({}, kinds, 2).save_model(tmp_path / "model.json")
    assert "encode texts and categories" in refusal(described(tmp_path, 'xgboost = "model.json"'))


def skops_of(folder: Path, model: Any) -> None:
    (folder / "model.skops").write_bytes(need("skops.io").dumps(model))


def test_a_pipeline_of_skops_answers_a_frame_with_texts_and_what_is_missing(tmp_path: Path) -> None:
    pandas = need("pandas")
    need("skops")
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    draw = np.random.default_rng(1)
    table = pandas.DataFrame(
        {"age": draw.integers(18, 90, 300), "income": np.where(draw.random(300) < 0.2, np.nan, draw.normal(50, 20, 300)),
         "city": draw.choice(CITIES, 300), "member": draw.random(300) < 0.5}
    )  # fmt: skip
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = ColumnTransformer(
        [("n", numbers, ["age", "income"]), ("c", OneHotEncoder(), ["city"]), ("m", "passthrough", ["member"])]
    )
    y = np.where((table["age"] > 50) ^ (table["city"] == "Oslo"), "yes", "no")
    model = make_pipeline(columns, RandomForestClassifier(15, random_state=0, n_jobs=2)).fit(table, y)
    skops_of(tmp_path, model)
    columns_told = f'age = "int"\nincome = "float?"\ncity = {json.dumps(CITIES)}\nmember = "bool"'
    assert 'trusted = ["sklearn.tree._tree.Tree"]' in refusal(
        described(tmp_path, 'skops = "model.skops"', columns=columns_told)
    )
    served = built(described(tmp_path, 'skops = "model.skops"', columns=columns_told, options=TREES))
    rows = [{key: None if value != value else value for key, value in row.items()} for row in table[:32].to_dict("records")]
    answers = served.ask([json.dumps(row).encode() for row in rows], [{**JSON, "x-scores": "all"}] * 32)
    np.testing.assert_array_equal([answer.value["scores"] for answer in answers], model.predict_proba(table[:32]))
    assert [answer.value["answer"]["label"] for answer in answers] == model.predict(table[:32]).tolist()


def test_a_pipeline_of_skops_behind_a_scaler_takes_its_own_branches(tmp_path: Path) -> None:
    need("skops")
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, _ = rows_and_classes()
    model = make_pipeline(StandardScaler(), RandomForestRegressor(10, random_state=0)).fit(x, x[:, 0] * 3 - x[:, 1])
    skops_of(tmp_path, model)
    write_expected(tmp_path, model.predict, x)
    edges = np.array(json.loads((tmp_path / "expected.json").read_text())["rows"])[-64:]
    served = built(described(tmp_path, 'skops = "model.skops"', 'expected = "expected.json"', options=TREES))
    np.testing.assert_array_equal(scores(served, edges)[:, 0], model.predict(edges))


def test_a_pipeline_of_skops_reads_texts(tmp_path: Path) -> None:
    need("skops")
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts = [f"{'good' if i % 2 else 'bad'} {i % 7} wood" for i in range(60)]
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, ["up" if i % 2 else "down" for i in range(60)])
    skops_of(tmp_path, model)
    served = built(described(tmp_path, 'skops = "model.skops"', columns='words = "text"'))
    answers = served.ask([json.dumps({"words": text}).encode() for text in texts[:6]], [JSON] * 6)
    assert [answer.value["label"] for answer in answers] == ["down", "up"] * 3


def test_skops_of_types_that_it_does_not_trust_is_refused(tmp_path: Path) -> None:
    need("skops")
    from sklearn.preprocessing import FunctionTransformer

    skops_of(tmp_path, FunctionTransformer(importlib.import_module("os").getcwd))
    said = refusal(described(tmp_path, 'skops = "model.skops"'))
    assert "skops does not trust its posix.getcwd" in said
    described(tmp_path, 'skops = "model.skops"', options='[options]\ntrusted = ["posix.getcwd"]')
    assert "only types of sklearn., numpy., scipy. can be trusted" in refusal(tmp_path)


def test_skops_of_another_release_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("skops")
    import sklearn.base
    from sklearn.linear_model import LinearRegression

    x, _ = rows_and_classes()
    with monkeypatch.context() as patched:
        patched.setattr(sklearn.base, "__version__", "1.5.2")
        skops_of(tmp_path, LinearRegression().fit(x, x[:, 0]))
    assert "scikit-learn 1.5.2 wrote it" in refusal(described(tmp_path, 'skops = "model.skops"'))


Made = Callable[[Path, Any, Any], None]


def a_booster(folder: Path, x: Any, y: Any) -> None:
    lightgbm_of(folder, need("lightgbm").LGBMClassifier(n_estimators=2, verbose=-1).fit(x, y))


@pytest.mark.parametrize(
    ("top", "columns", "said"),
    [
        (
            'output = "regression"',
            FLOATS,
            'gives probabilities, not regression | write in model.toml: output = "probabilities"',
        ),
        ('output = "scores:probabilities"', FLOATS, "gives probabilities, not scores:probabilities"),
        ('labels = ["a", "b"]', FLOATS, "gives 3 scores, but there are 2 labels"),
        ("", 'length = "float"\nwidth = "float"', "was trained on 3 columns, but model.toml has 2"),
        ("", FLOATS.replace('height = "float"', 'height = ["a"]'), "0 columns of categories, but model.toml has 1 of texts"),
    ],
)
def test_what_the_library_says_otherwise_is_refused(tmp_path: Path, top: str, columns: str, said: str) -> None:
    a_booster(tmp_path, *rows_and_classes())
    assert said in refusal(described(tmp_path, 'lightgbm = "model.txt"', top, columns))


def test_columns_in_another_order_than_in_training_are_refused(tmp_path: Path) -> None:
    pandas, lightgbm = need("pandas"), need("lightgbm")
    x, _ = rows_and_classes()
    table = pandas.DataFrame(x, columns=["the height", "width", "length"])
    lightgbm_of(tmp_path, lightgbm.LGBMRegressor(n_estimators=2, verbose=-1).fit(table, x[:, 0]))
    assert "its column 'the_height' is 'length' in model.toml" in refusal(described(tmp_path, 'lightgbm = "model.txt"'))
    columns = '"the height" = "float"\nwidth = "float"\nlength = "float"'
    assert scores(built(described(tmp_path, 'lightgbm = "model.txt"', columns=columns)), x[:3]).shape == (3, 1)


def test_a_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    need("lightgbm"), need("xgboost"), need("skops")
    for form in ("lightgbm", "xgboost", "skops"):
        (tmp_path / "model.bin").write_bytes(b"nonsense\n" * 40)
        said = refusal(described(tmp_path, f'{form} = "model.bin"'))
        assert said.startswith("model.bin cannot serve: "), said
        assert "\n" not in said


def test_one_file_is_the_model(tmp_path: Path) -> None:
    described(tmp_path, 'lightgbm = "model.txt"\nonnx = "model.onnx"')
    with pytest.raises(SlotwiseError, match="lightgbm is a model by itself"):
        load_spec(tmp_path)
    text = (tmp_path / "model.toml").read_text().replace("tabular", "tensor_classifier").replace('onnx = "model.onnx"', "")
    (tmp_path / "model.toml").write_text(text)
    with pytest.raises(SlotwiseError, match='handler = "tabular"'):
        load_spec(tmp_path)
