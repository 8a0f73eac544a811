"""The handlers of 0.2.0, as they were, in today's pipeline: each answers what it answered then. Engines are made of numpy."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slotwise.worker import Answer, Headers, Pipeline, Request, Settings
from slotwise.worker.inputs.text import Vocabulary

FOLDER = Path(__file__).parents[1] / "fixtures" / "handlers-0.2.0"


def handler(name: str) -> Any:
    """An instance of the handler of this file."""
    spec = importlib.util.spec_from_file_location(f"earlier_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return type(module.handle.__self__.handler)()


def served(name: str, model_dir: Path, model: dict[str, Any]) -> Pipeline:
    """The handler, started."""
    settings = Settings(batch_size=8, threads=1, decode_threads=2, model={"name": name, **model})
    return Pipeline.start(handler(name), model_dir, settings)


def ask(pipeline: Pipeline, *bodies: bytes, **headers: str) -> list[Answer]:
    """One batch."""
    return pipeline.answer([Request(body, Headers(headers), str(i)) for i, body in enumerate(bodies)])


def said(answers: Sequence[Answer]) -> list[Any]:
    """What was answered with 200, and the status of the others."""
    return [json.loads(answer.body) if answer.status == 200 else answer.status for answer in answers]


def picture(shade: int) -> bytes:
    """A PNG of one grey."""
    data = io.BytesIO()
    Image.new("RGB", (40, 30), (shade, shade, shade)).save(data, "png")
    return data.getvalue()


def test_one_that_uses_most_hooks(tmp_path: Path) -> None:
    (tmp_path / "scale.json").write_text('{"weights": [1.0, 10.0, 100.0]}')
    pipeline = served("sums", tmp_path, {"options": {"unit": "points"}})
    one = {"sum": 321.0, "mean": 2.0, "unit": "points", "first": 1.0}
    bad = {"error": {"code": 422, "message": "a record is three numbers"}}
    answers = ask(pipeline, b"[1, 2, 3]", b'[[1, 2, 3], [0, 0, "four"]]', b"x", b"[666, 0, 0]", b"[-1, -1, -1]")
    assert said(answers) == [one, [one, bad], 400, 500, 500]
    assert answers[0].headers["x-sums"] == "0.2.0"
    assert ask(pipeline, b"[4, 5, 6]", Accept="text/plain")[0].body == b"654.0"
    refused = pipeline.answer([Request(b"[1, 1, 1]", query={"refuse": "1"}), Request(b"[1, 1, 1]")])
    assert [answer.status for answer in refused] == [400, 200]
    forms = pipeline.answer([Request(b"[1, 2, 3]", more=[b"no", b"[1, 2, 3]"])])
    assert [list(part) for part in said(forms)[0]] == [list(one), ["error"], list(one)]
    counted = [metric for metric in pipeline.hooks.handler.metrics.take() if metric.name == "BodiesDecoded"]
    assert sum(metric.value for metric in counted) == 8  # without the two that are no JSON


@pytest.fixture
def numpy_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that gives the sum of a row, and zero."""

    def load_engine(model_dir: Path, settings: Settings, handler: Any = None) -> Any:
        def run(inputs: Any) -> Any:
            sums = np.asarray(inputs, np.float64).reshape(len(inputs), -1).sum(1)
            return np.stack([sums, np.zeros(len(inputs))], 1)

        return run

    monkeypatch.setattr("slotwise.worker.engines.load_engine", load_engine)


@pytest.mark.usefixtures("numpy_engine")
def test_tensors(tmp_path: Path) -> None:
    model = {"input": {"shape": [2], "dtype": "float32"}, "labels": ["up", "down"], "top_k": 1}
    pipeline = served("tensor_classifier", tmp_path, model)
    saved = io.BytesIO()
    np.save(saved, np.float32([2, 2]))
    bodies = [np.float32([1, 2]).tobytes(), saved.getvalue(), b"abc", np.float32([np.nan, 1]).tobytes()]
    up = [{"label": "up", "probabilities": {"up": share}} for share in (0.952574, 0.982014)]
    assert said(ask(pipeline, *bodies)) == [*up, 400, 422]
    assert said(ask(pipeline, b"[-1, -2]", **{"Content-Type": "application/json"}))[0]["label"] == "down"
    assert ask(pipeline, bodies[0], Accept="text/plain")[0].body == b"up"


@pytest.mark.usefixtures("numpy_engine")
def test_pictures(tmp_path: Path) -> None:
    described = {"shape": [3, 8, 8], "dtype": "float32", "mean": [0.5] * 3, "std": [0.5] * 3, "resize": 8}
    pipeline = served("image_classifier", tmp_path, {"input": described, "labels": ["light", "dark"], "top_k": 2})
    answers = said(ask(pipeline, picture(255), picture(0), b"no picture"))
    assert [answer if isinstance(answer, int) else answer["label"] for answer in answers] == ["light", "dark", 400]
    assert answers[0]["probabilities"] == {"light": 1.0, "dark": 0.0}


def facts(model_dir: Path, **about: Any) -> None:
    """What a build knows about pretrained weights."""
    (model_dir / "model").mkdir()
    (model_dir / "model" / "slotwise.json").write_text(json.dumps({"note": "a stand-in", "threads": 1, **about}))


def test_captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = SimpleNamespace(decode=lambda tokens, skip_special_tokens: " ".join(["dark", "light"][token] for token in tokens))
    monkeypatch.setattr("slotwise.worker.engines.git.load_words", lambda folder: words)
    monkeypatch.setattr(
        "slotwise.worker.engines.git.load",
        lambda model_dir, settings, handler, max_output_tokens: lambda rows: [[int(row.mean() > 127)] * 2 for row in rows],
    )
    facts(tmp_path, image={"shape": [3, 8, 8]})
    pipeline = served("captioner", tmp_path, {})
    answers = ask(pipeline, picture(250), b"no picture", picture(3))
    assert said(answers) == [{"caption": "light light"}, 400, {"caption": "dark dark"}]
    assert answers[0].headers["x-model-note"] == "a stand-in"
    assert ask(pipeline, picture(250), Accept="text/plain")[0].body == b"light light"


class Words:
    """A sentencepiece model whose pieces are words."""

    def encode(self, text: str, out_type: type) -> list[str]:
        return [f"▁{word}" for word in text.split()]

    def decode(self, pieces: Sequence[str]) -> str:
        return "".join(pieces).replace("▁", " ").strip()


def test_translations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁one", "▁two"]
    vocabulary = Vocabulary(Words(), pieces, {"en": 6, "de": 7})
    monkeypatch.setattr(Vocabulary, "load", classmethod(lambda kind, folder, languages: vocabulary))
    monkeypatch.setattr(
        "slotwise.worker.engines.translation.load_engine",
        lambda model_dir, settings, *, beams, max_output_tokens: lambda sources, targets: [row[1:-1][::-1] for row in sources],
    )
    facts(tmp_path, languages={"en": 6, "de": 7})
    pipeline = served("translator", tmp_path, {})

    def body(*texts: Any, source: str = "en", target: str = "de") -> bytes:
        records = [{"id": f"r{i}", "text": text} for i, text in enumerate(texts)]
        return json.dumps({"payload": {"fromLang": source, "toLang": target, "records": records}}).encode()

    answers = said(ask(pipeline, body("one two", "two one one"), body("one", target="xx"), body("one", target="en"), b"no"))
    assert answers[1:] == [422, answers[2], 400]
    assert [record["text"] for record in next(iter(answers[0].values()))] == ["two one", "one one two"]
    assert [record["text"] for record in next(iter(answers[2].values()))] == ["one"]
