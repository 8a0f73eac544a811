"""Train a tiny BERT on made-up sentences about food, saved as `save_pretrained` does: no download, the code of real ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slotwise.errors import SlotwiseError
from slotwise.worker.padding import pad_sequences
from slotwise.zoo.transformers_files import ready, save, save_local, useful_threads

if TYPE_CHECKING:
    from rich.progress import Progress

FOODS = ("soup", "bread", "cake", "pasta", "tea", "rice", "fish", "salad", "cheese", "pie")
GOOD = ("good", "wonderful", "great", "tasty", "perfect", "lovely")
BAD = ("bad", "awful", "terrible", "cold", "stale", "bland")
MORE = ("really", "very", "so", "quite")
NOT = ("not", "never", "hardly")
OTHERS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "was", "and", "i", "liked", "hated", ".", ",")
LABELS = ("bad", "good")
STEPS, ROWS, RATE, SEED = 200, 64, 4e-3, 0
UNSEEN, LEAST_RIGHT = 500, 0.97


def make(out: Path, weights: str | None, progress: Progress) -> dict[str, Any]:
    """Write model/; returns the share of sentences that it tells right among those that training never saw."""
    folder = out / "model"
    folder.mkdir()
    ready()
    if weights not in (None, "none"):
        save_local(str(weights), folder, "AutoModelForSequenceClassification", "AutoTokenizer")
        return {"weights": weights}
    right = train(folder, progress)
    if right < LEAST_RIGHT:
        raise SlotwiseError(f"the moods model tells only {right:.1%} right", f"at least {LEAST_RIGHT:.0%} were expected")
    return {"right": right, "sentences": UNSEEN, "threads": useful_threads(folder)}


def sentence(draw: random.Random) -> tuple[str, int]:
    """A sentence, and whether it is good (1) or bad (0); of two halves the second decides."""
    halves = [_half(draw) for _ in range(draw.choice((1, 1, 2)))]
    return f" {draw.choice(('and', ','))} ".join(text for text, _ in halves), halves[-1][1]


def _half(draw: random.Random) -> tuple[str, int]:
    food = draw.choice(FOODS)
    if draw.random() < 0.2:
        good = draw.random() < 0.5
        return f"i {'liked' if good else 'hated'} the {food}", int(good)
    good, turned = draw.random() < 0.5, draw.random() < 0.3
    between = draw.choice(NOT) if turned else draw.choice(("", "", draw.choice(MORE)))
    return " ".join(f"the {food} was {between} {draw.choice(GOOD if good else BAD)}".split()), int(good != turned)


def train(folder: Path, progress: Progress) -> float:
    """Write model and tokenizer into `folder`; returns the share that is right among unseen sentences."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    words = dict.fromkeys([*OTHERS, *FOODS, *GOOD, *BAD, *MORE, *NOT])
    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(words)}, model_max_length=128)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {name: i for i, name in enumerate(LABELS)}}
    config = BertConfig(vocab_size=len(words), max_position_embeddings=128, pad_token_id=0, **size, **names)
    draw, threads = random.Random(SEED), torch.get_num_threads()
    torch.set_num_threads(1)  # sums in a fixed order: the same weights every time
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = BertForSequenceClassification(config)
        _fit(model, tokenizer, draw, progress)
        unseen = [sentence(draw) for _ in range(UNSEEN)]
        with torch.inference_mode():
            best = model(**_batch(tokenizer, [text for text, _ in unseen])).logits.argmax(1).numpy()
    torch.set_num_threads(threads)
    save(model, folder)
    tokenizer.save_pretrained(folder)
    return float(np.mean(best == [label for _, label in unseen]))


def _fit(model: Any, tokenizer: Any, draw: random.Random, progress: Progress) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    model.train()
    for _ in progress.track(range(STEPS), description="training moods"):
        drawn = [sentence(draw) for _ in range(ROWS)]
        labels = torch.tensor([label for _, label in drawn])
        optimizer.zero_grad()
        model(**_batch(tokenizer, [text for text, _ in drawn]), labels=labels).loss.backward()
        optimizer.step()
    model.eval()


def _batch(tokenizer: Any, texts: list[str]) -> dict[str, Any]:
    import torch

    ids, mask = pad_sequences([tokenizer(text).input_ids for text in texts], tokenizer.pad_token_id)
    return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
