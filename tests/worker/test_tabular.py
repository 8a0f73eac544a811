"""Rows of a table in every form, and what each wrong one gets; the model is the trained irises'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("onnxruntime")
pytest.importorskip("sklearn")
from slotwise.archive.build import build
from slotwise.worker import Headers, SlotError
from slotwise.worker.tables.columns import SchemaColumn, TableSchema
from slotwise.worker.tables.table_body import MAX_ROWS, is_list, rows_of
from tests.worker.serving import Served

JSON, CSV = {"content-type": "application/json"}, {"content-type": "text/csv"}
NAMES = ["sepal length", "sepal width", "petal length", "petal width"]
FLOWERS = {"setosa": [5.0, 3.4, 1.5, 0.2], "versicolor": [4.9, 2.4, 3.3, 1.0], "virginica": [7.3, 2.9, 6.3, 1.8]}
KINDS = list(FLOWERS)
RECORDS = [dict(zip(NAMES, values, strict=True)) for values in FLOWERS.values()]
PEOPLE = TableSchema(
    [SchemaColumn("age", "int", dtype="float32"), SchemaColumn("income", missing=True, dtype="float32"),
     SchemaColumn("city", "text"), SchemaColumn("kind", "text", values=("a", "b")), SchemaColumn("member", "bool")]
)  # fmt: skip
PERSON = {"age": 41, "income": 2.5, "city": "Oslo", "kind": "a", "member": True}


@pytest.fixture(scope="module")
def iris(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built archive."""
    return build("iris", tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def served(iris: Path) -> Served:
    return Served.of(iris, {})


def csv(*rows: Any, header: bool = True) -> bytes:
    return "\n".join([",".join(NAMES)] * header + [",".join(map(str, row)) for row in rows]).encode()


def test_each_form_of_a_table_gives_the_same_answers(served: Served) -> None:
    rows = list(FLOWERS.values())
    columns = {name: [row[i] for row in rows] for i, name in enumerate(NAMES)}
    forms: list[tuple[Any, dict[str, str]]] = [
        (RECORDS, JSON),
        (rows, JSON),
        (columns, JSON),
        ({"columns": NAMES, "data": rows}, JSON),
        ({"columns": NAMES[::-1], "index": [7, 8, 9], "data": [row[::-1] for row in rows]}, JSON),
        ({"instances": RECORDS}, {"content-type": "application/json; charset=utf-8"}),
        (RECORDS, {}),
        (csv(*rows), CSV),
        (csv(*rows) + b"\r\n\r\n", {"content-type": "text/csv; header=present"}),
        (csv(*rows, header=False), {"content-type": "text/csv; header=absent"}),
        (b"\xef\xbb\xbf" + csv(*rows), {}),
    ]
    bodies = [body if isinstance(body, bytes) else json.dumps(body).encode() for body, _ in forms]
    answers = served.ask(bodies, [headers for _, headers in forms])
    assert {answer.code for answer in answers} == {200}
    assert [one["label"] for one in answers[0].value] == KINDS
    assert all(answer.value == answers[0].value for answer in answers)


def test_one_row_is_answered_by_one_answer_and_a_list_by_a_list(served: Served) -> None:
    one, alone, listed, column, line, text = served.ask(
        [
            json.dumps(RECORDS[0]).encode(),
            json.dumps(FLOWERS["setosa"]).encode(),
            json.dumps(RECORDS[:1]).encode(),
            json.dumps({name: [value] for name, value in RECORDS[0].items()}).encode(),
            csv(FLOWERS["setosa"]),
            json.dumps(RECORDS[2]).encode(),
        ],
        [JSON, JSON, JSON, JSON, CSV, {"accept": "text/plain"}],
    )
    assert one.value == alone.value
    assert one.value["label"] == "setosa"
    assert listed.value == column.value == line.value == [one.value]
    assert text.body == b"virginica"


def test_one_bad_row_in_eight_costs_nobody_else_anything(served: Served) -> None:
    good = json.dumps(RECORDS[1]).encode()
    expected = served.ask([good], [JSON])[0].value
    for place in range(8):
        bodies = [json.dumps({**RECORDS[1], "petal width": "wide"}).encode() if i == place else good for i in range(8)]
        answers = served.ask(bodies, [JSON] * 8)
        assert [answer.code for answer in answers] == [422 if i == place else 200 for i in range(8)]
        assert all(answer.value == expected for i, answer in enumerate(answers) if i != place)
        message = answers[place].value["error"]["message"]
        assert message == "column 'petal width' takes a number, not 'wide'"
        rows = [{**RECORDS[1], "petal width": None} if i == place else RECORDS[1] for i in range(8)]
        in_one = served.ask([json.dumps(rows).encode()], [JSON])[0].value
        assert in_one[place]["error"] == {"code": 422, "message": "column 'petal width' is missing"}
        assert all(one == expected for i, one in enumerate(in_one) if i != place)


@pytest.mark.parametrize(
    ("body", "headers", "code", "said"),
    [
        ({**RECORDS[0], "petal lenght": 1.0}, JSON, 422, "there is no column 'petal lenght': did you mean 'petal length'?"),
        ({"petal width": 1.0}, JSON, 422, "column 'sepal length' is missing"),
        ([RECORDS[0] | {"petal width": True}], JSON, 422, "column 'petal width' takes a number, not True"),
        ([[1, 2, 3]], JSON, 422, "a row has 4 columns, this one has 3, and column 'petal width' is missing"),
        ([1, 2, 3, 4, 5], JSON, 422, "a row has 4 columns, this one has 5"),
        ([1, 2, 3, 1e39], JSON, 422, "column 'petal width' takes a number that float32 holds, not 1e+39"),
        (b'{"petal width": 1, "petal width": 2}', JSON, 422, "column 'petal width' is there twice"),
        (b"[1, 2, 3, 1e999]", JSON, 422, "column 'petal width' takes a finite number, not inf"),
        (b"[1, 2, 3, NaN]", JSON, 400, "the body is not JSON"),
        (b"{", JSON, 400, "the body is not JSON"),
        (b"[" * 9_000, JSON, 400, "the body is not JSON"),
        ([], JSON, 400, "the table has no rows"),
        ("row", JSON, 422, "a table is an object of columns, or a list of rows"),
        ({name: [1.0] * (2 if name == "petal width" else 1) for name in NAMES}, JSON, 422, "column 'petal width' has 2 values"),
        ({"columns": NAMES[:3], "data": []}, JSON, 422, "column 'petal width' is missing"),
        ({"columns": [1, 2], "data": []}, JSON, 422, "columns must be a list of names, and data a list of rows"),
        ({"columns": NAMES, "data": [[1]]}, JSON, 422, "a row of data is no list of 4 values"),
        ({"instances": {}}, JSON, 422, "instances must be a list"),
        ([[1, 2, 3, 4]] * (MAX_ROWS + 1), JSON, 413, "the table has 1025 rows"),
        ([[]] * 20_000, JSON, 413, "the JSON is made of more pieces"),
        (csv([1, 2, 3]), CSV, 422, "a line has 3 fields, but there are 4 columns"),
        (csv([1, 2, 3, ""]), CSV, 422, "column 'petal width' is missing"),
        (csv([1, 2, 3, "1_0"]), CSV, 422, "column 'petal width' takes a number, not '1_0'"),
        (csv([1, 2, 3, "nan"]), CSV, 422, "column 'petal width' takes a number, not 'nan'"),
        (csv(), CSV, 400, "the table has no rows"),
        (csv([1, 2, 3, 4], header=False), CSV, 422, "there is no column '1'"),
        (b"petal width,petal width\n1,2", CSV, 422, "column 'petal width' is there twice"),
        (b"", CSV, 400, "the body is empty"),
        (b'"sepal', CSV, 400, "the body is no CSV"),
        (b"\xff", CSV, 400, "the body is no UTF-8"),
        (csv([1, 2, 3, "4\0"]), CSV, 400, "the body is no CSV"),
        (csv(*[[1, 2, 3, 4]] * 5_000), CSV, 413, "the table has more than 1024 rows"),
        (csv(*[[1, 2, 3, 4]] * 5_000).replace(b"\n", b"\r"), CSV, 413, "the table has more than 1024 rows"),
        (b"<xml/>", {"content-type": "text/xml"}, 415, "application/json or text/csv"),
        (csv([1, 2, 3, 4]), {"content-type": "text/csv; charset=latin-1"}, 415, "UTF-8"),
    ],
)
def test_a_wrong_table_is_told_which_column(served: Served, body: Any, headers: dict[str, str], code: int, said: str) -> None:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    bad, good = served.ask([sent, json.dumps(RECORDS[0]).encode()], [headers, JSON])
    assert (bad.code, good.code) == (code, 200), bad.body
    assert said in bad.value["error"]["message"]


def one_of(record: Any) -> Any:
    (row,) = rows_of(json.dumps([record]).encode(), Headers(JSON), PEOPLE)
    return row.message if isinstance(row, SlotError) else (row[0].tolist(), row[1])


def test_columns_of_each_kind() -> None:
    assert one_of(PERSON) == ([41.0, 2.5, 1.0], ("Oslo", "a"))
    assert one_of({**PERSON, "age": 41.0, "member": False})[0] == [41.0, 2.5, 0.0]
    missing = one_of({key: value for key, value in PERSON.items() if key != "income"})
    assert str(missing[0]) == "[41.0, nan, 1.0]"
    assert one_of({**PERSON, "age": 41.5}) == "column 'age' takes a whole number, not 41.5"
    assert one_of({**PERSON, "age": 2**24 + 1}) == "column 'age' takes a whole number that can be held exactly, not 16777217"
    assert one_of({**PERSON, "age": 2**24 + 2})[0][0] == 2**24 + 2
    assert "can be held" in one_of({**PERSON, "age": 10**400})
    assert one_of({**PERSON, "city": 7}) == "column 'city' takes a text, not 7"
    assert one_of({**PERSON, "city": ""}) == "column 'city' is missing"
    assert one_of({**PERSON, "city": None}) == "column 'city' is missing"
    assert one_of({**PERSON, "city": "\ud800"}) == "column 'city' holds half of a surrogate pair, which is no character"
    assert one_of({**PERSON, "kind": "c"}) == "column 'kind' takes one of 'a', 'b', not 'c'"
    assert one_of({**PERSON, "member": 1}) == "column 'member' takes true or false, not 1"


@pytest.mark.parametrize(
    ("dtype", "held", "refused"),
    [
        ("float16", [0, -2048, 4096, 65504], [2049, 65505, 10**15]),
        ("float32", [2**24, -(2**24) - 2, 2**40], [2**24 + 1, 2**53 + 2**30]),
        ("float64", [2**24 + 1, 2**53], [2**53 + 2]),
        ("int32", [2**31 - 1, -(2**31)], [2**31, -(2**31) - 1, 2**32 + 1]),
        ("int64", [2**31, -(2**53)], [2**53 + 2, 2**64]),
        ("bool", [0, 1], [2, -1]),
    ],
)
def test_a_whole_number_that_the_graph_would_get_as_another_is_refused(dtype: str, held: list[int], refused: list[int]) -> None:
    column = SchemaColumn("a", "int", dtype=dtype)
    for value in held:
        assert np.array(column.of_json(value)).astype(dtype) == column.of_text(str(value)) == value
    for value in refused:
        for read in (lambda value: column.of_json(value), lambda value: column.of_text(str(value))):
            with pytest.raises(SlotError, match="column 'a' takes a whole number that can be held exactly"):
                read(value)


def test_a_number_that_would_become_infinite_is_refused() -> None:
    for dtype, most, more in (("float16", 65504.0, 65520.0), ("float32", 3e38, 4e38)):
        column = SchemaColumn("a", dtype=dtype)
        assert column.of_json(-most) == -most
        with pytest.raises(SlotError, match=f"takes a number that {dtype} holds"):
            column.of_json(more)


def test_the_same_columns_as_csv() -> None:
    body = b'age,city,kind,member,income\n 41 ,"Oslo, north",a,TRUE,\n41,Oslo,b,0,2e3\n41,Oslo,b,maybe,1\nx,Oslo,b,1,1\n'
    first, second, third, fourth = rows_of(body, Headers(CSV), PEOPLE)
    assert (str(first[0]), first[1]) == ("[41. nan  1.]", ("Oslo, north", "a"))  # type: ignore[index]
    assert (second[0].tolist(), second[1]) == ([41.0, 2000.0, 0.0], ("Oslo", "b"))  # type: ignore[index]
    assert str(third) == "column 'member' takes true or false, not 'maybe'"
    assert str(fourth) == "column 'age' takes a whole number, not 'x'"


def test_an_empty_line_of_one_column_is_a_row_whose_field_is_empty() -> None:
    one = TableSchema([SchemaColumn("x", missing=True)])
    rows = rows_of(b"\nx\n1\n\n3\n\n\n", Headers(CSV), one)
    assert [str(row[0]) for row in rows] == ["[1.]", "[nan]", "[3.]"]  # type: ignore[index]
    (_, second, _) = rows_of(b"x\n1\n\n3", Headers(CSV), TableSchema([SchemaColumn("x")]))
    assert str(second) == "column 'x' is missing"
    two = TableSchema([SchemaColumn("x"), SchemaColumn("y")])
    assert len(rows_of(b"x,y\n1,2\n\n3,4\n", Headers(CSV), two)) == 2


def test_columns_that_are_called_as_parts_of_other_forms() -> None:
    odd = TableSchema([SchemaColumn("columns"), SchemaColumn("data"), SchemaColumn("instances")])
    row = json.dumps({"columns": 1, "data": 2, "instances": 3}).encode()
    ((numbers, _),) = rows_of(row, Headers(JSON), odd)  # type: ignore[misc]
    assert numbers.tolist() == [1.0, 2.0, 3.0]
    assert not is_list(row, Headers(JSON), odd)
    assert is_list(b'{"columns": [1], "data": [2], "instances": [3]}', Headers(JSON), odd)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b" " * 100 + b'{"data": 1}', JSON),
        ('{"data": 1}'.encode("utf-16"), JSON),
        (b'\xef\xbb\xbf{"data": 1}', {}),
        (b'{"data": 1}', {"content-type": "application/vnd.row+json; note=csv"}),
    ],
)
def test_however_one_row_of_json_is_written_its_answer_is_one(body: bytes, headers: dict[str, str]) -> None:
    alone = TableSchema([SchemaColumn("data")])
    assert len(rows_of(body, Headers(headers), alone)) == 1
    assert not is_list(body, Headers(headers), alone)


