"""Tensors and stages on a real host, asked by many at once, hostile ones among them: 200 is right, and nobody else pays.

Every request has a number of its own. Its answer is known from that number, and no other request's number may stand in it.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from slotwise.archive.build import build
from tests.server.conftest import HERE
from tests.server.test_host import PATIENCE_S, Project, started_project

graphs = pytest.importorskip("tests.archive.graphs")

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(600)]

FIRST = 100_000  # numbers of requests have six digits, and nothing else that is answered has
Answer = Callable[[httpx.Client, str, int], str]  # asks, and says what is wrong: "" where nothing is
WEIGHT = np.arange(8, dtype=np.float32).reshape(4, 2)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A host with both models, two workers each, and a gateway before it."""
    place = tmp_path_factory.mktemp("both")
    store = place / "model_store"
    staged, ranker = place / "staged", place / "ranker"
    for stage in ("find", "read"):
        folder = staged / stage
        folder.mkdir(parents=True)
        shutil.copy(HERE / "handlers" / f"stage_{stage}.py", folder)
        shutil.copy(HERE / "handlers" / "stage_misbehaving.py", folder / f"misbehaving_{stage}.py")
        text = (folder / f"stage_{stage}.py").read_text().replace("stage_misbehaving", f"misbehaving_{stage}")
        (folder / f"stage_{stage}.py").write_text(text)
        (folder / "model.toml").write_text(
            f'name = "{stage}"\nhandler = "stage_{stage}.py"\nfiles = ["misbehaving_{stage}.py"]\n'
        )
    stages = "".join(f'[[stages]]\nname = "{name}"\nmodel = "{name}"\n' for name in ("find", "read"))
    (staged / "model.toml").write_text(f'name = "staged"\nhandler = "stages"\n{stages}')
    ranker.mkdir()
    ranked(ranker)
    for folder in (staged, ranker):
        build(folder, store, prove=lambda *_: None)
    options = ("--set", "initial_workers=2", "--set", "response_timeout_s=6", "--set", "max_batch_delay_ms=20")
    with started_project(place, ("model_store/staged.mar", "model_store/ranker.mar"), *options) as project:
        yield project


def ranked(folder: Path) -> None:
    """user [b, 4] and count [b] to sum [b, 2], which is user @ WEIGHT + count, and double [b], which is 2 * count."""
    onnx = graphs.onnx
    info, node = onnx.helper.make_tensor_value_info, graphs.node
    nodes = [
        node("MatMul", "user w", "a"), node("Cast", "count", "c", to=graphs.FLOAT), node("Unsqueeze", "c one", "d"),
        node("Add", "a d", "sum"), node("Add", "count count", "double"),
    ]  # fmt: skip
    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in {"w": WEIGHT, "one": np.array([1])}.items()]
    given = [info("user", graphs.FLOAT, ["b", 4]), info("count", graphs.INT64, ["b"])]
    made = [info("sum", graphs.FLOAT, ["b", 2]), info("double", graphs.INT64, ["b"])]
    graph = onnx.helper.make_graph(nodes, "net", given, made, arrays)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), folder / "net.onnx"
    )
    (folder / "model.toml").write_text('name = "ranker"\nhandler = "tensors"\n[weights]\nonnx = "net.onnx"\n')


