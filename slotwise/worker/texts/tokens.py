"""Turn texts into token ids as transformers does, without the state that its tokenizers keep for padding and truncation.

The tokenizer itself is that of `save_pretrained`'s folder. It is called by many threads at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker.engines.torchvision_compat import ensure_importable
from slotwise.worker.slot_errors import TooLarge, Unprocessable
from slotwise.worker.texts.text_body import Texts

SHORTEST = 16  # tokens that every row has room for
CHARACTERS_A_TOKEN = 100  # a longer text is refused before it is taken apart
UNLIMITED = 1 << 20  # what a tokenizer that knows no limit says is far more

Tokens = tuple[Any, Any]  # ids [t] and type ids [t], int64


@dataclass(frozen=True)
class TextTokenizer:
    """tokenizer: of the library `tokenizers`, which pads and truncates nothing, unless `truncate`. pad: the id of padding.

    most: tokens of a row, the special ones included. names: the inputs that the model takes of input_ids, attention_mask and
    token_type_ids. left: padding stands before the tokens.
    """

    tokenizer: Any
    pad: int
    most: int
    names: tuple[str, ...]
    left: bool = False

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
            own.enable_truncation(most)
        else:
            own.no_truncation()
        return cls(own, known.pad_token_id, most, tuple(known.model_input_names), known.padding_side == "left")

    def __call__(self, texts: Texts) -> Tokens:
        """The tokens of a text or a pair. Raises TooLarge where there are more than the model takes, Unprocessable for none."""
        if sum(len(text) for text in texts if text is not None) > CHARACTERS_A_TOKEN * self.most:
            raise TooLarge(f"the text has more than the {CHARACTERS_A_TOKEN * self.most} characters that are read")
        encoded = self.tokenizer.encode(*texts)
        if not encoded.ids:  # of a tokenizer that adds no special ones
            raise Unprocessable("the text has no tokens")
        if len(encoded.ids) > self.most:
            raise TooLarge(f"the text has {len(encoded.ids)} tokens, the model takes {self.most}")
        return np.array(encoded.ids, np.int64), np.array(encoded.type_ids, np.int64)

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


def limit(folder: Path, config: Any) -> int:
    """How many tokens a row may have, by what the tokenizer and the model's config say; 0 where neither knows."""
    known = [_pretrained(folder).model_max_length, getattr(config, "max_position_embeddings", 0)]
    return int(min((number for number in known if number and 0 < number < UNLIMITED), default=0))


def _pretrained(folder: Path) -> Any:
    ensure_importable()
    import transformers  # noqa: PLC0415  heavy, optional

    transformers.utils.logging.set_verbosity_error()
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
