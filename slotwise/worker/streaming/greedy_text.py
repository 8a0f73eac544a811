"""Advance streams of text greedily: each piece is text that no later token can change, and all pieces are the whole text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotwise.worker.slot_errors import BadRequest, ModelFault
from slotwise.worker.steps.sampling import greedy
from slotwise.worker.steps.step_engine import End, Next, StepState

MAX_TOKENS = "max_tokens"
UNFINISHED = "\ufffd"  # a tokenizer of bytes gives it for a character whose last bytes are still to come


def by_steps(options: Mapping[str, Any]) -> bool:
    """Whether model.toml's `decoding` is "steps"; by default it is "closed". Raises ValueError where it is neither."""
    decoding = options.get("decoding", "closed")
    if decoding not in ("closed", "steps"):
        raise ValueError(f"decoding is {decoding!r}, but it must be closed or steps")
    return bool(decoding == "steps")


def max_tokens_of(query: Mapping[str, str], most: int) -> int:
    """How many tokens the answer may have: the address's `max_tokens`, by default `most`. Raises BadRequest beyond 1..most."""
    given = query.get(MAX_TOKENS)
    if given is None:
        return most
    if not (given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= most):
        raise BadRequest(f"{MAX_TOKENS} must be a whole number from 1 to {most}")
    return int(given)


@dataclass
class GrowingText:
    """The text of one stream. whole: of its first `count` tokens. sent: all its pieces."""

    whole: str = ""
    count: int = 0
    sent: str = ""


def next_text(
    state: StepState,
    output: Any,
    end: int,
    most: int,
    decode: Callable[[Sequence[int]], str],
    held_words: int = 0,
    added: Callable[[int, int], str | None] = lambda before, token: None,
) -> Next | End:
    """What `advance` returns for a text: the likeliest token, and the text that is final with it.

    output: logits [v]. end: the token that ends an answer; after `most` tokens it ends, too. decode: tokens to their text.
    held_words: how many words at the end of a text a later token may still change. added(before, token): what a text whose last
    token is `before` gets by `token`, whatever came before; None where that must be decoded. Keeps its own in `state.own`.
    Raises ModelFault where the text turns out not to begin with what was sent.
    """
    own: GrowingText = state.own if state.own is not None else GrowingText()
    state.own = own
    token = greedy(output)
    tokens = state.tokens if token == end else [*state.tokens, token]
    ended = token == end or len(tokens) >= most
    if own.count < len(tokens) or not tokens:
        grown = added(tokens[-2], token) if own.count and own.count == len(tokens) - 1 else None
        own.whole = decode(tokens) if grown is None else own.whole + grown
        own.count = len(tokens)
    text, sent = own.whole, own.sent
    if not ended:
        text = _settled(text, held_words)
    if not text.startswith(sent):
        if ended or not sent.startswith(text):
            raise ModelFault("the text does not go on as it was sent")
        text = sent
    own.sent = text
    piece = text[len(sent) :] or None
    return End(piece) if ended else Next(token, piece)


def _settled(text: str, held_words: int) -> str:
    """The beginning of a text that stays as it is."""
    text = text.rstrip(UNFINISHED)
    for _ in range(held_words):
        text = text.rpartition(" ")[0]
    return text
