"""Tiny models and a tokenizer of transformers, made of their configurations with a seed: nothing is fetched."""

from __future__ import annotations

from typing import Any

import pytest

from slotwise.worker.engines.torchvision_compat import ensure_importable

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>"]
TEXTS = [
    *("the cat sat on the mat .", "alice likes the dog", "bob likes the cat", "a good movie", "a bad movie"),
    *("dora runs fast", "what is the name ?", "the secret is alice", "carol is slow"),
]
WORDS = [*SPECIAL, *dict.fromkeys(" ".join((*TEXTS, "en de")).split())]
BERT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "bos_token_id": 5, "eos_token_id": 6, "pad_token_id": 0}


def transformers() -> Any:
    """The library, which is imported by whoever makes a model of it, and by no other test."""
    ensure_importable()
    library = pytest.importorskip("transformers", reason="transformers is not installed: scripts/setup.sh test")
    library.logging.set_verbosity_error()
    return library


def tokenizer(**given: Any) -> Any:
    """One that knows WORDS, split at spaces."""
    library, tokenizers = transformers(), pytest.importorskip("tokenizers")
    known = {word: i for i, word in enumerate(WORDS)}
    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="[UNK]"))
    bare.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    bare.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")
    tokens = dict(zip(names, SPECIAL, strict=True))
    return library.PreTrainedTokenizerFast(tokenizer_object=bare, model_max_length=32, **{**tokens, **given})


def bert(kind: str = "BertForSequenceClassification", **given: Any) -> Any:
    """An encoder, by default a classifier of two labels."""
    library, torch = transformers(), pytest.importorskip("torch")
    torch.manual_seed(0)
    configuration = library.BertConfig(vocab_size=len(WORDS), pad_token_id=0, initializer_range=0.5, **BERT, **given)
    return getattr(library, kind)(configuration).eval()


def gpt2(**given: Any) -> Any:
    """A decoder."""
    library, torch = transformers(), pytest.importorskip("torch")
    torch.manual_seed(1)
    configuration = library.GPT2Config(vocab_size=len(WORDS), initializer_range=0.5, **GPT2, **given)
    return library.GPT2LMHeadModel(configuration).eval()
