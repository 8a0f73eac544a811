"""A SageMaker model's functions get one request at a time: nobody's body or error is another's."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.archive.build import build
from slotwise.errors import SlotwiseError
from tests.worker.serving import Served

torch = pytest.importorskip("torch")

TOML = 'name = "{name}"\nhandler = "sagemaker"\nfiles = {files}\n'
OWN = """
import json
import numpy as np

KEPT = {}

class Busy(Exception):
    pass

class BaseInferenceToolkitError(Exception):
    def __init__(self, status_code, message):
        self.status_code, self.message = status_code, message

def model_fn(model_dir):
    with open(model_dir + "/factor.json") as file:
        return json.load(file)

def input_fn(body, content_type):
    if content_type == "application/json":
        assert isinstance(body, str)
        return np.array(json.loads(body), float)
    assert isinstance(body, bytes), content_type
    return np.array([len(body)], float)

def predict_fn(data, model, context):
    if data[0] == -1:
        raise Busy("secret of the author's")
    if data[0] == -2:
        raise BaseInferenceToolkitError(429, "come back later")
    if data[0] == -3:
        context.set_response_status(418, "teapot", 0)
    if data[0] == -4:
        raise SystemExit(3)
    data = KEPT.setdefault(context.get_request_id(0), data)
    return data * model + len(context.get_request_header(0, "x-wish") or "")

def output_fn(prediction, accept):
    if accept == "text/csv":
        return ",".join(map(str, prediction)), "text/csv; charset=utf-8"
    return json.dumps(prediction.tolist())
"""


def unpacked(folder: Path, name: str, files: dict[str, str], program: str = "") -> Path:
    """What a model.tar.gz holds, and a model.toml."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    kept = sorted({path.split("/")[0] for path in files} | {file.name for file in folder.glob("*.pt")})
    options = f"[options]\nprogram = {json.dumps(program)}\n" if program else ""
    (folder / "model.toml").write_text(TOML.format(name=name, files=json.dumps(kept)) + options)
    return folder


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = unpacked(tmp_path_factory.mktemp("own"), "own", {"code/inference.py": OWN, "factor.json": "3"})
    return Served.of(build(folder, folder / "store"), {})


JSON = {"content-type": "application/json"}
KINDS = {
    b"[1, 2]": (JSON, 200, [3.0, 6.0]),
    b"[2]": ({**JSON, "x-wish": "four"}, 200, [10.0]),
    b"12345": ({"content-type": "application/octet-stream"}, 200, [15.0]),
    b"nonsense": (JSON, 400, None),
    b"[-1]": (JSON, 500, None),
    b"[-2]": (JSON, 429, None),
    b"[-3]": (JSON, 418, None),
    b"[-4]": (JSON, 500, None),
}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=8))
def test_each_gets_what_it_gets_alone(own: Served, bodies: list[bytes]) -> None:
    answers = own.ask(bodies, [KINDS[body][0] for body in bodies])
    for body, answer in zip(bodies, answers, strict=True):
        _, code, value = KINDS[body]
        assert answer.code == code, (body, answer.body)
        assert code != 200 or answer.value == value
        assert b"secret" not in answer.body
    assert all(answer.value["error"]["message"] == "come back later" for answer in answers if answer.code == 429)


def test_a_tuple_says_its_content_type(own: Served) -> None:
    (answer,) = own.ask([b"[1, 2]"], [{**JSON, "accept": "text/csv"}])
    assert (answer.body, answer.headers["content-type"]) == (b"3.0,6.0", "text/csv; charset=utf-8")


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("scripted")
    linear = torch.nn.Linear(2, 1)
    torch.nn.init.ones_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    torch.jit.script(linear).save(str(folder / "model.pt"))
    return Served.of(build(unpacked(folder, "scripted", {}), folder / "store"), {})


def npy(value: object, **options: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(value), **options)
    return file.getvalue()


def test_without_functions_it_is_the_toolkits_torchscript(scripted: Served) -> None:
    bodies = [b"[[1, 2], [3, 4]]", b"1,2\n3,4", npy([[1, 2], [3, 4]]), npy(np.float32([[5, 6]]))]
    kinds = ["application/json", "text/csv", "application/x-npy", "application/x-npy"]
    answers = scripted.ask(bodies, [{"content-type": kind} for kind in kinds])
    assert [answer.code for answer in answers] == [200, 200, 500, 200]  # its weights are float32, the third's numbers int64
    assert [answers[i].value for i in (0, 1, 3)] == [[[3.0], [7.0]], [[3.0], [7.0]], [[11.0]]]


def test_a_body_that_is_one_whole_number_is_that_number(tmp_path: Path) -> None:
    """It was taken as a size: the answer was memory that had held another client's numbers."""
    torch.jit.script(torch.nn.Identity()).save(str(tmp_path / "model.pt"))
    echo = Served.of(build(unpacked(tmp_path, "echo", {}), tmp_path / "store"), {})
    numbers = {b"5": 5.0, b"-1": -1.0, b"0": 0.0, b"true": 1.0, b"20000": 20000.0, b"5.0": 5.0, b"[5]": [5.0]}
    answers = echo.ask(list(numbers), [JSON] * len(numbers))
    assert [(answer.code, answer.value) for answer in answers] == [(200, value) for value in numbers.values()]
    assert [answer.code for answer in echo.ask([b"1" + b"0" * 30, b"18446744073709551615"], [JSON] * 2)] == [400, 400]


