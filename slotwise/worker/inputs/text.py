"""Turn text into token ids and back, for M2M100: one SentencePiece model, one vocabulary, one token for each language.

The ids are those of transformers' M2M100Tokenizer, which has two faults in a server. Its source language is state that all
threads share. And it takes `</s>` or `__fr__` in a user's text for the special token; here it stays text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from slotwise.worker.slot_errors import TooLarge, Unprocessable

CHARACTERS_A_TOKEN = 16  # the longest piece of M2M100's vocabulary: a text with more characters has too many tokens
BOS, PAD, EOS, UNK = range(4)  # fixed in every M2M100 vocabulary
BLANK = "\u2581"  # what SentencePiece writes for one


@dataclass(frozen=True)
class Vocabulary:
    """pieces: the text pieces by id. languages: the id of every language this model translates. Safe in any thread."""

    sentencepiece: Any
    pieces: Sequence[str]
    languages: Mapping[str, int]

    @classmethod
    def load(cls, folder: Path, languages: Mapping[str, int]) -> Vocabulary:
        """Read `vocab.json` and `sentencepiece.bpe.model`, the files of every M2M100."""
        import sentencepiece  # noqa: PLC0415  optional

        ids: dict[str, int] = json.loads((folder / "vocab.json").read_text("utf-8"))
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.bpe.model"))
        return cls(processor, sorted(ids, key=ids.__getitem__), dict(languages))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(self.pieces) if i > UNK}

    @cached_property
    def _plain(self) -> list[str]:
        """The texts of the pieces by id; "" where it depends on others: bytes, control, unknown, or a blank at its end."""
        ids = self.sentencepiece.piece_to_id(list(self.pieces))
        kinds = (self.sentencepiece.is_byte, self.sentencepiece.is_control, self.sentencepiece.is_unknown)
        odd = [any(flags) for flags in zip(*(kind(ids) for kind in kinds), strict=True)]
        texts = [piece.replace(BLANK, " ") for piece in self.pieces]
        return ["" if odd[i] or i <= UNK or text[-1:].isspace() else text for i, text in enumerate(texts)]

    def encode(self, text: str, language: str, max_tokens: int | None = None) -> list[int]:
        """The ids for the encoder: the language, the text's pieces, the end. Empty for a text without a visible character.

        Raises Unprocessable where the text holds half of a surrogate pair, TooLarge where it has more than max_tokens tokens.
        """
        if max_tokens is not None and len(text) > max_tokens * CHARACTERS_A_TOKEN:
            raise _too_long(max_tokens)
        try:
            text.encode("utf-8")
        except UnicodeError as error:
            raise Unprocessable("the text holds half of a surrogate pair, which is no character") from error
        pieces = [self._ids.get(piece, UNK) for piece in self.sentencepiece.encode(text, out_type=str)]
        if max_tokens is not None and len(pieces) + 2 > max_tokens:
            raise _too_long(max_tokens)
        return [self.languages[language], *pieces, EOS] if pieces else []

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a decoder's ids, without the special tokens."""
        kept = [self.pieces[i] for i in ids if UNK < i < len(self.pieces)]
        return str(self.sentencepiece.decode(kept)).strip()

    def added(self, before: int, token: int) -> str | None:
        """What a text whose last token is `before` gets by one token more; None where other tokens have a say in that."""
        texts = self._plain
        if before >= len(texts) or token >= len(texts) or not texts[before]:
            return None
        return texts[token] or None


def _too_long(max_tokens: int) -> TooLarge:
    return TooLarge(f"the text is longer than the {max_tokens} tokens that are translated at once")


def pack(lengths: Sequence[int], max_rows: int, max_tokens: int) -> list[list[int]]:
    """Group rows of similar length. lengths: tokens of each row. Returns lists of indices, every index once.

    A group has at most max_rows rows, and its rows times its longest length are at most max_tokens. A row that is longer than
    that is a group of its own. Rows of equal length keep their order.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        last = groups[-1] if groups else None
        if last and len(last) < max_rows and (len(last) + 1) * lengths[index] <= max_tokens:
            last.append(index)
        else:
            groups.append([index])
    return groups
