"""Make a few inputs to try an engine on before it serves: the warm-up item, noise, and the archive's own examples."""

from __future__ import annotations

import logging
import mimetypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from slotwise.worker.ownership import owned
from slotwise.worker.request import Headers, Request

logger = logging.getLogger(__name__)

NOISE_ITEMS = 4
MOST_ITEMS = 24
EXAMPLES = "examples"


class ItemSource(Protocol):
    """The part of a handler that turns requests into an engine's inputs."""

    def example(self) -> Any | None:
        """One valid item, or None."""

    def read(self, request: Request) -> list[Any]:
        """One request's items."""

    def collate(self, items: list[Any]) -> Any:
        """Items to the engine's input [b, ...]."""


def handled(model_dir: Path, handler: ItemSource) -> list[Any]:
    """Engine inputs made by the handler's own hooks. The first has two rows, the others one; [] where it has no example."""
    try:
        example = handler.example()
        if example is None:
            return []
        inputs = [handler.collate([example, noise(example, 0)])]
        items = [*examples(model_dir, handler), *(noise(example, seed) for seed in range(1, NOISE_ITEMS))]
        return inputs + [handler.collate([item]) for item in items[:MOST_ITEMS]]
    except Exception:
        logger.warning("the handler's hooks failed to make inputs to try the engine on", exc_info=True)
        return []


def described(model: Mapping[str, Any]) -> list[Any]:
    """Engine inputs made from model.toml alone: noise of the shape and dtype in [input], as a given handler collates them."""
    spec = model.get("input", {})
    shape, dtype = list(spec.get("shape") or []), spec.get("dtype", "float32")
    if not shape:
        return []
    if model.get("handler") == "image_classifier" and dtype == "uint8" and len(shape) == 3:
        shape = [*shape[1:], shape[0]]  # pixels come [h, w, c]
    zeros = np.zeros(shape, dtype)
    made = [_whole(zeros, seed) if dtype == "int64" else noise(zeros, seed) for seed in range(NOISE_ITEMS)]
    return [np.stack([zeros, made[0]]), *(row[None] for row in made[1:])]


def examples(model_dir: Path, handler: ItemSource) -> Iterator[Any]:
    """The items of the archive's examples, each its own, without bodies that the handler refuses."""
    folder = model_dir / EXAMPLES
    for file in sorted(folder.iterdir()) if folder.is_dir() else []:
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        try:
            items = handler.read(Request(file.read_bytes(), Headers({"content-type": kind}), file.name))
            items = [owned(item) for item in items if not isinstance(item, Exception)]  # the next call may fill the same array
        except Exception:
            logger.info("the example %s cannot be decoded", file.name, exc_info=True)
            continue
        yield from items


def _whole(like: Any, seed: int) -> Any:
    """Zeros and ones, which are token ids in any vocabulary."""
    return np.random.default_rng(seed).integers(0, 2, like.shape, like.dtype)


def noise(like: Any, seed: int) -> Any:
    """Random numbers of the same shape and dtype. Token ids and objects stay as they are, because noise means nothing there."""
    random = np.random.default_rng(seed)
    if isinstance(like, np.ndarray) and like.dtype == np.uint8:
        return random.integers(0, 256, like.shape, np.uint8)
    if isinstance(like, np.ndarray) and like.dtype.kind == "f":
        return np.asarray(random.standard_normal(like.shape), like.dtype)
    return like


def shorter(like: Any) -> Any:
    """The same without the last of its token ids, in whatever dict it has them; all else stays as it is."""
    if isinstance(like, dict):
        return {name: shorter(part) for name, part in like.items()}
    if isinstance(like, list | tuple) and len(like) > 1 and all(type(one) is int for one in like):
        return like[:-1]
    if isinstance(like, np.ndarray) and like.dtype.kind == "i" and like.ndim and like.shape[-1] > 1:
        return like[..., :-1]
    return like
