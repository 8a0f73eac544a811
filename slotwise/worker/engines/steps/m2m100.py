"""Decode M2M100 step by step: the network of engines/m2m100.py, with a cache for each slot.

Whoever advances it chooses the tokens, greedily or by drawing them.

Letters: b rows of a step, l layers, h heads, d numbers of a head, t tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from slotwise.worker.engines.choice import choose, installed
from slotwise.worker.engines.pretrained import FOLDER, load_pretrained, precision_of, release
from slotwise.worker.environment.settings import Settings
from slotwise.worker.inputs.text import EOS, PAD
from slotwise.worker.steps.step_engine import StepEngine, StepRow

ORDER = {"cpu": ("transformers",), "cuda": ("transformers",)}
PREFIX = 2  # positions of the decoder before the answer: the end token, which starts it, and the language
FIRST_POSITION = PAD + 1  # row of the table of positions


class TranslatedItem(Protocol):
    """source: token ids, language first; empty where nothing has to be translated. target: the id of the target language."""

    source: Sequence[int]
    target: int


class M2M100StepEngine(StepEngine):
    """An engine of M2M100 whose output is a row of logits [v]. Its caches have their whole size from the start."""

    name = "transformers"

    def __init__(
        self, folder: Path, *, device: str, precision: str, threads: int, slots: int, longest_item: int, longest_answer: int
    ):
        import torch  # noqa: PLC0415  heavy

        torch.set_num_threads(threads)
        self.device, self.precision, self.slots = device, precision, slots
        self.longest_item, self.longest_answer = longest_item, longest_answer
        self.model = load_pretrained("M2M100ForConditionalGeneration", folder, device, precision)
        self.decoder = self.model.model.decoder
        self.decoder.embed_positions.make_weights(longest_answer + PREFIX + FIRST_POSITION, self.model.config.d_model, PAD)
        heads, size = self.model.config.decoder_attention_heads, self.model.config.d_model
        shape = (len(self.decoder.layers), slots + 1, heads)
        options = {"device": device, "dtype": self.model.dtype}
        longest = longest_answer + PREFIX
        self.keys, self.values = torch.zeros(2, *shape, longest, size // heads, **options)  # [l, slots, h, t, d]
        self.source_keys, self.source_values = torch.zeros(2, *shape, longest_item, size // heads, **options)
        self.lengths = torch.zeros(slots + 1, dtype=torch.long, device=device)  # of the sources

    def tokens(self, item: TranslatedItem) -> int:
        """The source's tokens."""
        return len(item.source)

    def prefill(self, slot: int, item: TranslatedItem) -> Any:
        """Encode the source, and start the decoder with the language. Zeros [v] where the source is empty."""
        import torch  # noqa: PLC0415  heavy

        with torch.inference_mode():
            for cache in (self.keys, self.values, self.source_keys, self.source_values):
                cache[:, slot] = 0  # what is not finite would spoil a sum in which it weighs nothing
            if not item.source:
                return torch.zeros(self.model.config.vocab_size)
            ids = torch.tensor([list(item.source)], device=self.device)  # [1, t]
            encoded = self.model.get_encoder()(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
            t = self.lengths[slot] = len(encoded)
            for layer, block in enumerate(self.decoder.layers):
                self.source_keys[layer, slot, :, :t] = self._heads(block.encoder_attn.k_proj(encoded)).transpose(0, 1)
                self.source_values[layer, slot, :, :t] = self._heads(block.encoder_attn.v_proj(encoded)).transpose(0, 1)
            self._decoded([slot], [EOS], [0])
            return self._decoded([slot], [item.target], [1])[0]

    def step(self, rows: Sequence[StepRow]) -> Any:
        """Logits [b, v] after each row's token."""
        import torch  # noqa: PLC0415  heavy

        with torch.inference_mode():
            slots, tokens, positions = zip(*rows, strict=True)
            return self._decoded(slots, tokens, [position + PREFIX for position in positions])

    def release(self) -> None:
        """Free what a failed call holds."""
        release(self.device)

    def _decoded(self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int]) -> Any:
        """Write one token to each slot, at its position of the decoder: the logits after it, [b, v]."""
        import torch  # noqa: PLC0415  heavy

        place, ids, at = (torch.tensor(list(numbers), device=self.device) for numbers in (slots, tokens, positions))  # [b]
        table = self.decoder.embed_positions.weights
        hidden = self.decoder.embed_tokens(ids) + table[torch.where(ids == PAD, PAD, at + FIRST_POSITION)]  # [b, h * d]
        until, longest = int(at.max()) + 1, int(self.lengths[place].max())
        written = torch.arange(until, device=self.device) <= at[:, None]  # [b, t]
        source = torch.arange(longest, device=self.device) < self.lengths[place][:, None]
        for layer, block in enumerate(self.decoder.layers):
            attention, rows = block.self_attn, block.self_attn_layer_norm(hidden)
            self.keys[layer, place, :, at] = self._heads(attention.k_proj(rows))
            self.values[layer, place, :, at] = self._heads(attention.v_proj(rows))
            keys, values = self.keys[layer, place, :, :until], self.values[layer, place, :, :until]
            hidden = hidden + self._attended(attention, rows, keys, values, written)
            attention, rows = block.encoder_attn, block.encoder_attn_layer_norm(hidden)
            keys, values = self.source_keys[layer, place, :, :longest], self.source_values[layer, place, :, :longest]
            hidden = hidden + self._attended(attention, rows, keys, values, source)
            rows = block.final_layer_norm(hidden)
            hidden = hidden + block.fc2(block.activation_fn(block.fc1(rows)))
        return self.model.lm_head(self.decoder.layer_norm(hidden)).float()

    def _attended(self, attention: Any, rows: Any, keys: Any, values: Any, mask: Any) -> Any:
        """Attention of each row to its own slot's tokens: [b, h * d]. mask: [b, t], which of them there are."""
        import torch  # noqa: PLC0415  heavy

        queries = self._heads(attention.q_proj(rows))[:, :, None]  # [b, h, 1, d]
        attended = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask[:, None, None], scale=attention.scaling
        )
        return attention.out_proj(attended.reshape(len(rows), -1))

    def _heads(self, rows: Any) -> Any:
        """[n, h * d] to [n, h, d]."""
        return rows.reshape(len(rows), self.model.config.decoder_attention_heads, -1)


def load(model_dir: Path, settings: Settings, *, beams: int, max_input_tokens: int, max_output_tokens: int) -> M2M100StepEngine:
    """The archive's M2M100 with as many slots as the registration's batch_size. Raises ValueError where it cannot decode so."""
    if settings.engine == "ctranslate2":
        raise ValueError('ctranslate2 lets no request join a running batch: decoding = "steps" needs the engine transformers')
    if beams != 1:
        raise ValueError(f'beams is {beams}, but decoding = "steps" is greedy')

    def start(name: str) -> M2M100StepEngine:
        return M2M100StepEngine(
            model_dir / FOLDER,
            device=settings.device,
            precision=precision_of(settings),
            threads=settings.threads,
            slots=settings.batch_size,
            longest_item=max_input_tokens,
            longest_answer=max_output_tokens,
        )

    chosen: M2M100StepEngine = choose(
        settings, ORDER, lambda name: None if installed(name) else f"{name} is not installed", start
    )
    return chosen
