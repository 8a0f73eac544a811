"""What the text tests send: the demonstration model's own sentences, and stranger things."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Iterator
from typing import Any

from slotwise.files.project import model_folder


def _corpus() -> Any:
    spec = importlib.util.spec_from_file_location("translation_corpus", model_folder("translation") / "corpus.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LANGUAGES: tuple[str, ...] = _corpus().LANGUAGES
SENTENCES: tuple[tuple[str, ...], ...] = _corpus().SENTENCES


def payload(records: Any, *, source: Any = "en", target: Any = "fr") -> bytes:
    """One request's body."""
    return json.dumps({"payload": {"fromLang": source, "toLang": target, "records": records}}).encode()


def directions() -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Every pair of languages: source, target, the texts, their translations."""
    for a, source in enumerate(LANGUAGES):
        for b, target in enumerate(LANGUAGES):
            if a != b:
                yield source, target, [s[a] for s in SENTENCES], [s[b] for s in SENTENCES]


def odd_texts(count: int, seed: int = 0) -> list[str]:
    """Texts of 1 to 40 words that no training has seen, in no language and in several."""
    draw = random.Random(seed)
    words = [word for sentence in SENTENCES for text in sentence for word in text.split()] + ["</s>", "__fr__", "☃", "<unk>"]
    return [" ".join(draw.choices(words, k=draw.randint(1, 40))) for _ in range(count)]
