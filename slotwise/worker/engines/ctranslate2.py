"""M2M100 through CTranslate2: int8 weights, activations with one scale a row, so that batch-mates change nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from slotwise.worker.inputs.text import EOS


class CTranslate2Engine:
    """The same call as M2M100Engine. `folder` is what CTranslate2's converter wrote."""

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
        made = self.model.translate_batch(
            [[self.tokens[i] for i in source] for source in sources],
            target_prefix=[[self.tokens[target]] for target in targets],
            beam_size=self.beams,
            max_decoding_length=self.max_output_tokens,
            max_input_length=0,  # the handler has refused what is too long; nothing is cut silently here
        )
        return [[i for i in map(self.ids.__getitem__, row.hypotheses[0][1:]) if i != EOS] for row in made]
