"""Pictures of "ants" and "bees" that a network learns in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw


def draw(folder: Path, label: str, seed: int) -> None:
    """An "ant" is dark stripes across, a "bee" is yellow ones upright; shades, sizes and file types vary."""
    random = np.random.default_rng(seed)
    w, h = (int(side) for side in random.integers(48, 90, 2))
    picture = Image.new("RGB", (w, h), tuple(int(c) for c in random.integers(150, 250, 3)))
    pen = ImageDraw.Draw(picture)
    for i in range(0, 90, 12):
        box = (0, i, w, i + 5) if label == "ant" else (i, 0, i + 5, h)
        pen.rectangle(box, (40, 30, 20) if label == "ant" else (250, 210, 20))
    folder.mkdir(parents=True, exist_ok=True)
    picture.save(folder / f"{seed}.{'png' if seed % 2 else 'jpg'}")
