"""Captions and translations decoded step by step: the answers of closed batches, whole and in pieces."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.archive.build import build
from slotwise.worker import BadRequest, End, Headers, ModelFault, Request, Settings, StepState
from slotwise.worker.engines.steps.m2m100 import load as load_steps
from slotwise.worker.inputs.text import BOS, EOS, PAD, UNK, Vocabulary
from slotwise.worker.steps.streams import Stream, StreamEnd
from slotwise.worker.streaming.greedy_text import by_steps, max_tokens_of, next_text
from slotwise.worker.streaming.piece_objects import parsed, whole_text
from tests.worker.by_steps import built_by_steps
from tests.worker.drawings import everything, picture
from tests.worker.serving import Served
from tests.worker.texts import SENTENCES, odd_texts, payload

for _package in ("torch", "transformers", "sentencepiece"):
    pytest.importorskip(_package)


class Both(NamedTuple):
    """The same weights and engine, in closed batches and by steps; folder: of the archives."""

    closed: Served
    steps: Served
    bodies: list[bytes]
    archive: Path


@pytest.fixture(scope="module", params=["captions", "translation"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Each model twice, and what it is asked: its examples, and more."""
    store, work = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("work")
    archive = build(request.param, store)
    by_steps = built_by_steps(archive, work, store)
    closed, steps = Served.of(archive, {"engine": "transformers"}), Served.of(by_steps, {"engine": "transformers"})
    bodies = [file.read_bytes() for file in sorted((closed.model_dir / "examples").iterdir())]
    if request.param == "captions":
        bodies += [picture(shapes, seed=i) for i, shapes in enumerate(everything()[::40])]
    else:
        texts = [*(sentence[0] for sentence in SENTENCES[:6]), " \u3000\n", *odd_texts(6)]
        bodies.append(payload([{"id": i, "text": text} for i, text in enumerate(texts)], source="en", target="ja"))
        bodies += [
            payload([{"id": "1", "text": text}], source="en", target=target) for text in texts for target in ("fr", "en")
        ]
    yield Both(closed, steps, bodies, by_steps)
    for one in (closed, steps):
        shutil.rmtree(one.model_dir.parent)


def text_of(answer: Any) -> Any:
    """What a request of one item was answered with."""
    return answer.value["caption"] if "caption" in answer.value else answer.value["result"][0]["text"]


def test_whole_answers_are_those_of_closed_batches(both: Both) -> None:
    assert (both.closed.handler.streams, both.steps.handler.streams) == (False, True)
    assert both.closed.local.streaming is None
    assert both.steps.local.started["streams"] == {"slots": 8}
    expected, found = both.closed.ask(both.bodies), both.steps.ask(both.bodies)
    assert [(answer.code, answer.value) for answer in found] == [(answer.code, answer.value) for answer in expected]
    assert {answer.code for answer in found} == {200}


def test_the_pieces_of_a_stream_are_its_whole_text(both: Both) -> None:
    handler, runner = both.steps.handler, both.steps.handler.runner
    items = {i: handler.read(Request(body, Headers({}), str(i))) for i, body in enumerate(both.bodies)}
    items = {i: rows for i, rows in items.items() if len(rows) == 1}
    answers = both.steps.ask(both.bodies)
    runner.offer([Stream(i, rows[0]) for i, rows in items.items()])
    pieces: dict[Any, list[bytes]] = {i: [] for i in items}
    ended = 0
    while ended < len(items):
        for event in runner.turn():
            if isinstance(event, StreamEnd):
                assert event.error is None
                ended += 1
            else:
                pieces[event.id].append(event.data)
    assert {i: whole_text(parsed(one)) for i, one in pieces.items()} == {i: text_of(answers[i]) for i in items}
    assert max(map(len, pieces.values())) > 3, "they come token by token"


def test_an_answer_of_so_many_tokens_is_the_beginning_of_the_whole(both: Both) -> None:
    body = both.bodies[0]
    whole = text_of(both.closed.ask([body])[0])
    texts = []
    for served in (both.closed, both.steps):
        requests = [Request(body, Headers({}), n, query={"max_tokens": n}) for n in ("1", "2")]
        texts += [json.loads(answer.body) for answer in served.local.answer(requests)]
        bad = [Request(body, Headers({}), n, query={"max_tokens": n}) for n in ("0", "-1", "257", "1.5", "", "٣", "9" * 5000)]
        assert {answer.status for answer in served.local.answer(bad)} == {400}
    assert texts[:2] == texts[2:]
    one, two = (text_of(SimpleNamespace(value=value)) for value in texts[:2])
    assert len(one) < len(two) < len(whole)
    assert whole.startswith(two)
    assert two.startswith(one)


def test_what_cannot_be_decoded_by_steps_is_not_started(both: Both) -> None:
    if "captions" in both.archive.name:
        with pytest.raises(ValueError, match="bf16 is refused here"):
            Served.of(both.archive, {"precision": "bf16"})
    else:
        with pytest.raises(ValueError, match="no request join a running batch"):
            Served.of(both.archive, {"engine": "ctranslate2"})
        with pytest.raises(ValueError, match='decoding = "steps" is greedy'):
            load_steps(Path(), Settings(), beams=2, max_input_tokens=8, max_output_tokens=8)


