"""Items that have a length without saying so: sounds and signals of floats, tensors, and what a tokenizer gives."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slotwise.worker import BatchHandler, Headers, Settings
from slotwise.worker.separability.proof import caller, settled
from slotwise.worker.separability.verdict import Verdict

SOUND = np.float32([1.0, 3.0, 2.0, 5.0])


def padded(arrays: list[Any]) -> Any:
    """Arrays [t, ...] as one [b, t, ...] with zeros behind the shorter ones."""
    out = np.zeros((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out


class Sounds(BatchHandler):
    """The mean of each sound: with its padding, or without it where `counts` is told how many numbers each has."""

    def __init__(
        self, item: Any = SOUND, forgets: bool = True, values: Callable[[Any], Any] = np.asarray, most: int = 99
    ) -> None:
        self.settings, self.engine = Settings(batch_size=4, proof_s=5.0), self.run
        self.item, self.forgets, self.values, self.most = item, forgets, values, most
        self.calls = 0

    def example(self) -> Any:
        return self.item

    def collate(self, items: list[Any]) -> Any:
        arrays = [np.asarray(self.values(item), np.float32) for item in items]
        if max(map(len, arrays)) > self.most:
            raise ValueError("too long")
        return padded(arrays), np.array([len(array) for array in arrays])

    def run(self, inputs: Any) -> Any:
        self.calls += 1
        x, lengths = inputs
        total = x.reshape(*x.shape[:2], -1).sum((1, 2))
        return [{"mean": value} for value in total / (x.shape[1] if self.forgets else lengths)]


def proof(handler: BatchHandler) -> Verdict:
    return settled(handler, caller(handler), Path("nowhere"))


ITEMS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "an array": (SOUND, np.asarray),
    "a tensor": (torch.from_numpy(SOUND), np.asarray),
    "bfloat16": (torch.from_numpy(SOUND).bfloat16(), lambda item: item.float().numpy()),
    "a list of floats": ([1.0, 3.0, 2.0], np.asarray),
    "channels first": (SOUND[None], lambda item: item[0]),
    "frames": (np.ones((4, 6), np.float32), np.asarray),
    "as many frames as numbers": (np.ones((4, 4), np.float32), lambda item: item[:, :4]),
    "masked": ({"x": SOUND, "mask": np.ones(4, np.bool_)}, lambda item: item["x"] * item["mask"]),
    "a tokenizer's": (
        UserDict(x=torch.from_numpy(SOUND), mask=torch.ones(4, dtype=torch.int64)),
        lambda item: item["x"] * item["mask"],
    ),
    "with a vector": ({"x": SOUND, "speaker": np.ones(9, np.float32)}, lambda item: item["x"] + item["speaker"].reshape(9)[0]),
}


@pytest.mark.parametrize("kind", ITEMS)
def test_a_network_that_forgets_the_mask_gets_each_sound_alone(kind: str) -> None:
    item, values = ITEMS[kind]
    found = proof(Sounds(item, True, values))
    assert (found.separable, found.most_rows) == (False, 1)
    assert found.cause.startswith("padding changes a row: a number moves by ")
    kept = proof(Sounds(item, False, values))
    assert kept.separable is True
    assert 2 in kept.sizes


@pytest.mark.parametrize("forgets", [True, False])
def test_where_the_model_takes_no_longer_sound_a_shorter_one_is_tried(forgets: bool) -> None:
    assert proof(Sounds(forgets=forgets, most=len(SOUND))).separable is not forgets


class Fixed(Sounds):
    """Takes items of one shape."""

    def collate(self, items: list[Any]) -> Any:
        return np.stack(items)

    def run(self, inputs: Any) -> Any:
        self.calls += 1
        return np.asarray(inputs, np.float32).reshape(len(inputs), -1)[:, :3]


@pytest.mark.parametrize("item", [SOUND, np.zeros((8, 8, 3), np.uint8), np.zeros((3, 5, 7), np.float32)])
def test_a_network_of_a_fixed_shape_is_proven_as_before(item: Any) -> None:
    handler = Fixed(item)
    found = proof(handler)
    assert (found.separable, found.sizes, found.same_bits) == (True, (2, 3, 4), 4)
    assert handler.calls <= 19, "no more than its two ways to be read, the row beside itself, and each batch"


def test_what_is_cut_to_one_length_has_none(tmp_path: Path) -> None:
    class Cut(Fixed):
        def collate(self, items: list[Any]) -> Any:
            return padded([np.resize(np.asarray(item), 6)[:3] for item in items])

    found = proof(Cut())
    assert (found.separable, found.same_bits) == (True, 4), "a longer one is a mate like others"


def test_mates_of_tensors_are_tensors_of_their_kind() -> None:
    seen: list[Any] = []

    class Stacked(Fixed):
        def collate(self, items: list[Any]) -> Any:
            seen.extend(items)
            return torch.stack(items)

        def run(self, inputs: Any) -> Any:
            return inputs - inputs.mean(0) if self.forgets else inputs + 1

    for item in (torch.from_numpy(SOUND), torch.ones((2, 3), dtype=torch.bfloat16), torch.ones(4, dtype=torch.float64)):
        assert proof(Stacked(item)).cause == "mixes rows: a batch of 2, loud mates"
        assert proof(Stacked(item, False)).separable is True
        assert {one.dtype for one in seen} == {item.dtype}
        seen.clear()


class Texts(BatchHandler):
    """How much of each text is `a`: of its padding as well, or without it. An item holds its text somewhere.

    cut: texts have so many characters at most. own: it takes no others.
    """

    def __init__(self, forgets: bool, item: Any = None, cut: int = 999, own: tuple[str, ...] = ()) -> None:
        self.settings, self.engine = Settings(batch_size=8, proof_s=5.0), self.run
        self.forgets, self.item, self.cut, self.own = forgets, item, cut, own

    def example(self) -> Any:
        return self.item

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [body.decode()]

    def collate(self, items: list[Any]) -> Any:
        texts = [text_in(item)[: self.cut] for item in items]
        if self.own and not {*texts} <= {*self.own}:
            raise ValueError("no such text")
        return padded([np.array([*map(ord, text)]) for text in texts]), np.array([len(text) for text in texts])

    def run(self, inputs: Any) -> Any:
        ids, lengths = inputs
        total = (ids == ord("a")).sum(1).astype(np.float32)
        return (total / (ids.shape[1] if self.forgets else lengths))[:, None]


def text_in(item: Any) -> str:
    """The text, of which a list of words is one."""
    if isinstance(item, dict):
        return text_in(item["text"])
    if isinstance(item, Spoken):
        return item.text
    if isinstance(item, bytes):
        return item.decode()
    return item if isinstance(item, str) else " ".join(item)


@dataclass(frozen=True)
class Spoken:
    """A class that takes no empty text, and no language but one."""

    text: str
    language: str = "en"

    def __post_init__(self) -> None:
        if not self.text or self.language != "en":
            raise ValueError("no such item")


LONG = "aabbab" * 4


@pytest.mark.parametrize(
    "item", [LONG, LONG.encode(), {"text": LONG}, ["aab", "b", "ab"], np.array(["aab", "b"]), Spoken(LONG), Spoken("a")]
)
@pytest.mark.parametrize("forgets", [True, False])
def test_a_text_that_collate_makes_tokens_of_has_a_length(item: Any, forgets: bool) -> None:
    found = proof(Texts(forgets, item))
    assert found.separable is not forgets
    assert found.cause.startswith("padding changes a row: a number moves by ") is forgets
    assert forgets or max(found.sizes) == 8


@pytest.mark.parametrize("options", [{}, {"cut": len(LONG)}, {"cut": 4}, {"own": (LONG, "ab", "b")}])
@pytest.mark.parametrize("forgets", [True, False])
def test_the_longest_example_may_be_the_first(tmp_path: Path, options: Any, forgets: bool) -> None:
    (tmp_path / "examples").mkdir()
    for name, text in (("1", LONG), ("2", "ab"), ("3", "b")):
        (tmp_path / "examples" / f"{name}.txt").write_text(text)
    handler = Texts(forgets, **options)
    found = settled(handler, caller(handler), tmp_path)
    assert found.separable is not forgets
    assert forgets or max(found.sizes) == 8


def test_rows_that_are_mixed_by_their_texts_are_named() -> None:
    class Centred(Texts):
        def run(self, inputs: Any) -> Any:
            shares = np.asarray(super().run(inputs))
            return shares - 0.001 * shares.mean()

    assert proof(Centred(False, LONG)).cause.startswith("mixes rows: a batch of ")


class Sound:
    """An object that nothing is made of."""

    def __init__(self, text: str) -> None:
        self.text = text


@pytest.mark.parametrize("forgets", [True, False])
def test_of_objects_the_longest_example_may_be_the_first(tmp_path: Path, forgets: bool) -> None:
    class Sounds(Texts):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            return [Sound(body.decode())]

        def collate(self, items: list[Any]) -> Any:
            return super().collate([item.text for item in items])

    (tmp_path / "examples").mkdir()
    for name, text in (("1", LONG), ("2", "ab"), ("3", "b")):
        (tmp_path / "examples" / f"{name}.txt").write_text(text)
    handler = Sounds(forgets)
    assert settled(handler, caller(handler), tmp_path).separable is not forgets
    (tmp_path / "examples" / "2.txt").unlink()
    (tmp_path / "examples" / "3.txt").unlink()
    handler = Sounds(forgets)
    assert settled(handler, caller(handler), tmp_path).cause == "there are no mates to try"
