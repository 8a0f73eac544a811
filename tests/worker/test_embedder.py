"""An embedder answers what the library gives, pooled as its folder or model.toml says; what nobody says is refused at build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from slotwise.archive.build import build  # noqa: E402
from slotwise.errors import SlotwiseError  # noqa: E402
from slotwise.worker.texts.text_engine import POOLING, pooled  # noqa: E402
from tests.thirty.texts import outputs, saved, sentences  # noqa: E402
from tests.worker.serving import Served  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_home", "no_proofs")

SAID = '[options]\npooling = "{}"\nnormalise = {}\n'
MODULES = ["Transformer", "Pooling", "Normalize"]


def described(folder: Path, more: str = "", top: str = "") -> Path:
    (folder / "model.toml").write_text(f'name = "net"\nhandler = "embedder"\nfiles = ["model"]\n{top}\n{more}\n', "utf-8")
    return folder


def built(folder: Path, more: str = "") -> Served:
    return Served.of(build(described(folder, more), folder / "store"), {}, batch_size=16)


def refusal(folder: Path, more: str = "", top: str = "") -> tuple[str, str]:
    with pytest.raises(SlotwiseError) as raised:
        build(described(folder, more, top), folder / "store")
    return raised.value.message, raised.value.hint


def modules(folder: Path, pooling: dict[str, Any], kinds: list[str] = MODULES, **first: Any) -> None:
    """What sentence-transformers writes beside the model."""
    paths = ["", "1_Pooling", "2_Normalize", "3_More"]
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in zip(paths, kinds, strict=False)]
    (folder / "model" / "1_Pooling").mkdir(exist_ok=True)
    for name, data in (("modules.json", listed), ("1_Pooling/config.json", pooling), ("sentence_bert_config.json", first)):
        (folder / "model" / name).write_text(json.dumps(data))


def own(states: Any, pooling: str) -> Any:
    """One text's vector, as numpy has it: states [t, size]."""
    return {"mean": states.mean(0), "first": states[0], "last": states[-1], "max": states.max(0)}[pooling]


@given(st.sampled_from(POOLING), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.booleans(), st.integers(0, 99))
def test_padding_on_either_side_is_in_nobodys_vector(pooling: str, lengths: list[int], left: bool, seed: int) -> None:
    draw, most = np.random.default_rng(seed), max(lengths)
    states, mask = draw.normal(size=(len(lengths), most, 3)) * 9, np.zeros((len(lengths), most), np.int64)
    rows = [draw.normal(size=(length, 3)) for length in lengths]
    for i, row in enumerate(rows):
        place = slice(most - len(row), most) if left else slice(0, len(row))
        states[i, place], mask[i, place] = row, 1
    found = pooled(torch.from_numpy(states), torch.from_numpy(mask), pooling).numpy()
    np.testing.assert_allclose(found, [own(row, pooling) for row in rows], rtol=1e-12)


@pytest.mark.parametrize("pooling", ["mean", *(pytest.param(one, marks=pytest.mark.slow) for one in POOLING if one != "mean")])
def test_the_embedding_is_the_librarys_alone_and_among_mates(tmp_path: Path, pooling: str) -> None:
    model, tokenizer = saved(tmp_path, "Model")
    served, asks = built(tmp_path, SAID.format(pooling, "true")), sentences()
    vectors = [own(outputs(model, tokenizer, one, part="last_hidden_state")[0], pooling) for one in asks]
    answers = served.ask([one.encode() for one in asks[:8]] + [b" "] + [one.encode() for one in asks[8:]])
    assert answers.pop(8).code == 422
    for vector, text, answer in zip(vectors, asks, answers, strict=True):
        np.testing.assert_allclose(answer.value["embedding"], vector / np.linalg.norm(vector), atol=1e-5)
        np.testing.assert_allclose(served.ask([text.encode()])[0].value["embedding"], answer.value["embedding"], atol=1e-6)
    raw = built(tmp_path, SAID.format(pooling, "false")).ask([asks[0].encode()])[0].value
    np.testing.assert_allclose(raw["embedding"], vectors[0], atol=1e-5)


def test_what_sentence_transformers_wrote_is_followed_or_refused(tmp_path: Path) -> None:
    model, tokenizer = saved(tmp_path, "Model")
    text = sentences()[0]
    first = own(outputs(model, tokenizer, text, part="last_hidden_state")[0], "first")
    modules(tmp_path, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, max_seq_length=50)
    served = built(tmp_path)
    np.testing.assert_allclose(served.ask([text.encode()])[0].value["embedding"], first / np.linalg.norm(first), atol=1e-5)
    assert served.ask([b"a " * 50])[0].value["error"]["message"] == "the text has 52 tokens, the model takes 50"
    assert refusal(tmp_path, SAID.format("mean", "true"))[1] == "write no pooling below [options]"
    modules(tmp_path, {"pooling_mode": "mean"}, MODULES[:2])
    assert "normalise is False, and model.toml True" in refusal(tmp_path, SAID.format("mean", "true"))[0]
    for pooling, kinds, more, said in (
        ({"pooling_mode_mean_sqrt_len_tokens": True}, MODULES, {}, "it pools by mean_sqrt_len_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, MODULES, {}, "it pools by cls and max"),
        ({"pooling_mode": "mean"}, [*MODULES[:2], "Dense"], {}, "Transformer, Pooling, Dense"),
        ({"pooling_mode": "mean"}, MODULES, {"do_lower_case": True}, "it makes letters small"),
    ):
        modules(tmp_path, pooling, kinds, **more)
        assert said in refusal(tmp_path)[0]
    modules(tmp_path, {"pooling_mode": "mean"})
    (tmp_path / "model" / "config_sentence_transformers.json").write_text('{"default_prompt_name": "query"}')
    assert "it puts a prompt before each text" in refusal(tmp_path)[0]


def test_what_nobody_says_is_refused_with_the_line_to_write(tmp_path: Path) -> None:
    saved(tmp_path, "Model")
    line = 'write in model.toml below [options]: pooling = "mean" (or first, last, max), and normalise = true (or false)'
    assert refusal(tmp_path)[1] == line
    assert refusal(tmp_path, '[options]\npooling = "mean"')[1] == line
    assert refusal(tmp_path, SAID.format("middle", "true"))[1] == line
    assert refusal(tmp_path, SAID.format("mean", "true"), 'labels = ["a"]')[0] == "net answers embeddings"
    saved(tmp_path, "ForSequenceClassification")
    assert "says BertForSequenceClassification, and no ...Model" in refusal(tmp_path, SAID.format("mean", "true"))[0]


def test_weights_that_would_be_made_up_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, "Model")
    config = tmp_path / "model" / "config.json"
    about = json.loads(config.read_text()) | {"architectures": ["BertForSequenceClassification"]}
    config.write_text(json.dumps(about | {"id2label": {"0": "a", "1": "b"}}))
    (tmp_path / "model.toml").write_text('name = "net"\nhandler = "text_classifier"\nfiles = ["model"]\nlabels = ["a", "b"]\n')
    with pytest.raises(SlotwiseError) as raised:
        build(tmp_path, tmp_path / "store")
    assert "its weights lack classifier.bias, classifier.weight, which would be made up" in raised.value.message
