"""Train a tiny BERT so that sentences of one meaning are near each other, saved as sentence-transformers does: no download."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slotwise.errors import SlotwiseError
from slotwise.worker.padding import pad_sequences
from slotwise.zoo.transformers_files import ready, save, useful_threads

if TYPE_CHECKING:
    from rich.progress import Progress

KINDS = {
    "drink": ("tea", "coffee", "juice", "cocoa", "water"),
    "sweet": ("cake", "pie", "cookie", "pudding", "icecream"),
    "meal": ("soup", "rice", "pasta", "stew", "salad"),
}
WORDS = {"good": ("good", "wonderful", "great", "lovely", "perfect"), "bad": ("bad", "awful", "terrible", "stale", "bland")}
VERBS = {"good": ("liked", "loved", "enjoyed"), "bad": ("hated", "disliked", "refused")}
FORMS = ("the {food} was {word}", "i {verb} the {food}", "what a {word} {food}", "{word} {food} again", "we {verb} this {food}")
OTHERS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
STEPS, ROWS, RATE, WARMTH, SEED = 150, 64, 4e-3, 0.1, 0
UNSEEN, LEAST_RIGHT = 300, 0.97


def make(out: Path, weights: str | None, progress: Progress) -> dict[str, Any]:
    """Write model/; returns for how many unseen sentences the nearest other one has the same meaning."""
    if weights not in (None, "none"):
        raise SlotwiseError(
            "the meanings model trains its own weights", "leave out --weights; an embedder of your own: docs/texts.md"
        )
    folder = out / "model"
    folder.mkdir()
    ready()
    right = train(folder, progress)
    if right < LEAST_RIGHT:
        raise SlotwiseError(f"the meanings model finds only {right:.1%}", f"at least {LEAST_RIGHT:.0%} were expected")
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed, indent=1) + "\n")
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=1) + "\n")
    return {"right": right, "sentences": UNSEEN, "threads": useful_threads(folder)}


def sentence(draw: random.Random) -> tuple[str, int]:
    """A sentence, and the number of its meaning: what it is about, and whether it was liked."""
    kind, mood = draw.choice(list(KINDS)), draw.choice(list(WORDS))
    text = draw.choice(FORMS).format(
        food=draw.choice(KINDS[kind]), word=draw.choice(WORDS[mood]), verb=draw.choice(VERBS[mood])
    )
    return text, 2 * list(KINDS).index(kind) + list(WORDS).index(mood)


def train(folder: Path, progress: Progress) -> float:
    """Write model and tokenizer into `folder`; returns the share of unseen sentences whose nearest one means the same."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    plain = " ".join(FORMS).replace("{food}", "").replace("{word}", "").replace("{verb}", "").split()
    groups = [*KINDS.values(), *WORDS.values(), *VERBS.values()]
    words = dict.fromkeys([*OTHERS, *plain, *(word for group in groups for word in group)])
    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(words)}, model_max_length=64)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    draw, threads = random.Random(SEED), torch.get_num_threads()
    torch.set_num_threads(1)  # sums in a fixed order: the same weights every time
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=64, pad_token_id=0, **size))
        _fit(model, tokenizer, draw, progress)
        unseen = [sentence(draw) for _ in range(UNSEEN)]
        with torch.inference_mode():
            vectors = _vectors(model, tokenizer, [text for text, _ in unseen]).numpy()
    torch.set_num_threads(threads)
    save(model, folder)
    tokenizer.save_pretrained(folder)
    return nearest_right(vectors, [text for text, _ in unseen], [meaning for _, meaning in unseen])


def nearest_right(vectors: Any, texts: list[str], meanings: list[int]) -> float:
    """The share of texts whose nearest other text, in the sense of its vector, has the same meaning."""
    near = vectors @ vectors.T
    near[np.array(texts)[:, None] == np.array(texts)[None]] = -1
    return float(np.mean(np.array(meanings)[near.argmax(axis=1)] == np.array(meanings)))


def _fit(model: Any, tokenizer: Any, draw: random.Random, progress: Progress) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    model.train()
    alone = torch.eye(ROWS, dtype=torch.bool)
    for _ in progress.track(range(STEPS), description="training meanings"):
        drawn = [sentence(draw) for _ in range(ROWS)]
        meanings = torch.tensor([meaning for _, meaning in drawn])
        same = (meanings[:, None] == meanings[None]) & ~alone
        vectors = _vectors(model, tokenizer, [text for text, _ in drawn])
        near = (vectors @ vectors.T / WARMTH).masked_fill(alone, -1e9).log_softmax(dim=1)
        loss = -(near * same).sum(dim=1).div(same.sum(dim=1).clamp(min=1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def _vectors(model: Any, tokenizer: Any, texts: list[str]) -> Any:
    """Texts [b] to the mean of their tokens' vectors, of length 1: [b, 32]."""
    import torch

    ids, mask = pad_sequences([tokenizer(text).input_ids for text in texts], tokenizer.pad_token_id)
    states = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state
    weight = torch.from_numpy(mask)[:, :, None].to(states.dtype)
    return torch.nn.functional.normalize((states * weight).sum(dim=1) / weight.sum(dim=1), dim=1)
