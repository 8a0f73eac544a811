"""Translation in this process: text and ids, groups, the contract's errors, and both engines on the trained model."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.archive.build import build
from slotwise.errors import SlotwiseError
from slotwise.worker import BadRequest, Pipeline, Request, Settings, SlotError, TooLarge, Unprocessable
from slotwise.worker.engines.ctranslate2 import CTranslate2Engine
from slotwise.worker.engines.m2m100 import M2M100Engine
from slotwise.worker.inputs import translation_request
from slotwise.worker.inputs.text import EOS, UNK, Vocabulary, pack
from slotwise.worker.padding import pad_sequences
from tests.worker.serving import Served
from tests.worker.texts import LANGUAGES, SENTENCES, directions, odd_texts, payload

LIFE = "人生はチョコレートの箱のようなものだ。"


@pytest.fixture(scope="module")
def translation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built archive."""
    return build("translation", tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def served(translation: Path) -> Iterator[Served]:
    """The handler as the profile cpu starts it."""
    made = Served.of(translation, {})
    yield made
    shutil.rmtree(made.model_dir.parent)


@pytest.fixture(scope="module")
def vocabulary(served: Served) -> Vocabulary:
    """The trained model's vocabulary."""
    return served.handler.vocabulary


def ask(served: Served, *bodies: bytes) -> list[Any]:
    return served.ask(bodies)


# Text, groups, padding


def test_ids_are_the_tokenizers_and_special_tokens_stay_text(served: Served, vocabulary: Vocabulary) -> None:
    from slotwise.zoo.transformers_files import ready

    ready()
    from transformers import M2M100Tokenizer

    tokenizer = M2M100Tokenizer.from_pretrained(served.model_dir / "model")
    for sentence in SENTENCES:
        for code, text in zip(LANGUAGES, sentence, strict=True):
            tokenizer.src_lang = code
            ids = vocabulary.encode(text, code)
            assert ids == tokenizer(text).input_ids
            assert vocabulary.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)
    for special in ("</s>", "<pad>", "__fr__", "<s> __ja__ </s>"):
        ids = vocabulary.encode(special, "en")
        assert ids[0] == vocabulary.languages["en"]
        assert ids[-1] == EOS
        assert all(UNK <= i < len(vocabulary.pieces) for i in ids[1:-1]), "no user can say a special token"


@given(st.lists(st.integers(1, 60), max_size=80), st.integers(1, 16), st.integers(1, 200))
def test_groups_hold_every_row_once_within_their_budget(lengths: list[int], max_rows: int, max_tokens: int) -> None:
    groups = pack(lengths, max_rows, max_tokens)
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    for group in groups:
        assert 1 <= len(group) <= max_rows
        assert len(group) == 1 or len(group) * max(lengths[row] for row in group) <= max_tokens


def test_sequences_are_padded_to_the_longest() -> None:
    ids, mask = pad_sequences([[5], [6, 7, 8], []], 1)
    assert ids.tolist() == [[5, 1, 1], [6, 7, 8], [1, 1, 1]]
    assert mask.tolist() == [[1, 0, 0], [1, 1, 1], [0, 0, 0]]
    assert pad_sequences([[5]], 1, multiple=8)[0].shape == (1, 8)


# The contract


