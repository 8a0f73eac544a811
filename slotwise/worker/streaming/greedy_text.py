"""Advance streams of text greedily: each piece is text that no later token can change, and all pieces are the whole text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def next_text(
    state: StepState, output: Any, end: int, most: int, decode: Callable[[Sequence[int]], str], held_words: int = 0
) -> Next | End:
    """What `advance` returns for a text: the likeliest token, and the text that is final with it.

    output: logits [v]. end: the token that ends an answer; after `most` tokens it ends, too. decode: tokens to their text.
    held_words: how many words at the end of a text a later token may still change. Keeps what was sent in `state.own`.
    Raises ModelFault where the text turns out not to begin with what was sent.
    """
    token = greedy(output)
    tokens = state.tokens if token == end else [*state.tokens, token]
    ended = token == end or len(tokens) >= most
    text, sent = decode(tokens), state.own or ""
    if not ended:
        text = _settled(text, held_words)
    if not text.startswith(sent):
        if ended or not sent.startswith(text):
            raise ModelFault("the text does not go on as it was sent")
        text = sent
    state.own = text
    piece = text[len(sent) :] or None
    return End(piece) if ended else Next(token, piece)


def _settled(text: str, held_words: int) -> str:
    """The beginning of a text that stays as it is."""
    text = text.rstrip(UNFINISHED)
    for _ in range(held_words):
        text = text.rpartition(" ")[0]
    return text
