"""Several named tensors in and out: found in the graph, run before they are served, and one record never gets another's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

graphs = pytest.importorskip("tests.archive.graphs")
pytest.importorskip("onnxruntime")
from slotwise.archive.build import build  # noqa: E402
from slotwise.errors import SlotwiseError  # noqa: E402
from slotwise.worker import SlotError  # noqa: E402
from slotwise.worker.tensors.tensor_body import MAX_RECORDS, MOST_NUMBERS, NamedTensor, records_of  # noqa: E402
from tests.archive.graphs import FLOAT, INT64, node  # noqa: E402
from tests.worker.serving import Served  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_home", "no_proofs")

onnx = graphs.onnx
USER, ITEM = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(6, dtype=np.float32).reshape(2, 3) - 2
INPUTS = [NamedTensor("user", "float32", (4,)), NamedTensor("count", "int64", ()), NamedTensor("mask", "bool", (2, 2))]
GOOD = {"user": [0.5, 1, 2, 3], "count": 7, "mask": [[True, False], [False, True]]}


def graph(
    folder: Path, nodes: Any = None, sides: Any = ("b", 4), batch: Any = "b", kind: int = FLOAT, of: Any = ("b", 3)
) -> Path:
    """user [b, 4] and item [b, 2] to their products' sum [b, 3] and, beside it, where item is positive [b, 2]."""
    nodes = nodes or [
        node("MatMul", "user u", "a"), node("MatMul", "item i", "c"), node("Add", "a c", "sum"),
        node("Greater", "item zero", "positive"),
    ]  # fmt: skip
    info = onnx.helper.make_tensor_value_info
    weights = {"u": USER, "i": ITEM, "zero": np.zeros(1, np.float32)}
    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    inputs = [info("user", kind, list(sides)), info("item", FLOAT, [batch, 2])]
    outputs = [info("sum", FLOAT, list(of)), info("positive", onnx.TensorProto.BOOL, [batch, 2])]
    made = onnx.helper.make_graph(nodes, "net", inputs, outputs, arrays)
    onnx.save(onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), folder / "net.onnx")
    return folder


def described(folder: Path, more: str = "") -> Path:
    (folder / "model.toml").write_text(f'name = "net"\nhandler = "tensors"\n{more}\n[weights]\nonnx = "net.onnx"\n', "utf-8")
    return folder


def refusal(folder: Path, more: str = "") -> tuple[str, str]:
    with pytest.raises(SlotwiseError) as raised:
        build(described(folder, more), folder / "store")
    return raised.value.message, raised.value.hint


@pytest.mark.parametrize("engine", ["onnxruntime", pytest.param("openvino", marks=pytest.mark.slow)])
def test_every_output_of_every_record_one_bad_in_eight(tmp_path: Path, engine: str) -> None:
    pytest.importorskip(engine)
    served = Served.of(build(described(graph(tmp_path)), tmp_path / "store"), {"engine": engine}, batch_size=16)
    draw = np.random.default_rng(0)
    users, items = draw.normal(size=(16, 4)).astype(np.float32), draw.normal(size=(16, 2)).astype(np.float32)
    records = [{"user": user.tolist(), "item": item.tolist()} for user, item in zip(users, items, strict=True)]
    bodies = [json.dumps(one).encode() for one in records]
    bodies[3] = bodies[11] = b'{"user": [1, 2, 3, 4], "item": [1, "x"]}'
    for i, answer in enumerate(served.ask(bodies)):
        if i in (3, 11):
            assert (answer.code, "input 'item' takes float32" in str(answer.value)) == (422, True)
            continue
        np.testing.assert_allclose(answer.value["sum"], users[i] @ USER + items[i] @ ITEM, rtol=1e-4, atol=1e-4)
        assert answer.value["positive"] == (items[i] > 0).tolist()
    listed = served.ask([json.dumps({"instances": [records[0], {"user": 1}]}).encode(), json.dumps(records[:1]).encode()])
    assert listed[0].value[0] == listed[1].value[0] == served.ask([bodies[0]])[0].value
    assert listed[0].value[1]["error"]["code"] == 422


