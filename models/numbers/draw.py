"""Draw the examples, pages of digits that the digits model was not trained on, and write what they show: digits.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

PAGES = {"year": ["2026"], "lines": ["31415", "926", "5358"], "light": ["70", "81"], "empty": []}
SIDE, GAP = 40, 14  # pixels of a digit, and between two
ALIKE = 10  # digits to which one must be nearest, all of them the same: no training reads it as another


def page(lines: list[str], seed: int, *, light: bool = False) -> Any:
    """A page [h, w] of lines of digits, each another person's: dark on light, or light on dark."""
    data, draw = load_digits(), np.random.default_rng(seed)
    seen, unseen = train_test_split(np.arange(len(data.target)), test_size=0.2, random_state=0, stratify=data.target)
    near = KNeighborsClassifier(ALIKE).fit(data.data[seen], data.target[seen])
    unseen = unseen[near.predict_proba(data.data[unseen])[range(len(unseen)), data.target[unseen]] == 1]
    step = SIDE + GAP
    paper = np.zeros((step * max(1, len(lines)) + GAP, step * max([1, *map(len, lines)]) + GAP), np.uint8)
    for row, line in enumerate(lines):
        for column, digit in enumerate(line):
            chosen = draw.choice(unseen[data.target[unseen] == int(digit)])
            small = Image.fromarray((data.images[chosen] * 255 / 16).astype(np.uint8))
            top, left = GAP + row * step + int(draw.integers(-2, 3)), GAP + column * step + int(draw.integers(-2, 3))
            paper[top : top + SIDE, left : left + SIDE] = np.asarray(small.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    return paper if light else 255 - paper


def write_examples(folder: Path) -> None:
    """What the committed examples are."""
    folder.mkdir(exist_ok=True)
    for seed, (name, lines) in enumerate(PAGES.items()):
        Image.fromarray(page(lines, seed, light=name == "light")).save(folder / f"{name}.png")
    (folder / "digits.json").write_text(json.dumps({f"{name}.png": "".join(lines) for name, lines in PAGES.items()}) + "\n")


if __name__ == "__main__":
    write_examples(Path(__file__).parent / "examples")
