"""Turn texts into token ids as transformers does, without the state that its tokenizers keep for padding and truncation.

The tokenizer itself is that of `save_pretrained`'s folder. It is called by many threads at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker.engines.torchvision_compat import ensure_importable
from slotwise.worker.slot_errors import TooLarge, Unprocessable
from slotwise.worker.texts.text_body import Texts

SHORTEST = 16  # tokens that every row has room for
CHARACTERS_A_TOKEN = 100  # no more of a text is taken apart
UNLIMITED = 1 << 20  # what a tokenizer that knows no limit says is far more

# What splits a text at its blanks, so that a word's tokens do not depend on the words around it, and what leaves blanks alone.
SPLITS = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
KEEPS_BLANKS = ("BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Nmt", "Precompiled")

Tokens = tuple[Any, Any]  # ids [t] and type ids [t], int64


@dataclass(frozen=True)
class TextTokenizer:
    """tokenizer: of the library `tokenizers`, which pads and truncates nothing, unless `truncate`. pad: the id of padding.

    most: tokens of a row, the special ones included. names: the inputs that the model takes of input_ids, attention_mask and
    token_type_ids. left: padding stands before the tokens. cut: the side of a text that `truncate` takes away, "" where its
    tokenizer does not read word by word.
    """

    tokenizer: Any
    pad: int
    most: int
    names: tuple[str, ...]
    left: bool = False
    cut: str = ""

    @classmethod
    def load(cls, folder: Path, most: int, *, truncate: bool = False) -> TextTokenizer:
        """Read the folder's tokenizer. Raises ValueError where it cannot pad, or is none that `tokenizers` runs."""
        import tokenizers  # noqa: PLC0415  comes with transformers

        known = _pretrained(folder)
        backend = getattr(known, "backend_tokenizer", None)
        if backend is None:
            raise ValueError("its tokenizer is a slow one: save it with use_fast=True, which writes tokenizer.json")
        if known.pad_token_id is None:
            raise ValueError("its tokenizer has no padding token")
        own = tokenizers.Tokenizer.from_str(backend.to_str())
        own.no_padding()
        if truncate:
            own.enable_truncation(most, direction=known.truncation_side)
        else:
            own.no_truncation()
        cut = known.truncation_side if truncate and reads_word_by_word(json.loads(own.to_str())) else ""
        return cls(own, known.pad_token_id, most, tuple(known.model_input_names), known.padding_side == "left", cut)

    def __call__(self, texts: Texts) -> Tokens:
        """The tokens of a text or a pair. Raises TooLarge where there are more than the model takes, Unprocessable for none."""
        if sum(len(text) for text in texts if text is not None) > CHARACTERS_A_TOKEN * self.most:
            encoded = self._of_a_part(*texts)
        else:
            encoded = self.tokenizer.encode(*texts)
        if not encoded.ids:  # of a tokenizer that adds no special ones
            raise Unprocessable("the text has no tokens")
        if len(encoded.ids) > self.most:
            raise TooLarge(f"the text has {len(encoded.ids)} tokens, the model takes {self.most}")
        return np.array(encoded.ids, np.int64), np.array(encoded.type_ids, np.int64)

    def _of_a_part(self, text: str, pair: str | None) -> Any:
        """The tokens that are left of a text of any length, of the part that is read. Raises TooLarge where they may be others.

        The outermost word of that part must be among what is cut: it may be half a word, or stand beside what is not read.
        """
        most = CHARACTERS_A_TOKEN * self.most
        if self.cut and pair is None:
            part = text[:most] if self.cut == "right" else text[-most:]
            encoded = self.tokenizer.encode(part)
            kept = [span for span, own in zip(encoded.offsets, encoded.special_tokens_mask, strict=True) if not own]
            beyond = (
                part[max((end for _, end in kept), default=0) :]
                if self.cut == "right"
                else part[: min(kept, default=(0, 0))[0]]
            )
            if len(beyond.strip(" ").split(" ")) > 2:
                return encoded
        raise TooLarge(f"the text has more than the {most} characters that are read")

    def width(self, length: int) -> int:
        """To how many tokens a row of this length is padded: 16, 32, 64, ... and at most as many as the model takes.

        That depends on the row alone, so that nothing of it changes with its mates.
        """
        return min(max(SHORTEST, 1 << (length - 1).bit_length()), max(self.most, length))

    def padded(self, rows: Sequence[Tokens], t: int = 0) -> dict[str, Any]:
        """The model's inputs [b, t] by name; t is what the longest row is padded to, unless it is given."""
        t = t or max(self.width(len(ids)) for ids, _ in rows)
        inputs = {
            "input_ids": np.full((len(rows), t), self.pad, np.int64),
            "attention_mask": np.zeros((len(rows), t), np.int64),
            "token_type_ids": np.zeros((len(rows), t), np.int64),
        }
        for i, (ids, types) in enumerate(rows):
            place = slice(t - len(ids), t) if self.left else slice(0, len(ids))
            for name, values in (("input_ids", ids), ("attention_mask", 1), ("token_type_ids", types)):
                inputs[name][i, place] = values
        return {name: value for name, value in inputs.items() if name in self.names}


def reads_word_by_word(described: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json says that the tokens of a word depend on nothing beyond the blanks around it."""
    splits = [
        step["type"] in SPLITS
        or (step["type"] == "ByteLevel" and step.get("use_regex", True))
        or (step["type"] == "Metaspace" and step.get("split", True))
        for step in _steps(described["pre_tokenizer"], "pretokenizers")
    ]
    keeps = [
        step["type"] in KEEPS_BLANKS or (step["type"] == "Replace" and step["pattern"] == {"Regex": " {2,}"})
        for step in _steps(described["normalizer"], "normalizers")
    ]
    return any(splits) and all(keeps) and not any(" " in token["content"] for token in described["added_tokens"])


def _steps(described: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """What a step of a tokenizer.json consists of."""
    return [] if described is None else list(described[name]) if described["type"] == "Sequence" else [described]


def limit(folder: Path, config: Any) -> int:
    """How many tokens a row may have, by what the tokenizer and the model's config say; 0 where neither knows."""
    known = [_pretrained(folder).model_max_length, getattr(config, "max_position_embeddings", 0)]
    return int(min((number for number in known if number and 0 < number < UNLIMITED), default=0))


def _pretrained(folder: Path) -> Any:
    ensure_importable()
    import transformers  # noqa: PLC0415  heavy, optional

    transformers.utils.logging.set_verbosity_error()
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