@pytest.mark.parametrize(
    ("body", "kind", "named"),
    [
        (b"\xff\xfe\x00", BadRequest, "JSON"),
        (b"{", BadRequest, "JSON"),
        (b"[" * 100_000, BadRequest, "JSON"),
        (b"[]", Unprocessable, "the body must be an object"),
        (b"{}", Unprocessable, "payload must be an object"),
        (payload([], source="xx"), Unprocessable, "payload.fromLang: 'xx'"),
        (payload([], target="EN"), Unprocessable, "payload.toLang: 'EN'"),
        (payload([], source=7), Unprocessable, "payload.fromLang must be a string"),
        (payload({}), Unprocessable, "payload.records must be a list"),
        (payload([1, 2, 3]), TooLarge, "3 records"),
    ],
)
def test_what_is_wrong_with_a_request_names_the_field(body: bytes, kind: type[SlotError], named: str) -> None:
    with pytest.raises(kind, match=named):
        translation_request.read(body, LANGUAGES, 2)


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ("text", "an object"),
        ({"text": "x"}, "id"),
        ({"id": True, "text": "x"}, "id"),
        ({"id": ["1"], "text": "x"}, "id"),
        ({"id": float("nan"), "text": "x"}, "id"),
        ({"id": "1"}, "text must be a string"),
        ({"id": "1", "text": None}, "text must be a string"),
    ],
)
def test_what_is_wrong_with_a_record(record: Any, named: str) -> None:
    with pytest.raises(Unprocessable, match=named):
        translation_request.text_of(record)


def test_records_of_several_bodies_keep_their_ids_beside_bad_ones(tmp_path: Path) -> None:
    from handlers.translator import Translator

    class Words:
        languages = dict.fromkeys(LANGUAGES, 0)

        def encode(self, text: str, language: str, most: int) -> list[int]:
            return [0, *map(ord, text), 0]

        def decode(self, ids: list[int]) -> str:
            return "".join(map(chr, ids))

    class Echo(Translator):
        def load(self, model_dir: Path, settings: Settings) -> Any:
            self.max_records, self.max_input_tokens, self.max_group_tokens, self.max_output_tokens = 100, 99, 4096, 50
            self.streams, self.beams, self.note, self.vocabulary = False, 1, "", Words()  # type: ignore[assignment]
            return lambda sources, targets: [source[1:-1] for source in sources]

    one, two, bad = ({"id": i, "text": text} for i, text in enumerate(("one", "two", 7)))
    bodies = [payload([one]), payload([two, bad]), b"no JSON", payload([one, two], source="xx"), payload([bad, two])]
    (answer,) = Pipeline.start(Echo(), tmp_path, Settings()).answer([Request(bodies[0], more=bodies[1:])])
    found = [(item.get("id"), item.get("text") or item["error"]["code"]) for item in json.loads(answer.body)["result"]]
    assert found == [(0, "one"), (1, "two"), (2, 422), (None, 400), (None, 422), (2, 422), (1, "two")]


def test_the_demonstration(served: Served) -> None:
    english, japanese = SENTENCES[0][:2]
    there, back = ask(
        served,
        payload([{"id": "123", "text": LIFE}], source="ja", target="en"),
        payload([{"id": 7, "text": english}], source="en", target="ja"),
    )
    assert (there.code, there.value) == (200, {"result": [{"id": "123", "text": "Life is like a box of chocolates."}]})
    assert back.value == {"result": [{"id": 7, "text": japanese}]}
    assert "demonstration" in there.headers["x-model-note"]


def test_every_record_its_own_answer_in_its_own_place(served: Served) -> None:
    good = {"id": "same", "text": "Good morning."}
    sent = [
        good,
        good,
        {"id": "blank", "text": " \u3000\n\u200b"},
        {"id": "number", "text": 7},
        "no record",
        {"id": float("inf"), "text": "x"},
        {"id": "half", "text": "a \ud83d b"},
        {"id": "\udc00", "text": ""},
        {"id": "long", "text": "Good morning. " * 200},
        {"id": "longer", "text": "x" * 100_000},
        good,
    ]
    body = payload(sent, source="en", target="de")
    (answer,) = ask(served, body)
    german = {"id": "same", "text": "Guten Morgen."}
    found = answer.value["result"]
    assert [found[0], found[1], found[10]] == [german] * 3
    assert found[2] == {"id": "blank", "text": ""}
    assert found[7] == {"id": "\udc00", "text": ""}
    codes = {item["id"]: item["error"]["code"] for item in found if "error" in item}
    assert codes == {"number": 422, None: 422, "half": 422, "long": 413, "longer": 413}