def test_what_the_graph_does_not_say_is_asked_for(tmp_path: Path) -> None:
    graph(tmp_path, sides=("b", "n"))
    assert refusal(tmp_path)[1] == "write in model.toml: [inputs] and below it user = [16]"
    assert "does not run" in refusal(tmp_path, "[inputs]\nuser = [16]")[0]
    assert build(described(tmp_path, "[inputs]\nuser = [4]"), tmp_path / "store").is_file()
    graph(tmp_path)
    assert refusal(tmp_path, "[inputs]\nuser = [5]")[0].endswith("a record's 'user' is 4, but model.toml says [5]")
    assert "has no input 'usr'" in refusal(tmp_path, "[inputs]\nusr = [4]")[0]
    assert "no labels and no output" in refusal(tmp_path, 'output = "sum"')[1]


def test_a_graph_that_is_not_for_batches_is_refused(tmp_path: Path) -> None:
    graph(tmp_path, sides=(1, 4), batch=1, of=(1, 3))
    assert "the batch of its input 'user' is fixed" in refusal(tmp_path)[0]
    mixing = [
        node("MatMul", "user u", "a"), node("ReduceSum", "a", "s", keepdims=1), node("Add", "a s", "sum"),
        node("Greater", "item zero", "positive"),
    ]  # fmt: skip
    graph(tmp_path, mixing)
    assert "several records at once other values than each alone" in refusal(tmp_path)[0]
    graph(tmp_path, [node("ReduceSum", "user", "sum", keepdims=0), node("Greater", "item zero", "positive")], of=())
    assert "its output 'sum' has the shape [] for" in refusal(tmp_path)[0]
    graph(tmp_path, kind=INT64)
    assert "does not run on onnxruntime" in refusal(tmp_path)[0]
    graph(tmp_path, kind=onnx.TensorProto.STRING)
    assert "its input 'user' holds no numbers" in refusal(tmp_path)[0]


def one_input(folder: Path, nodes: Any, kind: int, made: int, weights: dict[str, Any], more: str = "") -> Path:
    """An archive of x [b, 1] to y [b, 1], with no engine named."""
    info = onnx.helper.make_tensor_value_info
    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    made_graph = onnx.helper.make_graph(nodes, "net", [info("x", kind, ["b", 1])], [info("y", made, ["b", 1])], arrays)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(made_graph, opset_imports=opset, ir_version=8), folder / "net.onnx")
    return build(described(folder, more), folder / "store")


@pytest.mark.parametrize("large", [42, 2**31 + 7, 2**40 + 7, 2**53 + 1])
def test_large_numbers_are_answered_exactly(tmp_path: Path, large: int) -> None:
    """OpenVINO has 32 bits for them: no made-up record of zeros and ones shows it."""
    table = np.arange(1000, dtype=np.float32).reshape(1000, 1) * 1e-6
    nodes = [node("Mod", "x k", "m"), node("Gather", "t m", "e"), node("Flatten", "e", "y")]
    archive = one_input(tmp_path, nodes, INT64, FLOAT, {"t": table, "k": np.array([1000])})
    (answer,) = Served.of(archive, {}).ask([json.dumps({"x": [large]}).encode()])
    assert answer.value["y"] == pytest.approx([table[large % 1000, 0]])
    double = onnx.TensorProto.DOUBLE
    (tmp_path / "wide").mkdir()
    archive = one_input(tmp_path / "wide", [node("Sub", "x c", "y")], double, double, {"c": np.array([2.0**31])})
    (answer,) = Served.of(archive, {}).ask([json.dumps({"x": [large]}).encode()])
    assert answer.value["y"] == [float(large) - 2.0**31]


@pytest.mark.parametrize(("kind", "index"), [(onnx.TensorProto.UINT8, onnx.TensorProto.INT32), (INT64, INT64)])
def test_an_index_that_no_table_has_is_no_zero(tmp_path: Path, kind: int, index: int) -> None:
    pytest.importorskip("openvino")
    nodes = [node("Cast", "x", "i", to=index), node("Gather", "t i", "e"), node("Flatten", "e", "y")]
    archive = one_input(tmp_path, nodes, kind, FLOAT, {"t": np.arange(10, dtype=np.float32).reshape(10, 1) + 1})
    good, bad = Served.of(archive, {}, batch_size=2).ask([b'{"x": [3]}', b'{"x": [100]}'])
    assert good.value["y"] == [4.0]
    assert bad.code >= 400


