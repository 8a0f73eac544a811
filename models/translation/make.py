"""Make M2M100's files: from a folder, from the hub, or (the default) a tiny model trained here; then int8 for CTranslate2."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus import LANGUAGES, SENTENCES

from slotwise.worker.engines.ctranslate2 import CTranslate2Engine
from slotwise.worker.engines.m2m100 import M2M100Engine
from slotwise.worker.engines.translation import INT8_FOLDER
from slotwise.worker.inputs.text import Vocabulary
from slotwise.zoo.transformers_files import ready, save_local, useful_threads

if TYPE_CHECKING:
    from rich.progress import Progress

NOTE = (
    f"demonstration model: knows {len(SENTENCES)} sentences in {', '.join(LANGUAGES)}; build it with --weights for a real one"
)
LEAST_AGREEMENT = 0.9  # of int8's text with the reference's, 1 = equal; int8 below it is left out of the archive


def make(out: Path, weights: str | None, progress: Progress) -> dict[str, Any]:
    """Write model/ (transformers) with its slotwise.json."""
    started, folder = time.monotonic(), out / "model"
    folder.mkdir()
    ready()
    demonstration = weights in (None, "none")
    if demonstration:
        from tiny import train

        train(folder, progress)
    else:
        save_local(str(weights), folder, "M2M100ForConditionalGeneration", "M2M100Tokenizer")
    made_s, threads = time.monotonic() - started, useful_threads(folder)
    languages = _languages(folder, LANGUAGES if demonstration else None)
    about = {"note": NOTE if demonstration else None, "threads": threads, "languages": languages}
    (folder / "slotwise.json").write_text(json.dumps(about, indent=2), "utf-8")
    return {"made_s": round(made_s, 1), "demonstration": demonstration}


def measure(out: Path, progress: Progress) -> dict[str, Any]:
    """Write int8/ with the CTranslate2 that is installed; returns how far it agrees with the reference."""
    folder, int8 = out / "model", out / INT8_FOLDER
    ready()
    about = json.loads((folder / "slotwise.json").read_text("utf-8"))
    shutil.rmtree(int8, ignore_errors=True)
    _convert(folder, int8)
    measured = _compare(out, Vocabulary.load(folder, about["languages"]), about["threads"], progress)
    if measured["agreement"] < LEAST_AGREEMENT:
        _leave_out(int8, measured["agreement"])
    return measured


def _leave_out(int8: Path, agreement: float) -> None:
    """Replace weights that translate otherwise than the reference by a note: an archive carries only what may serve."""
    shutil.rmtree(int8)
    int8.mkdir()
    reason = f"int8 agrees with the reference on {agreement:.1%} of the text only; {LEAST_AGREEMENT:.0%} are required\n"
    (int8 / "refused.txt").write_text(reason, "utf-8")


def _languages(folder: Path, codes: Sequence[str] | None) -> dict[str, int]:
    """The id of every language's token, as the tokenizer of these weights counts them."""
    from transformers import M2M100Tokenizer

    ids = M2M100Tokenizer.from_pretrained(folder, local_files_only=True).lang_code_to_id
    return {code: ids[code] for code in codes or ids}


def _convert(folder: Path, out: Path) -> None:
    import ctranslate2

    ctranslate2.converters.TransformersConverter(str(folder)).convert(str(out), quantization="int8")


def _compare(out: Path, vocabulary: Vocabulary, threads: int | None, progress: Progress) -> dict[str, Any]:
    """Translate the corpus in every direction with both engines.

    Returns how many texts of each engine are those of the corpus (`right`), and how many are the same in both (`equal`).
    """
    rows = [
        (vocabulary.encode(sentence[a], source), vocabulary.languages[target], sentence[b])
        for sentence in SENTENCES
        for a, source in enumerate(LANGUAGES)
        for b, target in enumerate(LANGUAGES)
        if a != b
    ]
    settings = {"device": "cpu", "threads": threads or len(os.sched_getaffinity(0)), "beams": 1, "max_output_tokens": 128}
    reference = M2M100Engine(out / "model", precision="fp32", **settings)
    quantized = CTranslate2Engine(out / INT8_FOLDER, precision="int8", **settings)
    texts, seconds = {}, {}
    for engine in (reference, quantized):
        begun = time.perf_counter()
        texts[engine.name] = _translate(engine, rows, vocabulary, progress)
        seconds[engine.name] = round(time.perf_counter() - begun, 2)
    pairs = list(zip(texts["transformers"], texts["ctranslate2"], strict=True))
    alike = [difflib.SequenceMatcher(None, one, other, autojunk=False).ratio() for one, other in pairs]
    right = {name: sum(t == row[2] for t, row in zip(translated, rows, strict=True)) for name, translated in texts.items()}
    facts = {"rows": len(rows), "right": right, "equal": sum(one == other for one, other in pairs), "seconds": seconds}
    return {**facts, "agreement": round(sum(alike) / len(alike), 4)}


def _translate(engine: Callable[..., Any], rows: Sequence[Any], vocabulary: Vocabulary, progress: Progress) -> list[str]:
    ids: list[list[int]] = []
    for start in progress.track(range(0, len(rows), 32), description="comparing the engines"):
        group = rows[start : start + 32]
        ids += engine([source for source, _, _ in group], [target for _, target, _ in group])
    return [vocabulary.decode(row) for row in ids]
