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
    """The text of one stream. sent: all its pieces. read: the text of the first `count` tokens, which is not decoded again."""

    sent: str = ""
    read: str = ""
    count: int = 0


def next_text(
    state: StepState,
    output: Any,
    end: int,
    most: int,
    decode: Callable[[Sequence[int]], str],
    held_words: int = 0,
    new_word: Callable[[int, int], bool] = lambda before, token: False,
) -> Next | End:
    """What `advance` returns for a text: the likeliest token, and the text that is final with it.

    output: logits [v]. end: the token that ends an answer; after `most` tokens it ends, too. decode: tokens to their text.
    held_words: how many words at the end of a text a later token may still change. new_word(before, token): whether the text of
    any tokens in which `token` follows `before` is that of the first part, a blank, and that of the part that `token` begins.
    Keeps its own in `state.own`. Raises ModelFault where the text turns out not to begin with what was sent.
    """
    own: GrowingText = state.own if state.own is not None else GrowingText()
    state.own = own
    token = greedy(output)
    tokens = state.tokens if token == end else [*state.tokens, token]
    ended = token == end or len(tokens) >= most
    last = len(tokens) - 1
    if token != end and last > own.count and new_word(tokens[last - 1], token):
        own.read += decode(tokens[own.count : last]) + " "
        own.count = last
    text, sent = own.read + decode(tokens[own.count :]), own.sent
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