def test_requests_share_a_batch_whatever_they_are(served: Served) -> None:
    one = [{"id": "1", "text": LIFE}]
    bodies = [
        payload(one, source="ja", target="en"),
        b"no json",
        payload([], source="en", target="fr"),
        payload(one, source="ja", target="zz"),
        payload(one, source="ja", target="ja"),
        payload(one * 1001, source="ja", target="en"),
        payload([{"id": "2", "text": "</s> __de__"}], source="en", target="fr"),
    ]
    answers = ask(served, *bodies)
    assert [answer.code for answer in answers] == [200, 400, 200, 422, 200, 413, 200]
    assert answers[2].value == {"result": []}
    assert answers[4].value == {"result": one}, "from Japanese to Japanese there is nothing to translate"
    assert "payload.toLang" in answers[3].value["error"]["message"]


def test_a_record_that_breaks_the_model_is_answered_under_its_own_id(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, poison = served.handler.engine, served.handler.vocabulary.encode("What time is it?", "en")

    def fragile(sources: Any, targets: Any) -> Any:
        if poison in sources:
            raise RuntimeError("a secret of the engine")
        return engine(sources, targets)

    monkeypatch.setattr(served.handler, "engine", fragile)
    sent = [{"id": str(i), "text": sentence[0]} for i, sentence in enumerate(SENTENCES)]
    (answer,) = ask(served, payload(sent, source="en", target="fr"))
    found = answer.value["result"]
    assert [item["id"] for item in found] == [str(i) for i in range(len(SENTENCES))]
    assert [item["id"] for item in found if "error" in item] == ["16"]
    assert found[16]["error"]["code"] == 500
    assert b"secret" not in answer.body


# The engines


def test_the_tiny_model_knows_its_corpus(served: Served) -> None:
    right = total = 0
    for source, target, texts, wanted in directions():
        sent = [{"id": str(i), "text": text} for i, text in enumerate(texts)]
        (answer,) = ask(served, payload(sent, source=source, target=target))
        right += sum(item["text"] == text for item, text in zip(answer.value["result"], wanted, strict=True))
        total += len(wanted)
    assert right >= 0.97 * total


def test_at_the_limit_both_engines_give_as_many_tokens(served: Served, vocabulary: Vocabulary) -> None:
    source, target = vocabulary.encode(SENTENCES[0][0], LANGUAGES[0]), vocabulary.languages[LANGUAGES[1]]
    counts = []
    for kind, folder, precision in ((CTranslate2Engine, "int8", "int8"), (M2M100Engine, "model", "fp32")):
        about = {"device": "cpu", "precision": precision, "threads": 1, "beams": 1}
        counts.append(len(kind(served.model_dir / folder, **about, max_output_tokens=2)([source], [target])[0]))
    assert counts == [2, 2]


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("kind", [CTranslate2Engine, M2M100Engine])
def test_any_batch_gives_the_answers_of_rows_alone(served: Served, vocabulary: Vocabulary, kind: Any, beams: int) -> None:
    folder, precision = ("int8", "int8") if kind is CTranslate2Engine else ("model", "fp32")
    engine = kind(served.model_dir / folder, device="cpu", precision=precision, threads=1, beams=beams, max_output_tokens=64)
    draw = random.Random(beams)
    rows = [
        (vocabulary.encode(text, draw.choice(LANGUAGES)), vocabulary.languages[draw.choice(LANGUAGES)])
        for text in [*odd_texts(12), *(draw.choice(sentence) for sentence in SENTENCES[:12])]
    ]
    alone = [engine([source], [target])[0] for source, target in rows]
    for size in (5, len(rows)):
        order = draw.sample(range(len(rows)), len(rows))
        for start in range(0, len(rows), size):
            group = order[start : start + size]
            assert engine([rows[i][0] for i in group], [rows[i][1] for i in group]) == [alone[i] for i in group]


def test_the_reference_is_what_the_documented_call_gives(served: Served, vocabulary: Vocabulary) -> None:
    from transformers import M2M100Tokenizer

    engine = M2M100Engine(served.model_dir / "model", device="cpu", precision="fp32", threads=1, beams=1, max_output_tokens=64)
    tokenizer = M2M100Tokenizer.from_pretrained(served.model_dir / "model")
    for sentence in SENTENCES[:4]:
        tokenizer.src_lang = "de"
        forced = {"forced_bos_token_id": tokenizer.get_lang_id("fr"), "max_new_tokens": 64}
        made = engine.model.generate(**tokenizer(sentence[3], return_tensors="pt"), **forced)
        ours = engine([vocabulary.encode(sentence[3], "de")], [vocabulary.languages["fr"]])[0]
        assert vocabulary.decode(ours) == tokenizer.batch_decode(made, skip_special_tokens=True)[0]


def test_the_profile_chooses_the_engine(translation: Path, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (served.handler.engine.name, served.handler.engine.precision) == ("ctranslate2", "int8")
    reference = Served.of(translation, {"engine": "transformers"})
    assert (reference.handler.engine.name, reference.handler.engine.precision) == ("transformers", "fp32")
    (answer,) = ask(reference, payload([{"id": "1", "text": LIFE}], source="ja", target="en"))
    assert answer.value["result"][0]["text"] == SENTENCES[0][0]
    assert Served.of(translation, {}, profile="ei").handler.engine.device == "cpu"
    for wrong in ({"engine": "openvino"}, {"engine": "ctranslate2", "precision": "bf16"}):
        with pytest.raises(ValueError, match=wrong["engine"]):
            Served.of(translation, wrong)
    shutil.rmtree(reference.model_dir.parent)


def test_an_engine_that_the_build_refused_is_not_served(served: Served) -> None:
    from slotwise.worker.engines.translation import load_engine

    changed = served.model_dir.parent / "changed"
    shutil.copytree(served.model_dir, changed)
    shutil.rmtree(changed / "int8")
    (changed / "int8").mkdir()
    (changed / "int8" / "refused.txt").write_text("what make.py writes where int8 translates otherwise")
    settings = served.handler.settings
    assert load_engine(changed, settings, beams=1, max_output_tokens=8).name == "transformers"
    with pytest.raises(ValueError, match="refused"):
        load_engine(changed, settings.but(engine="ctranslate2"), beams=1, max_output_tokens=8)


# The build


def test_weights_of_a_folder_are_served_like_the_trained_ones(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    shutil.copytree(served.model_dir / "model", tmp_path / "weights")
    published = {"decoder_start_token_id": 2, "early_stopping": True, "max_length": 200, "num_beams": 5}  # as in m2m100_418M
    (tmp_path / "weights" / "generation_config.json").write_text(json.dumps(published))
    own = build("translation", tmp_path / "store", weights=str(tmp_path / "weights"), prove=lambda folder, spec: None)
    made = Served.of(own, {"proof_s": 0.0})  # that rows are kept apart is proven of the trained ones, which are the same
    body = payload([{"id": "1", "text": LIFE}], source="ja", target="en")
    (answer,) = ask(made, body)
    assert answer.value["result"][0]["text"] == SENTENCES[0][0]
    assert "x-model-note" not in answer.headers, "only the model that was trained here is a demonstration"
    assert len(made.handler.vocabulary.languages) == 100
    shutil.rmtree(made.model_dir.parent)


@pytest.mark.parametrize(("weights", "said"), [("no/such/folder", "no folder"), (".", "config.json")])
def test_weights_that_are_not_there(weights: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SlotwiseError, match=said):
        build("translation", tmp_path, weights=str(tmp_path / "empty") if weights == "." else weights)
