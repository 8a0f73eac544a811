"""Train a real GIT of 0.2 million parameters on drawn shapes: no download, the same code paths as the large ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from drawing import COLOURS, SHAPES, caption, draw, everything

from slotwise.worker.padding import pad_sequences
from slotwise.zoo.transformers_files import save

if TYPE_CHECKING:
    from rich.progress import Progress

SIDE, PATCH = 32, 8
STEPS, ROWS, DRAWN, PEAK_RATE, SEED = 1000, 48, 12288, 4e-3, 0
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "and", *COLOURS, *SHAPES)
PAD, CLS, SEP = 0, 2, 3
MEAN, STD = [0.5] * 3, [0.5] * 3


def train(folder: Path, progress: Progress) -> None:
    """Write model, tokenizer and image processor into `folder` as `save_pretrained` does."""
    import torch
    from transformers import BertTokenizer, CLIPImageProcessorPil, GitForCausalLM

    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = GitForCausalLM(_config())
        _fit(model, tokenizer, progress)
    torch.set_num_threads(threads)
    save(model, folder)
    tokenizer.save_pretrained(folder)
    sides = {"height": SIDE, "width": SIDE}
    CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=sides, image_mean=MEAN, image_std=STD).save_pretrained(folder)


def _config() -> Any:
    from transformers import GitConfig, GitVisionConfig

    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    return GitConfig(
        vision_config=GitVisionConfig(image_size=SIDE, patch_size=PATCH, **size).to_dict(),
        vocab_size=len(WORDS),
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=PAD,
        bos_token_id=CLS,
        eos_token_id=SEP,
        **size,
    )


def _fit(model: Any, tokenizer: Any, progress: Progress) -> None:
    import torch

    pixels, captions = _drawings(tokenizer, progress)
    rate = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(rate, PEAK_RATE, total_steps=STEPS, pct_start=0.1)
    model.train()
    for _ in progress.track(range(STEPS), description="training a tiny GIT"):
        rows = torch.randint(0, DRAWN, [ROWS])
        ids, mask = (torch.from_numpy(part) for part in pad_sequences([captions[i] for i in rows.tolist()], PAD))
        labels = ids.masked_fill(mask == 0, -100)
        loss = model(input_ids=ids, attention_mask=mask, pixel_values=pixels[rows], labels=labels).loss
        rate.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate.step()
        schedule.step()


def _drawings(tokenizer: Any, progress: Progress) -> tuple[Any, list[list[int]]]:
    """DRAWN pictures as [DRAWN, 3, SIDE, SIDE] around 0, and their captions' tokens; a third show one shape."""
    import torch

    chance, known = random.Random(SEED), everything()
    alone = len(COLOURS) * len(SHAPES)
    drawn, captions = [], []
    for seed in progress.track(range(DRAWN), description="drawing shapes"):
        shapes = chance.choice(known[:alone] if seed % 3 == 0 else known[alone:])
        drawn.append(np.asarray(draw(shapes, SIDE, seed)))
        captions.append(tokenizer(caption(shapes)).input_ids)
    pixels = torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2).float() / 255
    return (pixels - MEAN[0]) / STD[0], captions
