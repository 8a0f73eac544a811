"""Translate with transformers: M2M100, the reference that the translator's other engine is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slotwise.worker.engines.pretrained import load_pretrained, release
from slotwise.worker.inputs.text import EOS, PAD
from slotwise.worker.padding import pad_sequences


class M2M100Engine:
    """Translates b texts, each row with its own source and target language.

    beams: 1 is greedy. max_output_tokens: the same for every row of every batch; otherwise a batch-mate could cut a text short.
    """

    name = "transformers"

    def __init__(self, folder: Path, *, device: str, precision: str, threads: int, beams: int, max_output_tokens: int):
        import torch  # noqa: PLC0415  heavy

        torch.set_num_threads(threads)
        self.device, self.precision = device, precision
        self.model = load_pretrained("M2M100ForConditionalGeneration", folder, device, precision)
        self.options: dict[str, Any] = {"num_beams": beams, "max_new_tokens": max_output_tokens, "do_sample": False}

    def __call__(self, sources: Sequence[Sequence[int]], targets: Sequence[int]) -> list[list[int]]:
        """sources: [b] token ids, language first; targets: [b] ids of the target languages. Returns [b] ids."""
        import torch  # noqa: PLC0415  heavy

        ids, mask = (torch.from_numpy(part).to(self.device) for part in pad_sequences(sources, PAD))  # [b, t]
        prefix = torch.tensor([[EOS, target] for target in targets], device=self.device)  # [b, 2] EOS starts the decoder
        with torch.inference_mode():
            ids_out = self.model.generate(input_ids=ids, attention_mask=mask, decoder_input_ids=prefix, **self.options)
        return [_until_end(row) for row in ids_out[:, 2:].tolist()]

    def release(self) -> None:
        """Free what a failed call holds."""
        release(self.device)


def _until_end(row: list[int]) -> list[int]:
    return row[: row.index(EOS)] if EOS in row else row
