"""A detector answers boxes in the pixels of the picture that was sent; what its numbers are is said, and confirmed at build."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from slotwise.archive.build import build
from slotwise.errors import SlotwiseError
from slotwise.worker.tensors.boxes import BoxRules, found, uncovered
from tests.worker.serving import Served

graphs = pytest.importorskip("tests.archive.graphs")
pytest.importorskip("onnxruntime")
from tests.archive.graphs import FLOAT, node  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_home", "no_proofs")

onnx = graphs.onnx
CORNERS = np.array([[0, 0, 4, 4], [4, 0, 8, 4], [0, 4, 4, 8], [4, 4, 8, 8]], np.float32)  # the quarters of 8 x 8
OPTIONS = 'boxes = "boxes"\nscores = "scores"\nform = "corners"\nunit = "pixels"'
COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "": (0, 0, 0)}
RULES = BoxRules("corners", "pixels", logits=False)


def graph(folder: Path, boxes: Any = CORNERS, *, logits: bool = False) -> Path:
    """A picture [b, 3, 8, 8] to its quarters [b, 4, 4], and how red, green and blue each is [b, 4, 3]."""
    nodes = [
        node("AveragePool", "x", "p", kernel_shape=[4, 4], strides=[4, 4]), node("Reshape", "p flat", "f"),
        node("Transpose", "f", "t", perm=[0, 2, 1]), node("Mul", "t many", "m"), node("Sub", "m less", "scores"),
        node("Slice", "t zero one two", "s"), node("Mul", "s nought", "n"), node("Add", "n fixed", "boxes"),
    ]  # fmt: skip
    many, less = (20.0, 10.0) if logits else (1.0, 0.0)
    weights: dict[str, Any] = {"flat": np.array([0, 3, 4]), "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]),
                               "nought": np.float32([0]), "fixed": np.float32(boxes)[None], "many": np.float32([many]),
                               "less": np.float32([less])}  # fmt: skip
    info = onnx.helper.make_tensor_value_info
    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    made = [info("boxes", FLOAT, ["b", 4, 4]), info("scores", FLOAT, ["b", 4, 3])]
    body = onnx.helper.make_graph(nodes, "net", [info("x", FLOAT, ["b", 3, 8, 8])], made, arrays)
    onnx.save(onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), folder / "net.onnx")
    return folder


def described(folder: Path, options: str = OPTIONS, top: str = 'output = "probabilities"', shape: str = "[3, 8, 8]") -> Path:
    (folder / "model.toml").write_text(
        f'name = "net"\nhandler = "detector"\nlabels = ["red", "green", "blue"]\n{top}\n[input]\nshape = {shape}\n'
        f'[options]\n{options}\n[weights]\nonnx = "net.onnx"\n'
    )
    return folder


def picture(colours: list[str], size: tuple[int, int]) -> bytes:
    """A PNG of four quarters."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    for i, colour in enumerate(colours):
        down, across = (slice(0, half) if first else slice(half, None)
                        for first, half in ((i < 2, size[1] // 2), (i % 2 == 0, size[0] // 2)))  # fmt: skip
        pixels[down, across] = COLOURS[colour]
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def truth(colours: list[str], size: tuple[int, int]) -> list[tuple[list[float], str]]:
    scale = np.array([size[0] / 8, size[1] / 8] * 2)
    return [((CORNERS[i] * scale).round(2).tolist(), colour) for i, colour in enumerate(colours) if colour]


SENT = [([list(COLOURS)[(i * 7 + j * (i + 1)) % 4] for j in range(4)], (16 * (1 + i % 3), 16 * (1 + i % 5))) for i in range(16)]
FORMS = {
    "corners, pixels": (CORNERS, OPTIONS, False),
    "corners, fractions": (CORNERS / 8, OPTIONS.replace("pixels", "fractions"), False),
    "centre, pixels": (np.concatenate([(CORNERS[:, :2] + CORNERS[:, 2:]) / 2, CORNERS[:, 2:] - CORNERS[:, :2]], 1),
                       OPTIONS.replace("corners", "centre"), True),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_boxes_are_the_pictures_own_alone_and_among_mates(tmp_path: Path, form: str) -> None:
    """On both engines; one of eight is no picture."""
    pytest.importorskip("openvino")
    boxes, options, logits = FORMS[form]
    top = f'output = "{"logits" if logits else "probabilities"}"'
    archive = build(described(graph(tmp_path, boxes, logits=logits), options, top), tmp_path / "store")
    for engine in ("onnxruntime", "openvino"):
        served = Served.of(archive, {"engine": engine, "precision": "fp32"}, batch_size=16)
        bodies = [picture(*one) for one in SENT]
        for batch in [[i] for i in range(3)] + [list(range(16))]:
            answers = served.ask([bodies[i] if len(batch) == 1 or i % 8 != 5 else b"no picture" for i in batch])
            for i, answer in zip(batch, answers, strict=True):
                if len(batch) > 1 and i % 8 == 5:
                    assert 400 <= answer.code < 500
                    continue
                got = sorted((one["box"], one["label"]) for one in answer.value)
                assert got == sorted(truth(*SENT[i])), (engine, i, answer.body)
                assert all(one["score"] > 0.8 for one in answer.value)


def test_a_list_of_one_picture_is_answered_by_a_list_of_its_boxes(tmp_path: Path) -> None:
    archive = build(described(graph(tmp_path)), tmp_path / "store")
    sent = base64.b64encode(picture(*SENT[1])).decode()
    bodies = [json.dumps(one).encode() for one in (sent, [sent], [sent, sent], [sent, "AAAA"])]
    alone, one, two, bad = (answer.value for answer in Served.of(archive, {}).ask(bodies))
    assert (one, two, bad[0]) == ([alone], [alone, alone], alone)
    assert bad[1]["error"]["code"] == 400


@pytest.mark.parametrize(
    ("changes", "said", "line"),
    [
        ({"top": ""}, "does not say what its scores are", 'output = "probabilities"'),
        ({"options": OPTIONS.replace('form = "corners"\n', "")}, "must say form", 'form = "corners"'),
        ({"options": OPTIONS.replace("pixels", "inches")}, "must say form", "unit"),
        ({"options": OPTIONS + "\nleast = 2"}, "least and overlap", ""),
        ({"options": OPTIONS.replace('"boxes"', '"box"')}, "nobody says which are boxes and scores", 'boxes = "BOXES"'),
        ({"options": 'boxes = "scores"\nscores = "boxes"\nform = "corners"\nunit = "pixels"'}, "not [n, 4]", ""),
        ({"shape": "[3, 9, 9]"}, "model.toml says [3, 9, 9]", "correct"),
        ({"options": OPTIONS.replace("pixels", "fractions")}, "which are no fractions", 'unit = "pixels"'),
        ({"options": OPTIONS, "boxes": CORNERS / 8}, "less than a pixel", 'unit = "fractions"'),
        ({"options": OPTIONS, "boxes": CORNERS[:, [2, 3, 0, 1]]}, "left of their left", 'form = "centre"'),
        ({"options": OPTIONS, "logits": True}, "which are no probabilities", 'output = "logits"'),
    ],
)
def test_what_nobody_says_or_what_is_not_so_is_refused(tmp_path: Path, changes: dict[str, Any], said: str, line: str) -> None:
    made = {name: changes.pop(name) for name in ("boxes", "logits") if name in changes}
    folder = described(graph(tmp_path, **made), **{"options": OPTIONS + "\nleast = 0.001", **changes})
    text = (folder / "model.toml").read_text()
    if "least" not in text:
        (folder / "model.toml").write_text(text.replace("[options]\n", "[options]\nleast = 0.001\n"))
    (folder / "red.png").write_bytes(picture(["red"] * 4, (8, 8)))
    (folder / "model.toml").write_text(
        (folder / "model.toml").read_text().replace("[input]", 'examples = ["red.png"]\n[input]')
    )
    with pytest.raises(SlotwiseError) as raised:
        build(folder, folder / "store")
    assert said in raised.value.message
    assert line in raised.value.hint


def test_engines_are_compared_on_real_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not on pixels of 0 and 1 only, which all engines may answer alike."""
    from slotwise.archive.network import named_tensors

    graph(tmp_path)
    body = onnx.load(tmp_path / "net.onnx")
    body.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, ["b", 8, 8, 3]))
    body.graph.node[0].input[0] = "scaled"
    weights = [onnx.numpy_helper.from_array(np.float32([255]), "white")]
    body.graph.initializer.extend(weights)
    first = [
        node("Cast", "x", "c", to=FLOAT),
        node("Transpose", "c", "chw", perm=[0, 3, 1, 2]),
        node("Div", "chw white", "scaled"),
    ]
    rest = list(body.graph.node)
    del body.graph.node[:]
    body.graph.node.extend([*first, *rest])
    onnx.save(body, tmp_path / "net.onnx")
    seen: list[int] = []
    real = named_tensors._run

    def looked(engine: Any, rows: Any, inputs: Any) -> Any:
        seen.extend(int(row["x"].max()) for row in rows)
        return real(engine, rows, inputs)

    monkeypatch.setattr(named_tensors, "_run", looked)
    build(described(tmp_path, shape='[3, 8, 8]\ndtype = "uint8"'), tmp_path / "store")
    assert min(seen) > 200


numbers = st.integers(0, 50)


def shared(one: Any, other: Any) -> float:
    """How much of the union of two boxes both have."""
    across = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    down = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return across * down / (sum(areas) - across * down)


@given(
    st.lists(st.tuples(numbers, numbers, numbers, numbers, st.integers(0, 1)), min_size=1, max_size=20),
    st.sampled_from([0.3, 0.5, 0.7]),
)
def test_what_a_better_box_of_its_class_covers_is_left_out(rows: list[Any], overlap: float) -> None:
    """Box by box, as the definition has it; whole numbers, so that no rounding decides."""
    boxes = np.array([[x, y, x + w + 1, y + h + 1] for x, y, w, h, _ in rows], np.float64)
    scores = [0.5 + i / 100 for i in range(len(rows))]
    table = np.zeros((len(rows), 2))
    for i, (*_, kind) in enumerate(rows):
        table[i, kind] = scores[i]
    kept: list[int] = []
    for i in reversed(range(len(rows))):
        if all(rows[i][4] != rows[k][4] or shared(boxes[i], boxes[k]) <= overlap for k in kept):
            kept.append(i)
    got = found(boxes, table, BoxRules("corners", "pixels", logits=False, least=0.4, overlap=overlap), (200, 200), (200, 200))
    assert got == [(tuple(boxes[i].tolist()), rows[i][4], scores[i]) for i in kept]


def test_edges_of_the_picture_empty_boxes_and_numbers_that_are_none() -> None:
    over = found([[-9, -9, 900, 4]], [[0.9]], RULES, (8, 8), (80, 40))
    assert over == [((0.0, 0.0, 80.0, 20.0), 0, 0.9)]
    assert found(np.zeros((0, 4)), np.zeros((0, 3)), RULES, (8, 8), (8, 8)) == []
    assert uncovered(np.zeros((3, 4)), 0.5).all()
    with pytest.raises(ValueError, match="not finite"):
        found([[0, 0, 1, float("nan")]], [[0.9]], RULES, (8, 8), (8, 8))