def test_small_outputs_are_compared_as_closely_as_large_ones() -> None:
    from slotwise.archive.network.alike import alike

    wanted = np.array([[1.0, -2.0, 0.0]])
    for scale in (1e-9, 1.0, 1e9):
        assert alike(wanted * scale, wanted * scale * (1 + 1e-4))
        assert not alike(wanted * scale, wanted * scale * 1.01)
    assert not alike(wanted * 1e-6, np.zeros((1, 3)))
    assert not alike(np.array([10**6]), np.array([10**6 + 1]))
    assert alike(np.array([np.nan, np.inf, 1.0]), np.array([np.nan, np.inf, 1.0]))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({**GOOD, "user": [1, 2, 3]}, "the input 'user' must have the shape [4]"),
        ({**GOOD, "user": [1, 2, 3, [4]]}, "other values are there"),
        ({**GOOD, "user": [1, 2, 3, True]}, "the input 'user' takes float32, and other values are there"),
        ({**GOOD, "user": [1, 2, 3, 1e39]}, "the input 'user' takes finite numbers that float32 holds"),
        ({**GOOD, "user": [1, 2, 3, 10**400]}, "and a number does not fit"),
        ({**GOOD, "count": 1.0}, "the input 'count' takes int64"),
        ({**GOOD, "count": [1]}, "the input 'count' takes int64"),
        ({**GOOD, "count": 2**63}, "a number does not fit"),
        ({**GOOD, "mask": [[1, 0], [0, 1]]}, "the input 'mask' takes bool"),
        ({**GOOD, "mask": [[True], [False]]}, "the input 'mask' must have the shape [2, 2]"),
        ({**GOOD, "more": 1}, "there is no input 'more'"),
        ({"user": [1, 2, 3, 4]}, "the input 'count' is missing"),
        ("text", "a record is an object of user [4], count [], mask [2, 2]"),
    ],
)
def test_what_is_wrong_is_named(record: Any, said: str) -> None:
    with pytest.raises(SlotError) as raised:
        records_of(json.dumps(record).encode(), {}, INPUTS)
    assert said in raised.value.message
    good, wrong = records_of(json.dumps([GOOD, record]).encode(), {}, INPUTS)
    assert isinstance(good, dict)
    assert isinstance(wrong, SlotError)


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (json.dumps([GOOD] * (MAX_RECORDS + 1)), 413, f"the request has {MAX_RECORDS + 1} records, at most {MAX_RECORDS}"),
        ("," * (MOST_NUMBERS + 1), 413, f"the JSON has more than {MOST_NUMBERS} numbers"),
        ('{"user": [1, 2, 3, 4], "count": 1, "count": 2, "mask": []}', 422, "an input is there twice"),
        ("[]", 400, "the request has no records"),
        ("[" * 100_000, 400, "send JSON: an object of user [4], count [], mask [2, 2]"),
    ],
    ids=["records", "numbers", "twice", "none", "deep"],
)
def test_what_is_wrong_with_a_body_as_a_whole_is_refused_as_a_whole(body: str, code: int, said: str) -> None:
    with pytest.raises(SlotError, match=re.escape(said)) as raised:
        records_of(body.encode(), {}, INPUTS)
    assert raised.value.code == code


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["user", "count", "mask", "x"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.builds(lambda data: json.dumps(data).encode(), values) | st.binary(max_size=40))
def test_whatever_is_sent_becomes_records_or_errors(body: bytes) -> None:
    try:
        found = records_of(body, {}, INPUTS)
    except SlotError:
        return
    assert 0 < len(found) <= MAX_RECORDS
    for one in found:
        if not isinstance(one, SlotError):
            assert {name: (array.dtype.name, array.shape) for name, array in one.items()} == {
                each.name: (each.dtype, each.shape) for each in INPUTS
            }


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=4, max_size=4),
    st.integers(-(2**63), 2**63 - 1),
)
def test_numbers_arrive_exactly(user: list[float], count: int) -> None:
    (one,) = records_of(json.dumps({**GOOD, "user": user, "count": count}).encode(), {}, INPUTS)
    assert (one["user"].tolist(), one["count"].tolist()) == (user, count)
