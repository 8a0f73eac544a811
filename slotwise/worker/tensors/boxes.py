"""Turn a detector's boxes and scores into what it found: the boxes over a score, without those that another one covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

FORMS = ("corners", "centre")  # left, top, right, bottom; or the middle, width and height
UNITS = ("pixels", "fractions")  # of the network's input; or of its sides, 0 to 1
MOST = 300  # boxes of one picture
CANDIDATES = 3000  # of one class: more are compared with none

Found = tuple[tuple[float, float, float, float], int, float]


@dataclass(frozen=True)
class BoxRules:
    """form, unit: what the network's numbers are. logits: whether a sigmoid makes scores of them. least: the least score.

    overlap: a box is left out that shares more of its union with a better one of its class. most: boxes that are answered.
    """

    form: str
    unit: str
    logits: bool
    least: float = 0.5
    overlap: float = 0.5
    most: int = MOST

    @classmethod
    def of(cls, options: Mapping[str, Any], output: str) -> BoxRules:
        """The rules in [options] of a model.toml. Raises ValueError, one line, where one is missing or wrong."""
        form, unit = options.get("form"), options.get("unit")
        if form not in FORMS or unit not in UNITS:
            raise ValueError("[options] must say form (corners or centre) and unit (pixels or fractions) of the boxes")
        least, overlap, most = options.get("least", 0.5), options.get("overlap", 0.5), options.get("most", MOST)
        if not all(type(one) in (int, float) and 0 < one <= 1 for one in (least, overlap)):
            raise ValueError("[options] least and overlap are over 0, and at most 1")
        if type(most) is not int or not 0 < most <= MOST:
            raise ValueError(f"[options] most is 1 to {MOST}")
        return cls(form, unit, output == "logits", float(least), float(overlap), most)


def found(boxes: Any, scores: Any, rules: BoxRules, side: tuple[int, int], size: tuple[int, int]) -> list[Found]:
    """What is in one picture, the best first: its box in the picture's pixels, its class's number, its score.

    boxes [n, 4], scores [n, classes]. side: the network's width and height, size: the picture's. Raises ValueError where a
    number is not finite.
    """
    boxes, scores = np.asarray(boxes, np.float64), np.asarray(scores, np.float64)
    if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):
        raise ValueError("a box or a score is not finite")
    if rules.logits:
        scores = 1 / (1 + np.exp(-np.clip(scores, -500, 500)))
    corners = _corners(boxes, rules.form) * _scale(rules.unit, side, size)
    corners = np.clip(corners, 0, [*size, *size])
    results: list[Found] = []
    for number in range(scores.shape[1]):
        own = np.flatnonzero(scores[:, number] >= rules.least)
        own = own[np.argsort(-scores[own, number], kind="stable")][:CANDIDATES]
        for place in own[uncovered(corners[own], rules.overlap)]:
            left, top, right, bottom = corners[place].tolist()
            results.append(((left, top, right, bottom), number, float(scores[place, number])))
    results.sort(key=lambda one: -one[2])
    return results[: rules.most]


def _corners(boxes: Any, form: str) -> Any:
    """[n, 4] as left, top, right, bottom."""
    if form == "corners":
        return boxes
    middle, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([middle - half, middle + half], axis=1)


def _scale(unit: str, side: tuple[int, int], size: tuple[int, int]) -> Any:
    whole = side if unit == "pixels" else (1, 1)
    across, down = size[0] / whole[0], size[1] / whole[1]
    return np.array([across, down, across, down])


def uncovered(corners: Any, overlap: float) -> Any:
    """Which of the boxes [n, 4], the best first, no better one that stays covers: truths [n]."""
    stays = np.ones(len(corners), bool)
    sides = np.maximum(corners[:, 2:] - corners[:, :2], 0)
    areas = sides[:, 0] * sides[:, 1]
    for i in range(len(corners)):
        if not stays[i]:
            continue
        rest = np.arange(i + 1, len(corners))
        first = np.maximum(corners[i, :2], corners[rest, :2])
        last = np.minimum(corners[i, 2:], corners[rest, 2:])
        shared = np.prod(np.maximum(last - first, 0), axis=1)
        union = areas[i] + areas[rest] - shared
        stays[rest[shared > overlap * union]] = False
    return stays
