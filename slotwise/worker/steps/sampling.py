"""Choose a token from a row of logits, on the host."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


def greedy(logits: Any) -> int:
    """The token with the largest logit; of equal ones the first. logits: [v]."""
    return int(np.argmax(logits))


def sampled(logits: Any, draw: random.Random, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> int:
    """A token drawn by its probability. One number is drawn whatever the options are, so that equal seeds give equal tokens.

    logits: [v]. temperature: 0 is greedy. top_k: from the k likeliest only; 0 means all. top_p: from the likeliest that have
    this probability together.
    """
    number = draw.random()
    if temperature <= 0:
        return greedy(logits)
    values = np.asarray(logits, np.float64)
    order = np.argsort(-values, kind="stable")  # [v] the likeliest first
    if top_k > 0:
        order = order[:top_k]
    with np.errstate(over="ignore"):  # of a temperature near 0: minus infinity, whose chance is 0
        chances = np.exp((values[order] - values[order[0]]) / temperature)
    reached = np.cumsum(chances / chances.sum())  # [k]
    kept = int(np.searchsorted(reached, min(top_p, 1.0))) + 1 if top_p < 1.0 else len(order)
    kept = min(kept, len(order))
    place = int(np.searchsorted(reached[:kept], number * reached[kept - 1], side="right"))
    return int(order[min(place, kept - 1)])
