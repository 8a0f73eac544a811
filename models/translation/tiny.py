"""Train a real M2M100 of 0.2 million parameters on the corpus: no download, the same code paths as the 418 million."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus import LANGUAGES, SENTENCES

from slotwise.worker.inputs.text import BOS, EOS, PAD, UNK, Vocabulary
from slotwise.worker.padding import pad_sequences
from slotwise.zoo.transformers_files import save

if TYPE_CHECKING:
    from rich.progress import Progress

STEPS, ROWS, PEAK_RATE, SEED = 520, 48, 4e-3, 0
IGNORED = -100  # the label that the loss leaves out


def train(folder: Path, progress: Progress) -> None:
    """Write tokenizer and model into `folder` as `save_pretrained` does. Deterministic on one kind of machine."""
    import torch
    from transformers import M2M100ForConditionalGeneration

    tokenizer = _tokenizer(folder)
    vocabulary = Vocabulary.load(folder, {code: tokenizer.get_lang_id(code) for code in LANGUAGES})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model is no faster with two
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = M2M100ForConditionalGeneration(_config(len(tokenizer) + tokenizer.num_madeup_words))
        _fit(model, _pairs(vocabulary), progress)
    torch.set_num_threads(threads)
    save(model, folder)


def _tokenizer(folder: Path) -> Any:
    """A SentencePiece model of the corpus, saved as M2M100's own tokenizer."""
    import io

    import sentencepiece
    from transformers import M2M100Tokenizer
    from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(text for sentence in SENTENCES for text in sentence),
        model_writer=trained,
        vocab_size=500,
        hard_vocab_limit=False,
        character_coverage=1.0,
        bos_id=BOS,
        pad_id=PAD,
        eos_id=EOS,
        unk_id=UNK,
        minloglevel=2,
    )
    spm_file, vocab_file = folder / "sentencepiece.bpe.model", folder / "vocab.json"
    spm_file.write_bytes(trained.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    vocab_file.write_text(json.dumps({pieces.id_to_piece(i): i for i in range(len(pieces))}, ensure_ascii=False), "utf-8")
    names = [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES["m2m100"]]  # or the tokenizer's length is 100 short
    tokenizer = M2M100Tokenizer(str(vocab_file), str(spm_file), additional_special_tokens=names)
    tokenizer.save_pretrained(folder)
    return tokenizer


def _config(vocab_size: int) -> Any:
    from transformers import M2M100Config

    return M2M100Config(
        vocab_size=vocab_size,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        dropout=0.0,
        attention_dropout=0.0,
        max_position_embeddings=512,
    )


def _pairs(vocabulary: Vocabulary) -> list[tuple[list[list[int]], int, list[int]]]:
    """Every direction of every sentence: the source as written and carelessly typed, the target's language, the target."""
    pairs = []
    for sentence in SENTENCES:
        texts = dict(zip(LANGUAGES, sentence, strict=True))
        for source in LANGUAGES:
            written = texts[source]
            typed = [written, written.rstrip(".?!。"), written.lower(), written.lower().rstrip(".?!。")]
            encoded = [vocabulary.encode(text, source) for text in typed]
            for target in (code for code in LANGUAGES if code != source):
                language, *ids = vocabulary.encode(texts[target], target)
                pairs.append((encoded, language, ids))
    return pairs


def _fit(model: Any, pairs: list[tuple[list[list[int]], int, list[int]]], progress: Progress) -> None:
    import torch

    rate = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(rate, PEAK_RATE, total_steps=STEPS, pct_start=0.1)
    waiting: list[list[int]] = []
    model.train()
    for _ in progress.track(range(STEPS), description="training a tiny M2M100"):
        waiting = waiting or _batches(pairs)
        rows = [pairs[i] for i in waiting.pop()]
        typing = torch.randint(0, 8, [len(rows)]).tolist()  # half of the sources as written, half in one of four ways
        sources = [encoded[way % 4 if way > 3 else 0] for (encoded, _, _), way in zip(rows, typing, strict=True)]
        loss = model(**_tensors(sources, [row[1] for row in rows], [row[2] for row in rows])).loss
        rate.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate.step()
        schedule.step()


def _batches(pairs: list[tuple[list[list[int]], int, list[int]]]) -> list[list[int]]:
    """Every pair once, in batches of about equal lengths (a third of the padding) and in random order."""
    import torch

    jitter = torch.rand(len(pairs)).tolist()
    order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][0][0]) + len(pairs[i][2]) + 8 * jitter[i])
    batches = [order[start : start + ROWS] for start in range(0, len(order), ROWS)]
    return [batches[i] for i in torch.randperm(len(batches)).tolist()]


def _tensors(sources: list[list[int]], languages: list[int], targets: list[list[int]]) -> dict[str, Any]:
    """The tensors of one step. The decoder starts with [EOS, language, ...]; its output for the language is not in the loss."""
    import torch

    ids, mask = pad_sequences(sources, PAD)  # [b, t]
    decoder_ids = [[EOS, language, *target[:-1]] for language, target in zip(languages, targets, strict=True)]
    labels, _ = pad_sequences([[IGNORED, *target] for target in targets], IGNORED)
    arrays = {
        "input_ids": ids,
        "attention_mask": mask,
        "decoder_input_ids": pad_sequences(decoder_ids, PAD)[0],
        "labels": labels,
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
