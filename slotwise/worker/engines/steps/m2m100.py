"""Decode M2M100 step by step: the network of engines/m2m100.py, with a cache for each slot.

Whoever advances it chooses the tokens, greedily or by drawing them.

Letters: b rows of a step, n slots, l layers, h heads, d numbers of a head, t tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from slotwise.worker.engines.choice import choose, installed
from slotwise.worker.engines.pretrained import FOLDER, load_pretrained, precision_of, release
from slotwise.worker.environment.settings import Settings
from slotwise.worker.inputs.text import EOS, PAD, pack
from slotwise.worker.padding import pad_sequences
from slotwise.worker.steps.step_engine import StepEngine, StepRow

ORDER = {"cpu": ("transformers",), "cuda": ("transformers",)}
PREFIX = 2  # positions of the decoder before the answer: the end token, which starts it, and the language
GROUP_TOKENS = 1024  # of the sources that are encoded at once, padding among them
FIRST_POSITION = PAD + 1  # row of the table of positions


class TranslatedItem(Protocol):
    """source: token ids, language first; empty where nothing has to be translated. target: the id of the target language."""

    source: Sequence[int]
    target: int


class Places(NamedTuple):
    """Which slots b rows have. where: [b]. among: how many slots, from the first on, are attended to as they lie; 0 means that
    those of the rows are copied together. whole: whether the rows are these slots, in order.
    """

    where: Any
    among: int
    whole: bool


class M2M100StepEngine(StepEngine):
    """An engine of M2M100 whose output is a row of logits [v]. Its caches have their whole size from the start."""

    name = "transformers"
    together = True

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
        self.heads, size = self.model.config.decoder_attention_heads, self.model.config.d_model
        shape = (len(self.decoder.layers), slots + 1, 2, self.heads)
        options = {"device": device, "dtype": self.model.dtype}
        longest = longest_answer + PREFIX
        self.cache = torch.zeros(*shape, longest, size // self.heads, **options)  # [l, n, 2, h, t, d], keys and values
        self.source = torch.zeros(*shape, longest_item, size // self.heads, **options)
        with torch.inference_mode():
            self.own = [_in_one(block.self_attn, "qkv") for block in self.decoder.layers]
            self.seen = [_in_one(block.encoder_attn, "kv") for block in self.decoder.layers]
        self.lengths = [0] * (slots + 1)  # of the sources
        self.written = [0] * (slots + 1)  # positions of the decoder that were ever written since the slot was emptied

    def tokens(self, item: TranslatedItem) -> int:
        """The source's tokens."""
        return len(item.source)

    def prefill(self, slot: int, item: TranslatedItem) -> Any:
        """Encode the source, and start the decoder with the language. Zeros [v] where the source is empty."""
        return self.prefill_all([slot], [item])[0]

    def prefill_all(self, slots: Sequence[int], items: Sequence[TranslatedItem]) -> Any:
        """Encode sources of similar length at once, and start the decoder of all: [b, v]."""
        import torch  # noqa: PLC0415  heavy

        with torch.inference_mode():
            self._empty(slots)
            logits = torch.zeros(len(items), self.model.config.vocab_size, device=self.device)
            told = [i for i, item in enumerate(items) if item.source]
            if not told:
                return logits
            for group in pack([len(items[i].source) for i in told], len(told), GROUP_TOKENS):
                self._encode([slots[told[k]] for k in group], [items[told[k]].source for k in group])
            started = [slots[i] for i in told]
            prefix = [[EOS, items[i].target] for i in told]
            logits[told] = self._decoded(started, prefix, [list(range(PREFIX))] * len(told))
            return logits

    def step(self, rows: Sequence[StepRow]) -> Any:
        """Logits [b, v] after each row's token."""
        import torch  # noqa: PLC0415  heavy

        with torch.inference_mode():
            slots, tokens, positions = zip(*rows, strict=True)
            return self._decoded(slots, [[token] for token in tokens], [[position + PREFIX] for position in positions])

    def release(self) -> None:
        """Free what a failed call holds."""
        release(self.device)

    def _empty(self, slots: Sequence[int]) -> None:
        """Empty what was ever written to these slots: what is not finite would spoil a sum in which it weighs nothing."""
        for slot in slots:
            self.cache[:, slot, :, :, : self.written[slot]] = 0
            self.source[:, slot, :, :, : self.lengths[slot]] = 0
            self.written[slot] = self.lengths[slot] = 0

    def _encode(self, slots: Sequence[int], sources: Sequence[Sequence[int]]) -> None:
        """Write what the decoder sees of these sources."""
        import torch  # noqa: PLC0415  heavy

        ids, mask = (torch.from_numpy(part).to(self.device) for part in pad_sequences(sources, PAD))  # [b, t]
        encoded = self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        encoded = encoded.masked_fill(mask[:, :, None] == 0, 0)  # [b, t, h * d]
        place, t = torch.tensor(list(slots), device=self.device), ids.shape[1]
        for slot, source in zip(slots, sources, strict=True):
            self.lengths[slot] = len(source)
        for cache, both in zip(self.source, self.seen, strict=True):
            cache[place, :, :, :t] = self._heads(both(encoded)).permute(0, 2, 3, 1, 4)

    def _decoded(self, slots: Sequence[int], tokens: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]) -> Any:
        """Write t tokens to each slot, at its positions of the decoder, both [b, t]: the logits after the last, [b, v]."""
        import torch  # noqa: PLC0415  heavy

        order = sorted(range(len(slots)), key=slots.__getitem__)
        slots = [slots[i] for i in order]
        ids, at = (torch.tensor([numbers[i] for i in order], device=self.device) for numbers in (tokens, positions))  # [b, t]
        for slot, i in zip(slots, order, strict=True):
            self.written[slot] = max(self.written[slot], positions[i][-1] + 1)
        until, longest = max(row[-1] for row in positions) + 1, max(self.lengths[slot] for slot in slots)
        table = self.decoder.embed_positions.weights
        hidden = self.decoder.embed_tokens(ids) + table[torch.where(ids == PAD, PAD, at + FIRST_POSITION)]  # [b, t, h * d]
        lengths = torch.tensor([self.lengths[slot] for slot in slots], device=self.device)
        places, row = self._places(slots), torch.tensor(slots, device=self.device)[:, None]  # [b, 1]
        written = self._mask((torch.arange(until, device=self.device) <= at[:, :, None])[:, None], places)
        source = self._mask((torch.arange(longest, device=self.device) < lengths[:, None])[:, None, None], places)
        for layer, block in enumerate(self.decoder.layers):
            asked = self._heads(self.own[layer](block.self_attn_layer_norm(hidden)))  # [b, t, 3, h, d]
            self.cache[layer][row, :, :, at] = asked[:, :, 1:]
            held = self.cache[layer, :, :, :, :until]
            hidden = hidden + self._attended(block.self_attn, asked[:, :, 0], held, written, places)
            asked = self._heads(block.encoder_attn.q_proj(block.encoder_attn_layer_norm(hidden)))
            held = self.source[layer, :, :, :, :longest]
            hidden = hidden + self._attended(block.encoder_attn, asked[:, :, 0], held, source, places)
            rows = block.final_layer_norm(hidden)
            hidden = hidden + block.fc2(block.activation_fn(block.fc1(rows)))
        last = torch.empty_like(hidden[:, -1])
        last[order] = hidden[:, -1]
        return self.model.lm_head(self.decoder.layer_norm(last)).float()

    def _places(self, slots: Sequence[int]) -> Places:
        """slots: sorted. Where hardly any is missing among the first ones, copying them together costs more than it saves."""
        import torch  # noqa: PLC0415  heavy

        b, among = len(slots), slots[-1] + 1
        near = len(set(slots)) == b and 4 * b >= 3 * among
        return Places(torch.tensor(slots, device=self.device), among if near else 0, near and b == among)

    def _mask(self, there: Any, places: Places) -> Any:
        """What is added to the weights of tokens [n, 1, t or 1, tokens], by which of them there are [b, ...]."""
        import torch  # noqa: PLC0415  heavy

        return self._spread(torch.zeros_like(there, dtype=self.model.dtype).masked_fill_(~there, -float("inf")), places)

    def _spread(self, rows: Any, places: Places) -> Any:
        """Rows [b, ...] as they lie among the slots [n, ...], zeros in those that are nobody's; else as they are."""
        if places.whole or not places.among:
            return rows
        return rows.new_zeros((places.among, *rows.shape[1:])).index_copy_(0, places.where, rows)

    def _attended(self, attention: Any, queries: Any, held: Any, mask: Any, places: Places) -> Any:
        """Attention of each row to its own slot's tokens: [b, t, h * d]. queries: [b, t, h, d]. held: [slots, 2, h, tokens, d].

        mask: [n, 1, t or 1, tokens], of `_mask`.
        """
        import torch  # noqa: PLC0415  heavy

        held = held[: places.among] if places.among else held[places.where]
        attended = torch.nn.functional.scaled_dot_product_attention(
            self._spread(queries.transpose(1, 2), places), held[:, 0], held[:, 1], attn_mask=mask, scale=attention.scaling
        )  # [n, h, t, d]
        if places.among and not places.whole:
            attended = attended[places.where]
        return attention.out_proj(attended.transpose(1, 2).flatten(2))

    def _heads(self, rows: Any) -> Any:
        """[b, t, m * h * d] to [b, t, m, h, d]."""
        return rows.reshape(*rows.shape[:2], -1, self.heads, self.cache.shape[-1])


def _in_one(attention: Any, which: str) -> Any:
    """The projections of an attention in one, which takes one call. They share its memory, so the weights are there once."""
    import torch  # noqa: PLC0415  heavy

    parts = [getattr(attention, f"{letter}_proj") for letter in which]
    size = parts[0].out_features
    whole = torch.nn.Linear(parts[0].in_features, size * len(parts), device=parts[0].weight.device, dtype=parts[0].weight.dtype)
    for name in ("weight", "bias"):
        numbers = getattr(whole, name)
        numbers.requires_grad_(False).copy_(torch.cat([getattr(part, name) for part in parts]))
        for i, part in enumerate(parts):
            getattr(part, name).data = numbers.data[i * size : (i + 1) * size]
    return whole


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
