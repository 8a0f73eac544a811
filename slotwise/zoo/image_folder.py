"""Read a folder of pictures, one subfolder a class, and vary a picture at random for training."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from slotwise.errors import SlotwiseError
from slotwise.worker.inputs.images import Recipe, decode_rgb
from slotwise.worker.slot_errors import SlotError


@dataclass(frozen=True)
class LabelledPictures:
    """Files and the index of each one's label. left_out: what was no picture, with the reason, as `FILE: REASON`."""

    labels: Sequence[str]
    files: list[Path]
    targets: np.ndarray[Any, np.dtype[np.int64]]  # [n]
    left_out: list[str]

    def __len__(self) -> int:
        return len(self.files)

    @classmethod
    def find(cls, folder: Path, labels: Sequence[str], read: Callable[[bytes], Any] = decode_rgb) -> LabelledPictures:
        """All pictures in `folder`/CLASS that `read` takes. A class's folder has the name of its label, or that with an s."""
        files: list[Path] = []
        targets: list[int] = []
        left_out: list[str] = []
        for target, path in enumerate(_class_folders(folder, labels)):
            before = len(files)
            for file in _files(path):
                if problem := _problem(file, read):
                    left_out.append(f"{file}: {problem}")
                else:
                    files.append(file)
                    targets.append(target)
            if len(files) == before:
                raise SlotwiseError(f"there are no pictures in {path}", "put JPEG or PNG files there")
        return cls(labels, files, np.array(targets, np.int64), left_out)

    def spread(self, most: int) -> list[Path]:
        """Up to `most` of the files, evenly from all classes."""
        rows = np.linspace(0, len(self) - 1, min(most, len(self))).round().astype(int)
        return [self.files[row] for row in rows]


def digest(folder: Path, files: Sequence[Path]) -> str:
    """The SHA-256 of these files of a folder, with their paths there."""
    whole = hashlib.sha256()
    for file in files:
        whole.update(f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode("utf-8", "replace"))
    return whole.hexdigest()


def _class_folders(folder: Path, labels: Sequence[str]) -> list[Path]:
    plural = {label: f"{label}s" for label in labels if f"{label}s" not in labels}
    names = ", ".join(f"{folder.name}/{plural.get(label, label)}" for label in labels)
    hint = f"needed below --data, one folder a label: {names}"
    if not folder.is_dir():
        deeper = [path for path in folder.parent.glob(f"*/{folder.name}") if path.is_dir()]
        hint = f"is it --data {deeper[0].parent}?" if len(deeper) == 1 else hint
        raise SlotwiseError(f"there is no folder {folder}", hint)
    below = {path.name: path for path in folder.iterdir() if path.is_dir()}
    found = {label: below.get(label) or below.get(plural.get(label, label)) for label in labels}
    chosen = [path for path in found.values() if path is not None]
    unknown = sorted(set(below.values()) - set(chosen))
    if unknown:
        raise SlotwiseError(f"{unknown[0]} is no label of the model", hint)
    if len(chosen) < len(labels):
        absent = next(label for label, path in found.items() if path is None)
        raise SlotwiseError(f"{folder} lacks a folder for the label {absent}", hint)
    return chosen


def _files(folder: Path) -> list[Path]:
    """Every file below the folder, also by way of links to folders; no folder twice."""
    files: list[Path] = []
    seen: set[str] = set()
    for path, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(path)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        files += [Path(path) / name for name in names]
    return sorted(files)


def _problem(file: Path, read: Callable[[bytes], Any]) -> str:
    """Why the file is no picture to learn from, "" where it is one."""
    if file.exists() and not file.is_file():
        return "no regular file"
    try:
        read(file.read_bytes())
    except SlotError as error:
        return error.message.partition(":")[0]
    except OSError as error:
        return str(error.strerror)
    return ""


def vary(body: bytes, recipe: Recipe, random: np.random.Generator) -> Any:
    """Cut a picture at random (35 to 100% of its area, 3:4 to 4:3), and mirror it at random: uint8 [h, w, c]."""
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


def batches(
    pictures: LabelledPictures, recipe: Recipe, batch_size: int, random: np.random.Generator | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """uint8 [b, h, w, c] and int64 [b]; shuffled and varied where `random` is given. The next batch is decoded meanwhile."""
    order = random.permutation(len(pictures)) if random else np.arange(len(pictures))
    groups = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    if random and len(groups) > 1 and len(groups[-1]) == 1:
        groups.pop()  # batch norm cannot learn from a single picture
    seeds = [int(random.integers(2**63)) for _ in order] if random else [0] * len(order)

    def load(row: int, seed: int) -> Any:
        body = pictures.files[row].read_bytes()
        return vary(body, recipe, np.random.default_rng(seed)) if random else recipe(body)

    with ThreadPoolExecutor(2, "decode") as pool:
        coming = None
        for i in range(len(groups) + 1):
            now = coming
            if i < len(groups):
                coming = [pool.submit(load, int(row), seeds[int(row)]) for row in groups[i]]
            if now is not None:
                pixels = np.stack([item.result() for item in now])
                yield torch.from_numpy(pixels), torch.from_numpy(pictures.targets[groups[i - 1]])
