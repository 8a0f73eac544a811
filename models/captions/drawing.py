"""Draw pictures of one or two shapes, with their captions: all that the demonstration model is trained on."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from PIL import Image, ImageDraw

COLOURS = {
    "red": (214, 39, 40),
    "green": (34, 139, 34),
    "blue": (31, 70, 210),
    "yellow": (250, 210, 30),
    "purple": (128, 30, 150),
    "black": (15, 15, 15),
}
SHAPES = ("circle", "square", "triangle")
FINE = 2  # drawn this much larger and scaled down, for smooth edges

Shape = tuple[str, str]  # colour, kind


def draw(shapes: Sequence[Shape], side: int, seed: int) -> Image.Image:
    """The shapes side by side on light paper, somewhat moved, sized and turned: RGB, side x side."""
    chance, size = random.Random(seed), side * FINE
    paper = chance.randint(215, 255)
    picture = Image.new("RGB", (size, size), (paper, paper, chance.randint(paper - 10, paper)))
    pen = ImageDraw.Draw(picture)
    room = size / len(shapes)
    for place, (colour, kind) in enumerate(shapes):
        radius = room * chance.uniform(0.34, 0.45)
        x = room * place + chance.uniform(radius, room - radius)
        y = chance.uniform(radius, size - radius)
        shade = tuple(max(0, min(255, part + chance.randint(-14, 14))) for part in COLOURS[colour])
        if kind == "circle":
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=shade)
        else:
            corners, turn = (4, math.pi / 4) if kind == "square" else (3, -math.pi / 2)
            angles = [turn + chance.uniform(-0.06, 0.06) + 2 * math.pi * corner / corners for corner in range(corners)]
            pen.polygon([(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles], fill=shade)
    return picture.resize((side, side), Image.Resampling.LANCZOS)


def caption(shapes: Sequence[Shape]) -> str:
    """ "a red circle", or "a red circle and a blue square" from left to right."""
    return " and ".join(f"a {colour} {kind}" for colour, kind in shapes)


def everything() -> list[list[Shape]]:
    """Each shape alone, and each pair of different ones."""
    ones = [(colour, kind) for colour in COLOURS for kind in SHAPES]
    return [[one] for one in ones] + [[one, other] for one in ones for other in ones if one != other]