def test_options_are_checked() -> None:
    assert [by_steps({}), by_steps({"decoding": "closed"}), by_steps({"decoding": "steps"})] == [False, False, True]
    with pytest.raises(ValueError, match="'sometimes', but it must be closed or steps"):
        by_steps({"decoding": "sometimes"})
    assert (max_tokens_of({}, 9), max_tokens_of({"max_tokens": "9"}, 9)) == (9, 9)
    with pytest.raises(BadRequest, match="from 1 to 9"):
        max_tokens_of({"max_tokens": "10"}, 9)


# Pieces of any tokens


def streamed(tokens: Sequence[int], end: int, words: int, decode: Callable[..., str], held_words: int = 0, **more: Any) -> str:
    """The pieces of these tokens, in one."""
    state, text = StepState(None, None, []), ""  # type: ignore[arg-type]
    for token in [*tokens, end]:
        output = np.zeros(words)
        output[token] = 1
        outcome = next_text(state, output, end, len(tokens) + 1, decode, held_words, **more)
        text += str(outcome.piece or "")
        state.tokens.append(token)
    assert isinstance(outcome, End)
    return text


@pytest.fixture(scope="module", params=[False, True])
def vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """Of the corpus, as the demonstration model's; the second one spells characters that it does not know as bytes."""
    import sentencepiece

    folder, trained = tmp_path_factory.mktemp("vocabulary"), io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(text for sentence in SENTENCES for text in sentence),
        model_writer=trained,
        vocab_size=700,
        hard_vocab_limit=False,
        byte_fallback=request.param,
        bos_id=BOS,
        pad_id=PAD,
        eos_id=EOS,
        unk_id=UNK,
        minloglevel=2,
    )
    (folder / "sentencepiece.bpe.model").write_bytes(trained.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    (folder / "vocab.json").write_text(json.dumps({pieces.id_to_piece(i): i for i in range(len(pieces))}), "utf-8")
    return Vocabulary.load(folder, {"en": EOS + 2})


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_pieces_of_sentencepiece_are_the_whole_text(vocabulary: Vocabulary, data: st.DataObject) -> None:
    blank = next(i for i, piece in enumerate(vocabulary.pieces) if piece == "▁")
    token = st.integers(0, len(vocabulary.pieces) + 5).filter(lambda i: i != EOS) | st.just(blank) | st.integers(4, 259)
    tokens = data.draw(st.lists(token, max_size=12))
    words = len(vocabulary.pieces) + 8
    assert streamed(tokens, EOS, words, vocabulary.decode) == vocabulary.decode(tokens)
    assert streamed(tokens, EOS, words, vocabulary.decode, added=vocabulary.added) == vocabulary.decode(tokens)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_what_a_token_adds_to_a_text_is_known_without_the_others(vocabulary: Vocabulary, data: st.DataObject) -> None:
    token = st.integers(0, len(vocabulary.pieces) + 5) | st.integers(4, 259)
    tokens = data.draw(st.lists(token, min_size=2, max_size=12))
    added = vocabulary.added(*tokens[-2:])
    assert added is None or vocabulary.decode(tokens) == vocabulary.decode(tokens[:-1]) + added


def test_what_was_decoded_is_not_decoded_again(vocabulary: Vocabulary) -> None:
    tokens, decoded = vocabulary.encode(" ".join(sentence[0] for sentence in SENTENCES[:6]), "en")[1:-1], list[int]()

    def decode(ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return vocabulary.decode(ids)

    text = streamed(tokens, EOS, len(vocabulary.pieces), decode, added=vocabulary.added)
    assert text == vocabulary.decode(tokens)
    assert len(decoded) < len(tokens) / 4


PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abnst",
    "'",
    ".",
    ",",
    "!",
    "?",
    "-",
    "is",
    "re",
    "ve",
    "m",
    "do",
    "not",
]
PIECES += ["##s", "##t", "##'", "##.", "n't", "'s"]


@pytest.fixture(scope="module")
def wordpieces() -> Any:
    """A tokenizer as GIT's, of pieces that are drawn together."""
    from slotwise.worker.engines.torchvision_compat import ensure_importable

    ensure_importable()
    from transformers import BertTokenizer

    return BertTokenizer(vocab={piece: i for i, piece in enumerate(PIECES)})


@pytest.mark.parametrize("cleaned", [False, True])
@settings(max_examples=150, deadline=None)
@given(tokens=st.lists(st.integers(0, len(PIECES) - 1).filter(lambda i: i != 3), max_size=12))
def test_pieces_of_wordpieces_are_the_whole_text(wordpieces: Any, cleaned: bool, tokens: list[int]) -> None:
    def decode(ids: Sequence[int]) -> str:
        return str(wordpieces.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=cleaned))

    assert streamed(tokens, 3, len(PIECES), decode, 2 if cleaned else 0) == decode(tokens)


@settings(deadline=None)
@given(text=st.text(max_size=8), cut=st.integers(0, 4))
def test_pieces_of_bytes_are_the_whole_text(text: str, cut: int) -> None:
    tokens = list(text.encode())[: -cut or None]
    assert streamed(tokens, 256, 257, lambda ids: bytes(ids).decode("utf-8", "replace")) == bytes(tokens).decode(
        "utf-8", "replace"
    )


def test_a_text_that_does_not_go_on_as_it_was_sent_ends_with_an_error() -> None:
    with pytest.raises(ModelFault):
        streamed([0, 1], 2, 3, lambda ids: "ab" if len(ids) == 1 else "ac")


def test_a_text_that_grows_shorter_for_a_while_goes_on_where_it_was() -> None:
    assert streamed([0, 1, 2], 3, 4, lambda ids: ("", "ab", "a", "abc")[len(ids)]) == "abc"
