"""Models of texts: tiny encoders of transformers with weights by chance, as `save_pretrained` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.thirty.made import JSON, REQUESTS, TEXT, Body, Made, Shelf, as_json, classified, described, softmax, valued

TEXTS = Shelf()
HF = ("torch", "transformers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "soup", "tea", "cake", "was", "is", "not", "very", "good",
         "bad", "cold", "i", "like", "hate", "it", "and", ",", "."]  # fmt: skip
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
BAD: Sequence[Body] = [(b" ", TEXT), as_json({"text": 7}), as_json({"inputs": None}), (b"\xff", TEXT)]


def sentences(seed: int = 0) -> list[str]:
    """Sixteen texts of 1 to 40 words, unknown ones among them."""
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice([*WORDS[5:], "strange", "☃"], draw.integers(1, 41))) for _ in range(REQUESTS)]


def saved(folder: Path, head: str, kind: str = "Bert", **config: Any) -> tuple[Any, Any]:
    """Write folder/model, and return the library's model and tokenizer."""
    import torch
    import transformers

    from slotwise.zoo.transformers_files import ready

    ready()
    torch.manual_seed(3)
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64} if kind == "DistilBert" else SIZE
    if kind == "Roberta":
        tokenizer, words = byte_pairs(), 300
        sizes = {**SIZE, "pad_token_id": 1, "type_vocab_size": 1}
    else:
        tokenizer, words = (
            transformers.BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)}, model_max_length=64),
            len(WORDS),
        )
        if kind == "DistilBert":
            tokenizer.model_input_names = ["input_ids", "attention_mask"]
    made = getattr(transformers, f"{kind}Config")(vocab_size=words, max_position_embeddings=66, **sizes, **config)
    model = getattr(transformers, f"{kind}{head}")(made).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.startswith(("classifier", "pre_classifier")):
                weight.mul_(20)  # chance gives scores that are all alike
    for one in (model, tokenizer):
        one.save_pretrained(folder / "model")
    return model, tokenizer


def byte_pairs() -> Any:
    """RoBERTa's kind of tokenizer: pairs of bytes."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    marks = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    own = tokenizers.Tokenizer(models.BPE())
    own.pre_tokenizer, own.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=marks, initial_alphabet=alphabet, show_progress=False)
    own.train_from_iterator([" ".join(WORDS[5:])] * 20, trainer)
    own.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=own, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>", mask_token="<mask>",
        model_max_length=64, model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def outputs(model: Any, tokenizer: Any, *texts: Any, part: str = "logits") -> Any:
    """What the library gives, each text by itself: [b, ...]."""
    import torch

    with torch.inference_mode():
        rows = [tokenizer(*(one if isinstance(one, tuple) else (one,)), return_tensors="pt") for one in texts]
        return np.concatenate([getattr(model(**row), part).numpy() for row in rows])


def plain(texts: Sequence[str]) -> list[Body]:
    """Texts as they are, and in two forms of JSON."""
    return [[(one.encode(), TEXT), as_json(one), as_json({"text": one})][i % 3] for i, one in enumerate(texts)]


def names(*labels: str) -> dict[str, Any]:
    return {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}


@TEXTS.add("hf-texts", "transformers", "BERT: a label a text", needs=HF)
def texts(folder: Path) -> Made:
    model, tokenizer = saved(folder, "ForSequenceClassification", **names("cold", "mild", "warm"))
    described(folder, "text_classifier", 'files = ["model"]')
    asks = sentences()
    return Made(plain(asks), classified(softmax(outputs(model, tokenizer, *asks)), ["cold", "mild", "warm"]), BAD)


@TEXTS.add("hf-pairs", "transformers", "BERT: a label for a pair of texts", needs=HF)
def pairs(folder: Path) -> Made:
    model, tokenizer = saved(folder, "ForSequenceClassification", **names("same", "other"))
    described(folder, "text_classifier", 'files = ["model"]', "[options]\npairs = true\n")
    asks = [(one[:60], other[:60]) for one, other in zip(sentences(), sentences(1), strict=True)]
    bodies = [as_json({"text": one, "text_pair": other}) for one, other in asks]
    return Made(
        bodies, classified(softmax(outputs(model, tokenizer, *asks)), ["same", "other"]), [*BAD, as_json({"text": "alone"})]
    )


@TEXTS.add("hf-several-labels", "transformers", "RoBERTa: several labels a text, pairs of bytes", needs=HF)
def several_labels(folder: Path) -> Made:
    model, tokenizer = saved(
        folder,
        "ForSequenceClassification",
        "Roberta",
        problem_type="multi_label_classification",
        **names("food", "drink", "mood"),
    )
    described(folder, "text_classifier", 'files = ["model"]')
    asks = [one[:50] for one in sentences()]
    scores = 1 / (1 + np.exp(-outputs(model, tokenizer, *asks)))
    return Made(plain(asks), classified(scores, ["food", "drink", "mood"]), BAD)


@TEXTS.add("hf-value", "transformers", "DistilBERT: a value a text", needs=HF)
def value(folder: Path) -> Made:
    model, tokenizer = saved(folder, "ForSequenceClassification", "DistilBert", num_labels=1, problem_type="regression")
    described(folder, "text_classifier", 'files = ["model"]')
    asks = sentences()
    return Made(plain(asks), valued(outputs(model, tokenizer, *asks)), BAD)


@TEXTS.add("hf-tokens", "transformers", "BERT: a label for each token", "no ...ForSequenceClassification", needs=HF)
def tokens(folder: Path) -> Made:
    saved(folder, "ForTokenClassification", **names("other", "food"))
    described(folder, "text_classifier", 'files = ["model"]')
    return Made([], [], [])


def pooled(model: Any, tokenizer: Any, texts: Sequence[str], *, mean: bool) -> Any:
    """Embeddings [b, 32], normalised."""
    rows = []
    for one in texts:
        states = outputs(model, tokenizer, one, part="last_hidden_state")[0]
        row = states.mean(0) if mean else states[0]
        rows.append(row / np.linalg.norm(row))
    return np.stack(rows)


@TEXTS.add("hf-embedding-mean", "transformers", "a sentence's embedding: the mean of its tokens, normalised", needs=HF)
def embedding_mean(folder: Path) -> Made:
    model, tokenizer = saved(folder, "Model")
    described(folder, "embedder", 'files = ["model"]', '[options]\npooling = "mean"\nnormalise = true\n')
    asks = sentences()
    return Made(plain(asks), valued(pooled(model, tokenizer, asks, mean=True)), BAD)


@TEXTS.add("hf-embedding-first", "sentence-transformers", "the first token's, as its own modules.json says", needs=HF)
def embedding_first(folder: Path) -> Made:
    import json

    model, tokenizer = saved(folder, "Model", "DistilBert")
    modules = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling"),
               ("2_Normalize", "sentence_transformers.models.Normalize")]  # fmt: skip
    listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)]
    (folder / "model" / "modules.json").write_text(json.dumps(listed))
    (folder / "model" / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "model" / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    described(folder, "embedder", 'files = ["model"]')
    asks = sentences()
    return Made(plain(asks), valued(pooled(model, tokenizer, asks, mean=False)), [*BAD, (b"{", JSON)])
