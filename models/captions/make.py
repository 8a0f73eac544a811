"""Make GIT's files: from a folder, from the hub, or (the default) a tiny model trained here on drawn shapes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from drawing import COLOURS, SHAPES, caption, draw, everything

from slotwise.worker.engines.git import GitEngine, load_words
from slotwise.worker.inputs.images import Recipe
from slotwise.zoo.transformers_files import ready, save_local, useful_threads

if TYPE_CHECKING:
    from rich.progress import Progress

NOTE = f"demonstration model: knows {', '.join(SHAPES)} in {len(COLOURS)} colours; build it with --weights for a real one"
UNSEEN = 10**6  # seeds from here on were not trained on
EXAMPLE_SIDE = 256
CHECKED = 48  # pictures


def make(out: Path, weights: str | None, progress: Progress) -> dict[str, Any]:
    """Write model/ and the example pictures."""
    started, folder = time.monotonic(), out / "model"
    folder.mkdir()
    ready()
    demonstration = weights in (None, "none")
    if demonstration:
        from tiny import train

        train(folder, progress)
    else:
        save_local(str(weights), folder, "GitForCausalLM", "BertTokenizer", "CLIPImageProcessorPil")
    made_s, threads = time.monotonic() - started, useful_threads(folder)
    image = _image(folder)
    about = {"note": NOTE if demonstration else None, "threads": threads, "image": image}
    (folder / "slotwise.json").write_text(json.dumps(about, indent=2), "utf-8")
    draw([("red", "circle")], EXAMPLE_SIDE, UNSEEN).save(out / "red-circle.png")
    draw([("blue", "square"), ("yellow", "triangle")], EXAMPLE_SIDE, UNSEEN).save(out / "two-shapes.jpg", quality=90)
    return {"made_s": round(made_s, 1), "demonstration": demonstration}


def _image(folder: Path) -> dict[str, Any]:
    """These weights' own picture processing, with the keys of model.toml's [input]."""
    from transformers import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil.from_pretrained(folder, local_files_only=True)
    size, crop = dict(processor.size), dict(processor.crop_size)
    squeezed = "shortest_edge" not in size
    height, width = (size if squeezed else crop)["height"], (size if squeezed else crop)["width"]
    resize = {} if squeezed else {"resize": size["shortest_edge"]}
    numbers = {"mean": list(processor.image_mean), "std": list(processor.image_std)}
    return {"shape": [3, height, width], "interpolation": "bicubic", **resize, **numbers}


def measure(out: Path, progress: Progress) -> dict[str, Any]:
    """Caption drawings that training never saw: how many are right, and how many stay equal alone and in bf16."""
    folder = out / "model"
    ready()
    about = json.loads((folder / "slotwise.json").read_text("utf-8"))
    image, threads, known = about["image"], about["threads"], everything()
    drawings = [known[i * len(known) // CHECKED] for i in range(CHECKED)]
    recipe, words = Recipe.of(image), load_words(folder)
    pictures = [np.asarray(recipe.fit(draw(shapes, EXAMPLE_SIDE, UNSEEN + i))) for i, shapes in enumerate(drawings)]

    def captions(precision: str, step: int) -> list[str]:
        engine = GitEngine(
            folder,
            device="cpu",
            precision=precision,
            threads=threads or len(os.sched_getaffinity(0)),
            mean=image["mean"],
            std=image["std"],
            max_output_tokens=48,
        )
        rows: list[Sequence[int]] = []
        for start in progress.track(range(0, len(pictures), step), description="comparing precisions"):
            rows += engine(np.stack(pictures[start : start + step]))
        return [words.decode(row, skip_special_tokens=True) for row in rows]

    reference = captions("fp32", 16)
    others = {
        "right": [caption(shapes) for shapes in drawings],
        "alone_equal": captions("fp32", 1),
        "bf16_equal": captions("bf16", 16),
    }
    return {"pictures": CHECKED, **{name: sum(map(str.__eq__, reference, other)) for name, other in others.items()}}
