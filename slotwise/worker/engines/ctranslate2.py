"""Translate with CTranslate2: M2M100 in int8.

Activations have a scale of their own for each row, so batch-mates do not change a row's translation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from slotwise.worker.inputs.text import EOS


class CTranslate2Engine:
    """Called as M2M100Engine is. folder: what CTranslate2's converter wrote."""

    name = "ctranslate2"

    def __init__(self, folder: Path, *, device: str, precision: str, threads: int, beams: int, max_output_tokens: int):
        import ctranslate2  # noqa: PLC0415  optional

        compute = "int8_float16" if device.startswith("cuda") else "int8"
        if not folder.is_dir() or precision not in ("auto", "int8"):
            raise ValueError(f"ctranslate2 serves int8 from {folder.name}/, not {precision}")
        kind, _, index = device.partition(":")
        self.device, self.precision = device, "int8"
        self.model = ctranslate2.Translator(
            str(folder), device=kind, device_index=int(index or 0), compute_type=compute, intra_threads=threads
        )
        self.tokens: list[str] = json.loads((folder / "shared_vocabulary.json").read_text("utf-8"))
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.beams, self.max_output_tokens = beams, max_output_tokens

    def __call__(self, sources: Sequence[Sequence[int]], targets: Sequence[int]) -> list[list[int]]:
        """sources: [b] token ids, language first; targets: [b] ids of the target languages. Returns [b] ids."""
        results = self.model.translate_batch(
            [[self.tokens[i] for i in source] for source in sources],
            target_prefix=[[self.tokens[target]] for target in targets],
            beam_size=self.beams,
            max_decoding_length=self.max_output_tokens + 1,  # the target language is counted, too
            max_input_length=0,  # the handler has refused what is too long; nothing is cut silently here
        )
        return [[i for i in map(self.ids.__getitem__, row.hypotheses[0][1:]) if i != EOS] for row in results]
