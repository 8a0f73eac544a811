"""Find the digits of a picture, and hand each on as a picture of its own."""

import io

import numpy as np
from PIL import Image

from slotwise.worker import BatchHandler, StagePart
from slotwise.worker.inputs.images import cost, decode_rgb

FAINT = 24  # grey levels; a picture with less contrast is empty paper
INK = 0.35  # of the full contrast
LEAST = 4  # pixels of a digit's longer side; less is a speck
MOST_PIXELS = 4_000_000


class Find(BatchHandler):
    """An item is a grey picture [h, w]; its output are boxes (left, top, right, bottom) in the order of reading."""

    def load(self, model_dir, settings):
        return lambda pictures: [boxes(ink_of(picture)) for picture in pictures]

    def example(self):
        return np.zeros((8, 8), np.uint8)

    def cost(self, body, headers):
        return cost(body, max_pixels=MOST_PIXELS)

    def decode(self, body, headers):
        return [np.asarray(Image.fromarray(decode_rgb(body, max_pixels=MOST_PIXELS)).convert("L"))]

    def collate(self, items):
        return items  # of any sizes

    def encode(self, output, item):
        return [StagePart(png(item, box), {"box": list(box)}, "image/png") for box in output]


def ink_of(grey):
    """Where a picture [h, w] has ink, as truths: it differs from the paper, which is what the border shows."""
    pixels = grey.astype(np.float32)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    apart = np.abs(pixels - np.median(border))
    return apart > INK * apart.max() if apart.max() >= FAINT else np.zeros(grey.shape, bool)


def boxes(ink):
    """The digits of [h, w] truths, line by line and from left to right."""
    found = []
    for top, bottom in runs(ink.any(axis=1)):
        for left, right in runs(ink[top:bottom].any(axis=0)):
            rows = np.flatnonzero(ink[top:bottom, left:right].any(axis=1))
            box = (left, top + int(rows[0]), right, top + int(rows[-1]) + 1)
            if max(box[2] - box[0], box[3] - box[1]) >= LEAST:
                found.append(box)
    return found


def runs(truths):
    """Where truths [n] are true without a gap: (first, behind the last)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], truths, [False]]).astype(np.int8)))
    return [(int(first), int(last)) for first, last in zip(edges[::2], edges[1::2], strict=True)]


def png(grey, box):
    """A digit with some paper around it, as PNG."""
    left, top, right, bottom = box
    around = 2 + max(right - left, bottom - top) // 5
    paper = int(np.median(np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])))
    part = np.pad(grey[top:bottom, left:right], around, constant_values=paper)
    file = io.BytesIO()
    Image.fromarray(part).save(file, "PNG")
    return file.getvalue()


handle = Find.entry_point()