def everybody(url: str, ways: list[Answer], clients: int, count: int, address: str | None = None) -> list[str]:
    """So many clients ask `count` times each, in ways drawn by chance; what was wrong. address: where they ask from."""
    wrong: list[str] = []

    def one(client: int) -> None:
        draw = random.Random(client)
        transport = httpx.HTTPTransport(local_address=address)
        with httpx.Client(timeout=PATIENCE_S, trust_env=False, transport=transport) as http:
            for i in range(count):
                number = FIRST + client * 1000 + i
                fault = draw.choice(ways)(http, url, number)
                if fault:
                    wrong.append(f"{number}: {fault}")

    threads = [threading.Thread(target=one, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def others(text: str, number: int) -> str:
    """What stands in an answer of other requests."""
    found = {one for one in re.findall(r"(?<!\w)1\d{5}(?!\w)", text) if int(one) != number}  # a request_id is no number
    return f"it tells of {found}: {text[:300]}" if found else ""


PARTS = ["ok", "ok", "ok", "refuse", "raise", "encode", "nan", "mutate"]


def expected(number: int, i: int, do: str, one: Any) -> bool:
    """Whether a part's answer is its own."""
    if do in ("ok", "mutate"):
        return bool(one == {"at": [number, i], "answer": {"value": number * 1000 + i}})
    return bool(one.get("at") == [number, i] and one["error"]["code"] == (400 if do == "refuse" else 500))


def good_stage(http: httpx.Client, url: str, number: int, parts: list[str] | None = None, do: str = "ok") -> str:
    """A request whose parts may misbehave, but not so that others' have to."""
    parts = random.Random(number).choices(PARTS, k=number % 5) if parts is None else parts
    answer = http.post(f"{url}/predictions/staged", json={"id": number, "do": do, "parts": parts})
    if answer.status_code != 200:
        return f"lost: {answer.status_code} {answer.text}"
    found = answer.json()
    right = len(found) == len(parts) and all(
        expected(number, i, do, one) for i, (do, one) in enumerate(zip(parts, found, strict=True))
    )
    return others(answer.text, number) if right else f"{parts}: {answer.text[:300]}"


def bad_stage(do: str, status: int) -> Answer:
    """A request that its first stage cannot answer."""

    def ask(http: httpx.Client, url: str, number: int) -> str:
        answer = http.post(f"{url}/predictions/staged", json={"id": number, "do": do, "parts": ["ok"]})
        return (
            others(answer.text, number) if answer.status_code == status else f"{do}: {answer.status_code} {answer.text[:300]}"
        )

    return ask


def odd_stage(http: httpx.Client, url: str, number: int) -> str:
    """What is no StagePart is an error in its place; the good one beside it is answered."""
    answer = http.post(f"{url}/predictions/staged", json={"id": number, "do": "odd", "parts": ["ok"]})
    first, *rest = answer.json()
    good = expected(number, 0, "ok", first) and [one["error"]["code"] for one in rest] == [500] * 4
    return others(answer.text, number) if good else answer.text[:300]


def test_stages_that_misbehave_cost_their_own_part_or_request(project: Project) -> None:
    gentle = [good_stage] * 6
    hostile = [bad_stage("refuse", 400), *(bad_stage(do, 500) for do in ("raise", "encode", "flood")), odd_stage,
               lambda http, url, number: good_stage(http, url, number, ["ok"], "mutate")]  # fmt: skip
    wrong = everybody(project.gateway.url, [*gentle, *hostile], 12, 60)
    assert wrong == []


@pytest.mark.parametrize("do", ["few", "many"])
def test_a_stage_that_gives_too_few_or_too_many(project: Project, do: str) -> None:
    for ways in (bad_stage(do, 500), lambda *asked: part_of(do, *asked)):
        assert everybody(project.gateway.url, [good_stage, good_stage, good_stage, ways], 8, 25) == []


def part_of(do: str, http: httpx.Client, url: str, number: int) -> str:
    """Its middle part misbehaves in the last stage."""
    return good_stage(http, url, number, ["ok", do, "ok"])


@pytest.mark.parametrize("do", ["exit", "sleep"])
def test_a_stage_that_ends_its_worker_costs_nobody_else_anything(project: Project, do: str) -> None:
    def ends(http: httpx.Client, url: str, number: int) -> str:
        found = http.post(f"{url}/predictions/staged", json={"id": number, "do": "ok", "parts": ["ok", do]})
        return "" if found.status_code in (429, 500, 503, 504, 507) else f"{do}: {found.status_code} {found.text[:200]}"

    over: list[str] = []
    own = "127.0.0.2"  # senders of such bodies are refused by their address, and the innocents are no such senders
    killer = threading.Thread(target=lambda: over.extend(everybody(project.gateway.url, [ends], 1, 2, own)))
    killer.start()
    wrong = everybody(project.gateway.url, [lambda http, url, number: good_stage(http, url, number + 50_000)], 6, 40)
    killer.join()
    assert (wrong, over) == ([], [])


def user(number: int) -> Any:
    return np.random.default_rng(number).integers(-50, 50, 4).astype(np.float32)


def truth(number: int, count: int | None = None) -> tuple[list[float], int]:
    """The right sum and double."""
    return (user(number) @ WEIGHT + (number if count is None else count)).tolist(), 2 * (number if count is None else count)


def good_record(http: httpx.Client, url: str, number: int) -> str:
    """A record, or a list of three of which the one in the middle is wrong."""
    record = {"user": user(number).tolist(), "count": number}
    several = number % 2
    body: Any = [record, {**record, "user": [1, 2]}, record] if several else record
    answer = http.post(f"{url}/predictions/ranker", json=body)
    if answer.status_code != 200:
        return f"lost: {answer.status_code} {answer.text}"
    good = dict(zip(("sum", "double"), truth(number), strict=True))
    found = answer.json()
    right = [found[0], found[2]] == [good, good] and found[1]["error"]["code"] == 422 if several else found == good
    return "" if right else answer.text[:300]


def v2(*changes: dict[str, Any] | None, rows: int = 2, binary: str = "", number: int = 0) -> tuple[bytes, dict[str, str]]:
    """A request of `rows` equal rows; changes: of user and of count, None leaves it out. binary: which of them are."""
    data = {"user": np.tile(user(number), (rows, 1)), "count": np.full(rows, number, np.int64)}
    inputs, tail = [], b""
    for name, datatype, change in zip(data, ("FP32", "INT64"), [*changes, *[{}] * (2 - len(changes))], strict=True):
        if change is None:
            continue
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(data[name].shape)}
        if name in binary:
            tensor["parameters"] = {"binary_data_size": data[name].nbytes}
            tail += data[name].tobytes()
        else:
            tensor["data"] = data[name].tolist()
        tensor |= change
        inputs.append(tensor)
    head = json.dumps({"inputs": inputs}).encode()
    return head + tail, {"inference-header-content-length": str(len(head))} if binary else {}


def good_v2(http: httpx.Client, url: str, number: int) -> str:
    """In lists, as binary data, and in both."""
    rows = 1 + number % 5
    body, headers = v2(rows=rows, binary=("", "user", "count", "user count")[number % 4], number=number)
    answer = http.post(f"{url}/v2/models/ranker/infer", content=body, headers=headers)
    if answer.status_code != 200:
        return f"lost: {answer.status_code} {answer.text}"
    sums, double = truth(number)
    right = [one["data"] for one in answer.json()["outputs"]] == [sums * rows, [double] * rows]
    return "" if right else answer.text[:300]


BIG = 2**39
HOSTILE_V2: dict[str, Any] = {
    "wrong name": v2({"name": "usr"}),
    "no name": v2({"name": None}),
    "a name that is a list": v2({"name": ["user"]}),
    "an input is missing": v2(None),
    "twice": v2({}, {"name": "user"}),
    "another type": v2({"datatype": "FP64"}),
    "no type": v2({"datatype": 7}),
    "BYTES": v2({"datatype": "BYTES", "data": ["a"] * 8}),
    "BYTES alone": v2({"datatype": "BYTES", "shape": [1], "data": ["no json"]}, None),
    "fractions are no INT64": v2({}, {"data": [1.5, 2]}),
    "truths are no INT64": v2({}, {"data": [True, 2]}),
    "texts": v2({"data": ["1"] * 8}),
    "too large": v2({}, {"data": [2**63, 1]}),
    "NaN": v2({"data": [float("nan")] * 8}),
    "infinity": v2({"data": [1e39] * 8}),
    "null": v2({"data": [None] * 8}),
    "ragged": v2({"data": [[1, 2, 3, 4], [1, 2, 3]]}),
    "ragged as many": v2({"data": [[1, 2, 3, 4, 5], [1, 2, 3]]}),
    "nested otherwise": v2({"data": [[1, 2], [3, 4], [5, 6], [7, 8]], "shape": [4, 2]}),
    "another inner shape": v2({"shape": [2, 5], "data": [1] * 10}),
    "no inner shape": v2({"shape": [8]}),
    "other rows": v2({}, {"shape": [3], "data": [1, 2, 3]}),
    "no rows": v2({"shape": [0, 4], "data": []}, {"shape": [0], "data": []}),
    "huge and empty": v2({"shape": [BIG, 4], "data": []}, {"shape": [BIG], "data": []}),
    "huge inside": v2({"shape": [2, BIG, BIG, BIG], "data": [1]}),
    "many sides": v2({"shape": [1] * 40}),
    "negative": v2({"shape": [-2, -4]}),
    "minus one": v2({"shape": [-1, 4]}),
    "a fraction": v2({"shape": [2.0, 4]}),
    "truth": v2({"shape": [True, 4]}),
    "a text": v2({"shape": "24"}),
    "no data": v2({"data": None}),
    "data of an object": v2({"data": {"0": 1}}),
    "binary of another size": v2({"parameters": {"binary_data_size": 31}}, binary="user"),
    "binary that is not there": v2({"parameters": {"binary_data_size": 10**9}}, binary="user"),
    "negative binary": v2({"parameters": {"binary_data_size": -32}}, binary="user"),
    "truth for a size": v2({"parameters": {"binary_data_size": True}}, binary="user"),
    "bytes that are nobody's": v2({"parameters": {}}, binary="user"),
    "binary and data": v2({"data": [1] * 8}, binary="user"),
    "binary NaN": (v2(binary="user")[0][:-32] + np.full(8, np.nan, np.float32).tobytes(), v2(binary="user")[1]),
    "length over the body": (v2(binary="user")[0], {"inference-header-content-length": "99999"}),
    "length within the head": (v2(binary="user")[0], {"inference-header-content-length": "10"}),
    "no length": (v2(binary="user")[0], {}),
    "no inputs": (b'{"inputs": []}', {}),
    "inputs of texts": (b'{"inputs": ["user", "count"]}', {}),
    "outputs that are not": (v2()[0][:-1] + b', "outputs": [{"name": "product"}]}', {}),
    "outputs of texts": (v2()[0][:-1] + b', "outputs": ["sum"]}', {}),
    "deep": (b'{"inputs": ' + b"[" * 100_000, {}),
}
GOOD_RECORD = {"user": [1, 2, 3, 4], "count": 7}
WRONG_RECORDS: dict[str, Any] = {
    "nothing": [],
    "no records": {"instances": []},
    "a text": "user",
    "a number": 7,
    "an empty object": {},
    "a missing input": {"user": [1, 2, 3, 4]},
    "another name": {**GOOD_RECORD, "usr": 1},
    "a fraction": {**GOOD_RECORD, "count": 1.5},
    "truth": {**GOOD_RECORD, "count": True},
    "NaN": {**GOOD_RECORD, "count": float("nan")},
    "infinity": {**GOOD_RECORD, "user": [1, 2, 3, float("inf")]},
    "too large": {**GOOD_RECORD, "count": 2**63},
    "far too large": {**GOOD_RECORD, "user": [1, 2, 3, 10**400]},
    "too many records": [GOOD_RECORD] * 257,
    "another shape": {**GOOD_RECORD, "user": [[1, 2], [3, 4]]},
    "null": {**GOOD_RECORD, "user": None},
}
HOSTILE_JSON = {name: json.dumps(body).encode() for name, body in WRONG_RECORDS.items()} | {
    "twice": b'{"user": [1, 2, 3, 4], "user": [1, 2, 3, 4], "count": 7}',
    "cut off": b'{"user": [1, 2',
    "bytes": b"\xff\xfe",
    "empty": b"",
    "deep": b"[" * 100_000,
    "thousands of digits": b'{"user": [1, 2, 3, 4], "count": ' + b"9" * 5000 + b"}",
}


def test_hostile_tensors_are_refused_each_by_itself(project: Project) -> None:
    """Not one is answered with 200, and none with 5xx."""
    wrong = []
    with httpx.Client(timeout=PATIENCE_S, trust_env=False) as http:
        asked = [(name, "v2/models/ranker/infer", body, headers) for name, (body, headers) in HOSTILE_V2.items()]
        asked += [(name, "predictions/ranker", body, {}) for name, body in HOSTILE_JSON.items()]
        for name, path, body, headers in asked:
            answer = http.post(f"{project.gateway.url}/{path}", content=body, headers=headers)
            errors = answer.json().get("parameters", {}).get("errors", "{}")
            each_row = answer.status_code == 200 and {one["code"] for one in json.loads(errors).values()} == {422}
            if not (400 <= answer.status_code < 500 or each_row):
                wrong.append(f"{name}: {answer.status_code} {answer.text[:300]}")
    assert wrong == []


def test_hostile_tensors_cost_nobody_else_anything(project: Project) -> None:
    def hostile(http: httpx.Client, url: str, number: int) -> str:
        if number % 2:
            body, headers = HOSTILE_V2[random.Random(number).choice(list(HOSTILE_V2))]
            answer = http.post(f"{url}/v2/models/ranker/infer", content=body, headers=headers)
        else:
            answer = http.post(f"{url}/predictions/ranker", content=random.Random(number).choice(list(HOSTILE_JSON.values())))
        return others(answer.text, number) if answer.status_code < 500 else answer.text[:300]

    ways = [good_record, good_record, good_v2, good_v2, hostile]
    assert everybody(project.gateway.url, ways, 12, 80) == []
