"""Caption with GIT step by step: the network of engines/git.py, with a cache for each slot.

Whoever advances it chooses the tokens, greedily or by drawing them.

Letters: b rows of a step, l layers, h heads, d numbers of a head, t tokens, i tokens of a picture, v words.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from slotwise.worker.engines.choice import choose, installed
from slotwise.worker.engines.git import ORDER, by_channel, normalised
from slotwise.worker.engines.pretrained import FOLDER, about, load_pretrained, precision_of, release
from slotwise.worker.environment.settings import Settings
from slotwise.worker.steps.step_engine import StepEngine, StepRow


class Picture(Protocol):
    """pixels: uint8 [h, w, 3], as the model's picture processing cuts it."""

    pixels: Any


class GitStepEngine(StepEngine):
    """An engine of GIT whose output is a row of logits [v]. Its caches have their whole size from the start."""

    name = "transformers"
    together = True

    def __init__(
        self,
        folder: Path,
        *,
        device: str,
        precision: str,
        threads: int,
        mean: Sequence[float],
        std: Sequence[float],
        slots: int,
        longest_answer: int,
    ):
        import torch  # noqa: PLC0415  heavy

        torch.set_num_threads(threads)
        self.device, self.precision, self.slots, self.longest_answer = device, precision, slots, longest_answer
        self.model = load_pretrained("GitForCausalLM", folder, device, precision, attn_implementation="eager")
        self.mean, self.std = by_channel(mean, device), by_channel(std, device)
        config, vision = self.model.config, self.model.config.vision_config
        self.heads, self.first, self.last = config.num_attention_heads, config.bos_token_id, config.eos_token_id
        self.picture = (vision.image_size // vision.patch_size) ** 2 + 1  # i
        shape = (config.num_hidden_layers, slots + 1, self.heads, self.picture + 1 + longest_answer)
        options = {"device": device, "dtype": self.model.dtype}
        self.keys, self.values = torch.zeros(2, *shape, config.hidden_size // self.heads, **options)  # [l, slots, h, t, d]

    def tokens(self, item: Picture) -> int:
        """The picture's tokens, and the one that starts a caption."""
        return int(self.picture) + 1

    def prefill(self, slot: int, item: Picture) -> Any:
        """Read the picture, whose tokens see each other, and start the caption."""
        return self.prefill_all([slot], [item])[0]

    def prefill_all(self, slots: Sequence[int], items: Sequence[Picture]) -> Any:
        """Read pictures at once: the logits [b, v] with which their captions start."""
        import torch  # noqa: PLC0415  heavy

        b = len(items)
        with torch.inference_mode():
            for cache in (self.keys, self.values):
                cache[:, list(slots)] = 0  # what is not finite would spoil a sum in which it weighs nothing
            pixels = normalised(np.stack([item.pixels for item in items]), self.mean, self.std).to(
                self.model.dtype
            )  # [b, 3, h, w]
            seen = self.model.git.visual_projection(self.model.git.image_encoder(pixels).last_hidden_state)  # [b, i, h * d]
            places = torch.arange(self.picture, device=self.device).repeat(b, 1)  # [b, i]
            self._layers(seen, slots, places, torch.full_like(places, self.picture))
            return self._decoded(slots, [self.first] * b, [0] * b)

    def step(self, rows: Sequence[StepRow]) -> Any:
        """Logits [b, v] after each row's token."""
        import torch  # noqa: PLC0415  heavy

        with torch.inference_mode():
            slots, tokens, positions = zip(*rows, strict=True)
            return self._decoded(slots, tokens, [position + 1 for position in positions])

    def release(self) -> None:
        """Free what a failed call holds."""
        release(self.device)

    def _decoded(self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int]) -> Any:
        """Write one token to each slot, at its position of the caption: the logits after it, [b, v]."""
        import torch  # noqa: PLC0415  heavy

        ids, at = (torch.tensor(list(numbers), device=self.device)[:, None] for numbers in (tokens, positions))  # [b, 1]
        hidden = self.model.git.embeddings(ids, position_ids=at)  # [b, 1, h * d]
        places = at + self.picture
        return self.model.output(self._layers(hidden, slots, places, places + 1)[:, 0]).float()

    def _layers(self, hidden: Any, slots: Sequence[int], places: Any, visible: Any) -> Any:
        """Write t tokens to each slot. hidden: [b, t, h * d]; places: [b, t] in the cache; visible: [b, t], how many."""
        import torch  # noqa: PLC0415  heavy

        slot, until = torch.tensor(list(slots), device=self.device), int(visible.max())
        mask = (torch.arange(until, device=self.device) < visible[:, :, None])[:, None]  # [b, 1, t, until]
        for layer, block in enumerate(self.model.git.encoder.layer):
            attention = block.attention.self
            self.keys[layer, slot[:, None], :, places] = self._heads(attention.key(hidden))
            self.values[layer, slot[:, None], :, places] = self._heads(attention.value(hidden))
            queries = self._heads(attention.query(hidden)).transpose(1, 2)  # [b, h, t, d]
            attended = torch.nn.functional.scaled_dot_product_attention(
                queries, self.keys[layer, slot, :, :until], self.values[layer, slot, :, :until], attn_mask=mask
            )
            hidden = block.attention.output(attended.transpose(1, 2).reshape(hidden.shape), hidden)
            hidden = block.feed_forward_chunk(hidden)
        return hidden

    def _heads(self, rows: Any) -> Any:
        """[b, t, h * d] to [b, t, h, d]."""
        return rows.reshape(*rows.shape[:2], self.heads, -1)


def load(model_dir: Path, settings: Settings, *, max_output_tokens: int) -> GitStepEngine:
    """The archive's GIT with as many slots as the registration's batch_size. Raises ValueError where the profile wants another.

    On a CPU it is served in fp32 alone.
    """
    facts, precision = about(model_dir), precision_of(settings)
    if settings.device == "cpu" and precision != "fp32":
        raise ValueError(
            f'{precision} is refused here: with decoding = "steps" captions are compared in fp32, use precision auto'
        )

    def start(name: str) -> GitStepEngine:
        return GitStepEngine(
            model_dir / FOLDER,
            device=settings.device,
            precision=precision,
            threads=settings.threads,
            mean=facts["image"]["mean"],
            std=facts["image"]["std"],
            slots=settings.batch_size,
            longest_answer=max_output_tokens,
        )

    chosen: GitStepEngine = choose(settings, ORDER, lambda name: None if installed(name) else f"{name} is not installed", start)
    return chosen