def test_csv_whose_first_name_looks_like_json_is_answered_by_a_list() -> None:
    bracket = TableSchema([SchemaColumn("[cm]")])
    assert len(rows_of(b"[cm]\n1\n", Headers({"content-type": "Text/CSV"}), bracket)) == 1
    assert is_list(b"[cm]\n1\n", Headers({"content-type": "Text/CSV"}), bracket)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["a", "", "41", "columns"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from([*PEOPLE.names, "data", "columns"]), inner),
    max_leaves=12,
)


@given(st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()), st.sampled_from([JSON, CSV, {}]))
def test_whatever_is_sent_becomes_rows_of_the_right_shape_or_errors(body: bytes, headers: dict[str, str]) -> None:
    try:
        rows = rows_of(body, Headers(headers), PEOPLE)
    except SlotError as error:
        rows = [error]
        sent_as_list = True
    else:
        sent_as_list = is_list(body, Headers(headers), PEOPLE)
    assert rows
    for row in rows:
        if isinstance(row, SlotError):
            assert 400 <= row.code < 500
        else:
            assert (row[0].shape, len(row[1])) == ((3,), 2)
    assert sent_as_list or len(rows) == 1


def test_what_may_be_meant_is_looked_for_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes milliseconds a row where there are many columns."""
    looked: list[str] = []
    monkeypatch.setattr("difflib.get_close_matches", lambda name, *_: looked.append(name) or ["age"])
    rows = rows_of(json.dumps([{f"aeg{i}": 1} for i in range(MAX_ROWS)]).encode(), Headers(JSON), PEOPLE)
    assert len(looked) < 10
    assert "did you mean 'age'?" in str(rows[0])
    assert "there are 'age'" in str(rows[-1])