def test_answers_are_in_the_form_that_is_asked_for(scripted: Served) -> None:
    wishes = ["text/csv", "application/x-npy", "image/png, text/csv", "image/png"]
    answers = scripted.ask([b"[[1, 2]]"] * 4, [{**JSON, "accept": wish} for wish in wishes])
    assert [answer.code for answer in answers] == [200, 200, 200, 406]
    assert answers[0].body == b"3.0\n"
    assert np.load(io.BytesIO(answers[1].body)).tolist() == [[3.0]]


def test_what_is_no_array_is_refused_and_no_pickle_is_opened(scripted: Served) -> None:
    pickled = npy(np.array([{"a": 1}], object), allow_pickle=True)
    bodies = [b"{", b'{"a": 1}', pickled, b"\x93NUMPY", b"", b"[[1, 2], [3]]", b"x"]
    kinds = ["application/json"] * 2 + ["application/x-npy"] * 2 + ["application/json"] * 2 + ["image/png"]
    answers = scripted.ask(bodies, [{"content-type": kind} for kind in kinds])
    assert [answer.code for answer in answers] == [400] * 6 + [415]


def test_the_second_body_of_a_form_is_not_dropped_in_silence(scripted: Served) -> None:
    part = b'--B\r\nContent-Disposition: form-data; name="data"\r\nContent-Type: application/json\r\n\r\n[[1, 2]]\r\n'
    form = {"content-type": "multipart/form-data; boundary=B"}
    (answer,) = scripted.ask([2 * part + b"--B--\r\n"], [form])
    assert (answer.code, "several" in str(answer.value)) == (400, True)


def test_text_is_no_number(scripted: Served) -> None:
    csv = [b"1,abc", b"sepal,petal\n1,2", b"1,2\n3,x", b"1,1e39", b"1,inf"]
    as_json = [b"[1, 1e39]", b"[1, 1e999]", b"[1, NaN]", b"[1, Infinity]", b'[1, "2"]']
    kinds = [{"content-type": "text/csv"}] * len(csv) + [JSON] * len(as_json)
    assert [answer.code for answer in scripted.ask([*csv, *as_json], kinds)] == [400] * len(kinds)


def test_nan_is_never_json(scripted: Served) -> None:
    bodies = [b"1,nan", b"1,", b"1,2", b"3e38,3e38"]
    answers = scripted.ask(bodies, [{"content-type": "text/csv"}] * 4)
    assert [answer.code for answer in answers] == [500, 500, 200, 500]
    assert answers[2].value == [3.0]
    (answer,) = scripted.ask([b"1,nan"], [{"content-type": "text/csv", "accept": "text/csv"}])
    assert (answer.code, answer.body) == (200, b"nan\n"), "as the toolkit has it: a form that has a word for it"


def test_a_second_models_code_is_never_taken_for_the_firsts(own: Served, tmp_path: Path) -> None:
    folder = unpacked(tmp_path, "other", {"code/inference.py": OWN, "factor.json": "4"})
    with pytest.raises(ImportError, match=r"another inference\.py is loaded"):
        Served.of(build(folder, folder / "store"), {})


def test_one_that_has_transform_fn_and_the_others_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "inference", raising=False)
    both = OWN + "\ndef transform_fn(model, body, kind, accept):\n    return body\n"
    folder = unpacked(tmp_path, "both", {"code/inference.py": both, "factor.json": "3"})
    archive = build(folder, folder / "store")
    with pytest.raises(ValueError, match="transform_fn stands for"):
        Served.of(archive, {})


def unproven(folder: Path) -> Path:
    """Its archive, built without a worker."""
    return build(folder, folder / "store", prove=lambda laid_out, spec: None)


ONE = """
def model_fn(model_dir):
    return 1

def transform_fn(model, body, kind, accept):
    return "%s", accept
"""


@pytest.mark.parametrize(
    ("files", "program", "why"),
    [
        ({"code/predictor.py": ONE}, "predict.py", r"code/predict\.py is named as the program, but is not there"),
        ({"code/predictor.py": ONE}, "", r"code/predictor\.py has functions, but nothing names it"),
        ({"code/predictor.py": ONE, "code/inference.py": "import os"}, "", r"code/predictor\.py has functions"),
        ({}, "inference.py", "is not there"),
    ],
)
def test_functions_that_nobody_would_find_are_not_built(files: dict[str, str], program: str, why: str, tmp_path: Path) -> None:
    folder = unpacked(tmp_path, "lost", {**files, "factor.json": "3"}, program)
    with pytest.raises(SlotwiseError, match=why):
        unproven(folder)


def test_code_that_files_leaves_out_is_not_left_out_in_silence(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, "without", {"code/inference.py": ONE})
    (folder / "model.toml").write_text(TOML.format(name="without", files="[]"))
    with pytest.raises(SlotwiseError, match=r"would not hold code/inference\.py"):
        unproven(folder)


def test_the_archives_own_program_wins_over_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("first_program", "second_program"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    files = {"code/first_program.py": ONE % "the first", "code/second_program.py": ONE % "the second"}
    archive = unproven(unpacked(tmp_path, "two", files, "first_program.py"))
    monkeypatch.setenv("SAGEMAKER_PROGRAM", "second_program.py")
    assert Served.of(archive, {}).ask([b"1"])[0].body == b"the first"


@pytest.mark.parametrize(("program", "why"), [("predict.py", "is not there"), ("empty_program.py", "defines none of")])
def test_a_program_that_the_environment_names_has_its_functions(
    program: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = unproven(unpacked(tmp_path, "env", {"code/inference.py": ONE, "code/empty_program.py": "import os"}))
    monkeypatch.setenv("SAGEMAKER_PROGRAM", program)
    with pytest.raises(ValueError, match=why):
        Served.of(archive, {})
