"""Find a drawn or photographed sign on its paper: of any size, dark on light or light on dark.

The paper is whatever the picture's border shows, and ink is what differs from it. The ink is cut out, scaled so that its longer
side fills the item but for a margin, and centred, white on black, as in the training pictures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

MARGIN = 4 / 28  # of the item's side, left free on each side of the sign
SEARCH = 256  # pixels of the longer side in which the sign is looked for
FAINT = 12  # grey levels; a picture with less contrast is blank
EDGE = 0.35  # of the full contrast; the sign is where the ink is stronger


def fit_ink(grey: Image.Image, height: int, width: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Turn an "L" picture into uint8 [height, width] with its sign white on black; a blank picture into zeros."""
    if max(grey.size) > SEARCH:
        grey.thumbnail((SEARCH, SEARCH))
    pixels = np.asarray(grey).astype(np.float32)  # [h, w]
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    low, high = float(pixels.min()), float(pixels.max())
    if high - low < FAINT:
        return np.zeros((height, width), np.uint8)
    ink = (pixels - low) / (high - low)
    if float(border.mean()) > (low + high) / 2:
        ink = 1 - ink
    strong = ink > EDGE
    rows, columns = np.flatnonzero(strong.any(axis=1)), np.flatnonzero(strong.any(axis=0))
    cut = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = min(height, width) * (1 - 2 * MARGIN) / max(cut.shape)
    size = (max(1, round(cut.shape[1] * scale)), max(1, round(cut.shape[0] * scale)))
    sign = np.asarray(Image.fromarray((cut * 255).astype(np.uint8)).resize(size, Image.Resampling.BILINEAR))
    item = np.zeros((height, width), np.uint8)
    top, left = (height - size[1]) // 2, (width - size[0]) // 2
    item[top : top + size[1], left : left + size[0]] = sign
    return item
