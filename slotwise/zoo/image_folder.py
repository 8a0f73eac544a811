"""A folder of pictures, one subfolder a class; and what training does to a picture that serving does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from slotwise.errors import SlotwiseError
from slotwise.worker.inputs.images import Recipe, decode_rgb
from slotwise.worker.slot_errors import SlotError


@dataclass(frozen=True)
class LabelledPictures:
    """Files and the index of each one's label. ignored: how many files were no pictures."""

    labels: Sequence[str]
    files: list[Path]
    targets: np.ndarray[Any, np.dtype[np.int64]]  # [n]
    ignored: int

    def __len__(self) -> int:
        return len(self.files)

    @classmethod
    def find(cls, folder: Path, labels: Sequence[str]) -> LabelledPictures:
        """All pictures in `folder`/CLASS. A class's folder is called as its label, or with an s: ants for ant."""
        files: list[Path] = []
        targets: list[int] = []
        ignored = 0
        for target, path in enumerate(_class_folders(folder, labels)):
            before = len(files)
            for file in sorted(path.rglob("*")):
                if file.is_file() and _is_picture(file):
                    files.append(file)
                    targets.append(target)
                else:
                    ignored += file.is_file()
            if len(files) == before:
                raise SlotwiseError(f"there are no pictures in {path}", "put JPEG or PNG files there")
        return cls(labels, files, np.array(targets, np.int64), ignored)

    def spread(self, most: int) -> list[Path]:
        """Up to `most` of the files, evenly from all classes."""
        rows = np.linspace(0, len(self) - 1, min(most, len(self))).round().astype(int)
        return [self.files[row] for row in rows]


def _class_folders(folder: Path, labels: Sequence[str]) -> list[Path]:
    found = {path.name: path for path in folder.glob("*") if path.is_dir()}
    folders = [found.get(label) or found.get(f"{label}s") for label in labels]
    chosen = [path for path in folders if path is not None]
    unknown = sorted(set(found.values()) - set(chosen))
    if len(chosen) < len(labels) or unknown:
        names = ", ".join(f"{folder.name}/{label}s" for label in labels)
        wrong = f"{unknown[0]} is no label of the model" if unknown else f"{folder} lacks a folder for some label"
        raise SlotwiseError(wrong, f"needed below --data, one folder a label: {names}")
    return chosen


def _is_picture(file: Path) -> bool:
    try:
        decode_rgb(file.read_bytes(), size_hint=64)
    except SlotError:
        return False
    return True


def vary(body: bytes, recipe: Recipe, random: np.random.Generator) -> Any:
    """A random cut (35 to 100% of the area, 3:4 to 4:3) and a random mirroring of a picture: uint8 [h, w, c]."""
    picture = Image.fromarray(decode_rgb(body, size_hint=recipe.resize or recipe.width, max_pixels=recipe.max_pixels))
    w, h = picture.size
    area, ratio = random.uniform(0.35, 1.0) * w * h, np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
    cut_w, cut_h = min(w, np.sqrt(area * ratio)), min(h, np.sqrt(area / ratio))
    left, top = random.uniform(0, w - cut_w), random.uniform(0, h - cut_h)
    box = (left, top, left + cut_w, top + cut_h)
    item = picture.resize((recipe.width, recipe.height), Image.Resampling.BILINEAR, box)
    if random.random() < 0.5:
        item = item.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if recipe.channels == 1:
        item = item.convert("L")
    return np.asarray(item).reshape(recipe.height, recipe.width, recipe.channels)
