"""Texts and pairs for encoders of transformers: tiny ones made here, compared with the library itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
from slotwise.archive.build import build  # noqa: E402
from slotwise.errors import SlotwiseError  # noqa: E402
from slotwise.worker import Headers, SlotError, UnsupportedMedia  # noqa: E402
from slotwise.worker.texts.text_body import MAX_TEXTS, is_list_of_texts, texts_of  # noqa: E402
from slotwise.worker.texts.tokens import TextTokenizer, reads_word_by_word  # noqa: E402
from slotwise.zoo.transformers_files import ready, save  # noqa: E402
from tests.worker.serving import Served  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_home", "no_proofs")

JSON = {"content-type": "application/json"}
OWN = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*OWN, "the", "a", "cat", "dog", "sat", "ran", "on", "mat", "fast", "slowly", "and", "then", "it", "was", "good", "bad"]
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXTS = ["the cat sat", "a dog ran on the mat and then it was good", "it was bad " * 9, "cat", "the dog ran slowly and fast"]
NAMES = ["calm", "glad", "sad"]


def saved(folder: Path, names: list[str] | None = None, *, limit: int = 64, kind: str = "Bert", **config: Any) -> Any:
    """A tiny encoder with made-up weights, as save_pretrained writes it to FOLDER/model; it and its tokenizer."""
    ready()
    import transformers

    names = NAMES if names is None else names
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    size = SIZE if kind == "Bert" else {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    made = getattr(transformers, f"{kind}Config")(
        vocab_size=len(WORDS), max_position_embeddings=limit, pad_token_id=0, **size, **labels, **config
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = getattr(transformers, f"{kind}ForSequenceClassification")(made).eval()
        with torch.no_grad():
            for weights in model.parameters():
                weights.add_(torch.randn_like(weights) * 0.2)
    save(model, folder / "model")
    tokenizer = getattr(transformers, f"{kind}Tokenizer")(vocab={w: i for i, w in enumerate(WORDS)}, model_max_length=limit)
    tokenizer.save_pretrained(folder / "model")
    return model, tokenizer


def described(folder: Path, more: str = "", files: str = 'files = ["model"]') -> Path:
    (folder / "model.toml").write_text(f'name = "net"\nhandler = "text_classifier"\n{files}\n{more}\n', "utf-8")
    return folder


def served(folder: Path, more: str = "") -> Served:
    return Served.of(build(described(folder, more), folder / "store"), {}, batch_size=16)


def refusal(folder: Path, more: str = "", files: str = 'files = ["model"]') -> tuple[str, str]:
    with pytest.raises(SlotwiseError) as raised:
        build(described(folder, more, files), folder / "store")
    return raised.value.message, raised.value.hint


def logits(model: Any, tokenizer: Any, *texts: str) -> Any:
    """What the library itself gives for one record."""
    with torch.inference_mode():
        return model(**tokenizer(*texts, return_tensors="pt", truncation=True)).logits[0].double().numpy()


def softmax(values: Any) -> Any:
    return np.exp(values - values.max()) / np.exp(values - values.max()).sum()


def in_order(answer: Any, names: list[str]) -> list[float]:
    return [answer["probabilities"][name] for name in names]


def test_the_answers_are_the_librarys_alone_and_among_mates_with_one_bad_in_eight(tmp_path: Path) -> None:
    model, tokenizer = saved(tmp_path)
    net = served(tmp_path)
    expected = [softmax(logits(model, tokenizer, text)) for text in TEXTS]
    for text, likely in zip(TEXTS, expected, strict=True):
        (alone,) = net.ask([text.encode()])
        assert in_order(alone.value, NAMES) == pytest.approx(likely.tolist(), abs=5e-6)
        assert alone.value["label"] == NAMES[int(likely.argmax())]
    for bad in range(8):
        bodies = [b" " if i % 8 == bad else TEXTS[i % len(TEXTS)].encode() for i in range(16)]
        for i, answer in enumerate(net.ask(bodies)):
            assert answer.code == (422 if i % 8 == bad else 200)
            if answer.code == 200:
                assert in_order(answer.value, NAMES) == pytest.approx(expected[i % len(TEXTS)].tolist(), abs=5e-6)


def test_rows_of_one_length_run_together_and_none_is_padded_to_its_mates(tmp_path: Path) -> None:
    saved(tmp_path)
    handler = served(tmp_path).handler
    items = [handler.tokenizer((text, None)) for text in [*TEXTS, *TEXTS]]
    groups = handler.groups(items)
    assert sorted(i for group in groups for i in group) == list(range(10))
    for group in groups:
        widths = {handler.tokenizer.width(len(items[i][0])) for i in group}
        assert len(widths) == 1
        assert handler.collate([items[i] for i in group])["input_ids"].shape == (len(group), *widths)
    assert [handler.tokenizer.width(n) for n in (1, 16, 17, 33, 64)] == [16, 16, 32, 64, 64]


def test_pairs_and_token_types(tmp_path: Path) -> None:
    model, tokenizer = saved(tmp_path, ["no", "yes"])
    net = served(tmp_path, "[options]\npairs = true")
    pair = {"text": TEXTS[0], "text_pair": TEXTS[1]}
    likely = softmax(logits(model, tokenizer, *pair.values()))
    one, listed, single, plain = net.ask(
        [
            json.dumps(pair).encode(),
            json.dumps({"inputs": [pair, {"text": "the cat"}]}).encode(),
            b'{"text": "the cat"}',
            b"cat",
        ],
        [{}, JSON, JSON, {}],
    )
    assert in_order(one.value, ["no", "yes"]) == pytest.approx(likely.tolist(), abs=5e-6)
    assert listed.value[0] == one.value
    wanted = 'this model takes pairs: {"text": "...", "text_pair": "..."}'
    assert listed.value[1]["error"] == {"code": 422, "message": wanted}
    assert (single.code, plain.code) == (422, 422)


def test_a_model_without_token_types(tmp_path: Path) -> None:
    model, tokenizer = saved(tmp_path, kind="DistilBert")
    (answer,) = served(tmp_path).ask([TEXTS[1].encode()])
    assert in_order(answer.value, NAMES) == pytest.approx(softmax(logits(model, tokenizer, TEXTS[1])).tolist(), abs=5e-6)


def test_several_labels_a_text_and_a_number_a_text(tmp_path: Path) -> None:
    many = tmp_path / "many"
    many.mkdir()
    model, tokenizer = saved(many, problem_type="multi_label_classification")
    (answer,) = served(many).ask([TEXTS[1].encode()])
    own = 1 / (1 + np.exp(-logits(model, tokenizer, TEXTS[1])))
    assert in_order(answer.value, NAMES) == pytest.approx(own.tolist(), abs=5e-6)
    message, _ = refusal(many, 'output = "logits"')
    assert message == "net: its config.json says that a text has several labels, and model.toml says logits"
    one = tmp_path / "one"
    one.mkdir()
    model, tokenizer = saved(one, ["LABEL_0"])
    message, line = refusal(one)
    assert message == "net gives one number a text, and its config.json has no problem_type"
    assert line.startswith('write in model.toml: output = "regression"')
    number = logits(model, tokenizer, TEXTS[1])[0]
    (answer,) = served(one, 'output = "regression"').ask([TEXTS[1].encode()])
    assert answer.value == {"value": pytest.approx(number, abs=1e-5)}
    (answer,) = served(one, 'output = "probabilities"\nlabels = ["no", "yes"]').ask([TEXTS[1].encode()])
    assert answer.value["probabilities"]["yes"] == pytest.approx(1 / (1 + np.exp(-number)), abs=5e-6)


def test_too_long_is_refused_or_cut_as_the_library_cuts(tmp_path: Path) -> None:
    model, tokenizer = saved(tmp_path, limit=20)
    text = "the cat sat on the mat and then " * 4
    net = served(tmp_path)
    fitting, long, endless = net.ask([b"cat " * 18, text.encode(), b"cat " * 2_000])
    assert (fitting.code, long.code, endless.code) == (200, 413, 413)
    assert long.value["error"]["message"] == "the text has 34 tokens, the model takes 20"
    (cut,) = served(tmp_path, "[options]\ntruncate = true").ask([text.encode()])
    assert in_order(cut.value, NAMES) == pytest.approx(softmax(logits(model, tokenizer, text)).tolist(), abs=5e-6)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_text_of_any_length_is_cut_at_the_side_at_which_the_library_cuts(tmp_path: Path, side: str) -> None:
    saved(tmp_path, limit=20)
    config = tmp_path / "model" / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), "truncation_side": side}), "utf-8")
    from transformers import AutoTokenizer

    known = AutoTokenizer.from_pretrained(tmp_path / "model")
    cut = TextTokenizer.load(tmp_path / "model", 20, truncate=True)
    draw = np.random.default_rng(5)
    for words in (10, 30, 60, 2_000, 20_000):
        text = " ".join(draw.choice([*WORDS[5:], "xyz"], words))
        assert cut((text, None))[0].tolist() == known(text, truncation=True)["input_ids"]
    pair = ("the cat sat " * 9, "it was good and bad " * 8)
    assert cut(pair)[0].tolist() == known(*pair, truncation=True)["input_ids"]
    for endless in (("cat" * 9_000, None), ("the cat " + "x" * 9_000 + " the cat", None), ("cat " * 9_000, "dog")):
        with pytest.raises(SlotError, match="more than the 2000 characters that are read"):
            cut(endless)


SPLIT, NONE = {"type": "WhitespaceSplit"}, {"normalizer": None, "added_tokens": []}


@pytest.mark.parametrize(
    ("described", "by_word"),
    [
        (
            {**NONE, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT, {"type": "Metaspace", "split": False}]}},
            True,
        ),
        ({**NONE, "pre_tokenizer": {"type": "ByteLevel", "use_regex": True}}, True),
        ({**NONE, "pre_tokenizer": SPLIT, "normalizer": {"type": "Replace", "pattern": {"Regex": " {2,}"}}}, True),
        ({**NONE, "pre_tokenizer": None}, False),
        ({**NONE, "pre_tokenizer": {"type": "ByteLevel", "use_regex": False}}, False),
        ({**NONE, "pre_tokenizer": {"type": "Metaspace", "split": False}}, False),
        ({**NONE, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "x"}}}, False),
        ({**NONE, "pre_tokenizer": SPLIT, "normalizer": {"type": "Replace", "pattern": {"String": " "}}}, False),
        ({**NONE, "pre_tokenizer": SPLIT, "added_tokens": [{"content": "the end"}]}, False),
    ],
)
def test_of_which_tokenizers_a_part_of_a_text_tells_what_the_whole_would(described: dict[str, Any], by_word: bool) -> None:
    assert reads_word_by_word(described) is by_word


def saved_gpt(folder: Path, side: str, texts: list[str]) -> None:
    """A tiny GPT-2, which counts positions from the beginning of its row, padding included; and texts as its examples."""
    saved(folder, limit=32)
    from transformers import GPT2Config, GPT2ForSequenceClassification, PreTrainedTokenizerFast

    known = PreTrainedTokenizerFast.from_pretrained(folder / "model")
    made = PreTrainedTokenizerFast(
        tokenizer_object=known.backend_tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        padding_side=side,
        model_max_length=32,
        model_input_names=["input_ids", "attention_mask"],
    )
    made.save_pretrained(folder / "model")
    size = {"n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2, "pad_token_id": 0, "initializer_range": 0.5}
    names = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        save(GPT2ForSequenceClassification(GPT2Config(vocab_size=len(WORDS), **size, **names)).eval(), folder / "model")
    for i, text in enumerate(texts):
        (folder / f"{i}.txt").write_text(text, "utf-8")


@pytest.mark.parametrize("texts", [["the cat sat on a mat", "it was good"], []])
def test_where_padding_moves_a_text_at_any_width_nothing_is_built(tmp_path: Path, texts: list[str]) -> None:
    """Two examples that are padded to one width show nothing beside each other."""
    examples = f"examples = {[f'{i}.txt' for i in range(len(texts))]}"
    saved_gpt(tmp_path, "left", texts)
    message, hint = refusal(tmp_path, examples)
    assert message.startswith("net: padding a text changes its numbers by ")
    assert "padding_side" in hint
    saved_gpt(tmp_path, "right", texts)
    assert served(tmp_path, examples).ask([b"the cat"])[0].code == 200


def test_each_form_of_a_body(tmp_path: Path) -> None:
    saved(tmp_path)
    net = served(tmp_path)
    text = TEXTS[0]
    forms: list[tuple[Any, dict[str, str]]] = [
        (text, {}),
        (text, {"content-type": "text/plain; charset=utf-8"}),
        (json.dumps(text), JSON),
        (json.dumps({"text": text}), {}),
        (json.dumps({"inputs": text}), {"content-type": "application/x-www-form-urlencoded"}),
        (json.dumps({"instances": {"text": text}}), JSON),
        (json.dumps({"inputs": text, "parameters": {}, "options": {"wait_for_model": True}}), JSON),
    ]
    answers = net.ask([body.encode() for body, _ in forms], [headers for _, headers in forms])
    assert {answer.code for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 1
    bodies = [json.dumps([text]).encode(), json.dumps({"inputs": [text, ""]}).encode(), b"cat"]
    listed = net.ask(bodies, [JSON, JSON, {"accept": "text/plain"}])
    assert listed[0].value == [answers[0].value]
    assert listed[1].value == [answers[0].value, {"error": {"code": 422, "message": "the text is empty"}}]
    assert listed[2].body.decode() in NAMES
    (literal,) = net.ask([b'{"cat": "sat"}'], [{"content-type": "text/plain"}])
    assert literal.code == 200, "a text that looks like JSON"


@pytest.mark.parametrize(
    ("body", "headers", "code", "said"),
    [
        (b"", {}, 422, "the text is empty"),
        (b'""', JSON, 422, "the text is empty"),
        (b"\xff", {}, 400, "not UTF-8"),
        (b"{", JSON, 400, "not JSON"),
        (b"[]", JSON, 400, "no texts"),
        (b"null", JSON, 422, "the body holds no text"),
        (b"7", JSON, 422, "a record must be a text"),
        (
            b'{"inputs": "a", "parameters": {"top_k": 1}}',
            JSON,
            422,
            "beside 'inputs' this model takes nothing, and 'parameters'",
        ),
        (b'{"inputs": "a", "instances": ["b"]}', JSON, 422, "beside 'inputs' this model takes nothing, and 'instances'"),
        (b'{"txt": "a"}', JSON, 422, 'a record is {"text": "..."}, without \'txt\''),
        (b'{"text": "a", "text_pair": "b"}', JSON, 422, "one text a record"),
        (b'"\\ud800"', JSON, 422, "surrogate"),
        (json.dumps(["a"] * (MAX_TEXTS + 1)).encode(), JSON, 413, "at most 256"),
        (b"[" * 20_000, JSON, 413, "pieces"),
        ("é".encode("latin-1"), {"content-type": "text/plain; charset=latin-1"}, 415, "UTF-8"),
    ],
)
def test_what_is_wrong_with_a_body(one_served: Served, body: bytes, headers: dict[str, str], code: int, said: str) -> None:
    bad, good = one_served.ask([body, b"the cat"], [headers, {}])
    assert (bad.code, good.code) == (code, 200), bad.body
    assert said in bad.value["error"]["message"]


@pytest.fixture(scope="module")
def one_served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("texts")
    saved(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTWISE_HOME", str(folder / "home"))
        return served(folder)


def test_what_cannot_be_built(tmp_path: Path) -> None:
    assert "has no folder model/" in refusal(tmp_path)[0]
    saved(tmp_path)
    message, line = refusal(tmp_path, files="")
    assert (message, line) == ("net does not carry its folder model/", 'write in model.toml: files = ["model"]')
    assert "in the order calm, glad, sad" in refusal(tmp_path, 'labels = ["sad", "glad", "calm"]')[0]
    assert "3 scores, but there are 2 labels" in refusal(tmp_path, 'labels = ["x", "y"]')[0]
    assert "says that a text has one label" in refusal(tmp_path, 'output = "probabilities"')[0]
    (tmp_path / "pair.json").write_text('{"text": "a", "text_pair": "b"}')
    assert refusal(tmp_path, 'examples = ["pair.json"]')[0] == "pair.json: this model takes one text a record, and no text_pair"
    config = tmp_path / "model" / "config.json"
    good = json.loads(config.read_text())
    config.write_text(json.dumps({**good, "architectures": ["BertModel"]}))
    assert "says BertModel, and no ...ForSequenceClassification" in refusal(tmp_path)[0]
    config.write_text(json.dumps({**good, "auto_map": {"AutoModel": "own.py"}}))
    assert "brings code of its own" in refusal(tmp_path)[0]
    config.write_text(json.dumps({**good, "max_position_embeddings": 4096}))
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model" / "pytorch_model.bin")
    assert refusal(tmp_path)[0] == "model/pytorch_model.bin is a pickle"


@given(
    st.binary(max_size=60)
    | st.sampled_from([b'{"text": "\\ud800"}', b'{"inputs": {"inputs": []}}', b'{"text": null}', b"[[]]"]),
    st.sampled_from([JSON, {}, {"content-type": "text/plain"}]),
    st.booleans(),
)
def test_whatever_is_sent_becomes_texts_or_errors(body: bytes, headers: dict[str, str], pairs: bool) -> None:
    try:
        texts = texts_of(body, Headers(headers), pairs=pairs)
    except SlotError as error:
        texts, listed = [error], True
    else:
        listed = is_list_of_texts(body, Headers(headers))
    for one in texts:
        if isinstance(one, SlotError):
            assert 400 <= one.code < 500
        else:
            assert one[0].strip()
            assert (one[1] is not None) == pairs
    assert listed or len(texts) == 1


@pytest.mark.parametrize("body", [b"{no JSON at all", b'{"title": "x"}', b'{"text', b"{}"])
def test_a_text_that_only_looks_like_json_is_a_text(body: bytes) -> None:
    assert texts_of(body, Headers({}), pairs=False) == [(body.decode(), None)]
    assert not is_list_of_texts(body, Headers({}))
    plain = Headers({"content-type": "text/plain"})
    assert texts_of(b'{"text": "x"}', plain, pairs=False) == [('{"text": "x"}', None)]
    with pytest.raises(SlotError, match=r"not JSON|a record is"):
        texts_of(body, Headers(JSON), pairs=False)


def test_a_text_of_which_a_tokenizer_leaves_nothing_is_refused() -> None:
    """The model would answer whatever it makes of padding alone."""
    tokenizers = pytest.importorskip("tokenizers")
    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel({"cat": 1, "[UNK]": 0}, unk_token="[UNK]"))
    bare.normalizer = tokenizers.normalizers.Replace("\u200b", "")
    bare.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    read = TextTokenizer(bare, 0, 8, ("input_ids", "attention_mask"))
    assert read(("\u200bcat", None))[0].tolist() == [1]
    with pytest.raises(SlotError, match="the text has no tokens") as raised:
        read(("\u200b", None))
    assert raised.value.code == 422


@pytest.mark.parametrize("kind", ["application/x-ndjson", "text/csv", "image/png"])
def test_a_kind_of_body_that_holds_no_texts_is_refused(kind: str) -> None:
    with pytest.raises(UnsupportedMedia, match="send texts as text/plain or application/json"):
        texts_of(b'{"text": "good"}', Headers({"content-type": kind}), pairs=False)


def test_json_of_another_name_and_behind_a_mark_is_json() -> None:
    two = [("good", None), ("bad", None)]
    assert texts_of(b'["good", "bad"]', Headers({"content-type": "application/vnd.kserve+json"}), pairs=False) == two
    assert texts_of(b'\xef\xbb\xbf{"text": "good"}', Headers({}), pairs=False) == two[:1]
    assert texts_of(b'\xef\xbb\xbf["good", "bad"]', Headers(JSON), pairs=False) == two
