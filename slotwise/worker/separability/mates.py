"""Make a row and its mates to prove separability with: of one item that a model answers, others that differ from it.

Arrays, tensors and lists of floats become loud (50 times as large), zero, tiny and ordinary; sequences of tokens become
shorter, longer and reversed; numbers become other numbers. An item may hold such things in a dict, a tuple or a dataclass. Of
texts there are shorter and longer ones, where the model takes such (lengths.py). Nothing is made of a part of any other kind:
only an example may have another one there.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker.engines import samples
from slotwise.worker.outputs import on_host
from slotwise.worker.request import Headers
from slotwise.worker.separability.bits import bits

logger = logging.getLogger(__name__)

LOUD, TINY = 50.0, 1e-3
TEXTS = (str, bytes, bytearray, np.str_, np.bytes_)
EXAMPLE = "example "  # what the kinds of mates that are an archive's examples begin with


@dataclass(frozen=True)
class Company:
    """A row, its mates by what they are, and the longest of them where they have lengths. same: what hardly differs in them."""

    row: Any
    mates: Mapping[str, Any]
    longest: Any = None
    same: str = ""


def company(model_dir: Path, handler: samples.ItemSource) -> Company | None:
    """A row for this handler, the archive's first example if there is one, and mates for it. None where there is no item.

    The model may refuse the longest mate, which is in every batch: it must be tried alone first.
    """
    examples = _examples(model_dir, handler)
    row = examples[0] if examples else handler.example()
    if row is None:
        return None
    if not examples:  # zeros mostly, which stay zeros however loud
        row = changed(row, _ordinary)
    others = {kind: _made(row, change) for kind, change in KINDS.items()}
    mates = {kind: mate for kind, mate in others.items() if bits(mate) != bits(row)}
    longest = mates.pop("longer", None)
    if longest is None:
        mates |= {f"{EXAMPLE}{i}": example for i, example in enumerate(examples) if bits(example) != bits(row)}
    return Company(row, mates, longest)


def items_of(model_dir: Path, handler: samples.ItemSource) -> list[Any]:
    """The items that a company is made of: the archive's first examples, or the handler's own."""
    items = _examples(model_dir, handler) or [handler.example()]
    return [item for item in items if item is not None]


def _examples(model_dir: Path, handler: samples.ItemSource) -> list[Any]:
    return list(itertools.islice(samples.examples(model_dir, handler), 2))


def without_numbers(row: Any) -> list[Any]:
    """The row with each number missing that may be: NaN stands there, or None."""
    made = [_made(row, change) for change in (_not_a_number, _none)]
    return [one for one in made if bits(one) != bits(row)]


def _made(row: Any, change: Callable[[Any], Any]) -> Any:
    """The row changed; as it is, where its class takes no such parts."""
    try:
        return changed(row, change)
    except Exception:
        return row


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """The item with every part changed that is none of several; `change` sees tensors and lists of floats as arrays.

    Tokens are one part, and so is a list of texts.
    """
    if isinstance(value, np.ndarray) or _is_tokens(value) or (type(value) is list and texts_of(value)):
        return change(value)
    if callable(getattr(value, "detach", None)):  # a tensor
        array = on_host(value)
        after = change(array)
        return value if after is array else sys.modules["torch"].as_tensor(after.copy(), dtype=value.dtype, device=value.device)
    if _is_floats(value):
        return type(value)(change(np.array(value, np.float64)).tolist())
    if isinstance(value, MutableMapping):  # also what transformers' tokenizers give
        other = copy.copy(value)
        for name, part in value.items():
            other[name] = changed(part, change)
        return other
    if type(value) is Headers:
        return Headers({name: changed(part, change) for name, part in value.items()})
    if type(value) in (list, tuple):
        return type(value)(changed(part, change) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named one
        return value._make(changed(part, change) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: changed(getattr(value, name), change) for name in names})
    return change(value)


def parts_of(item: Any) -> list[Any]:
    """The parts that `changed` changes, in its order."""
    parts: list[Any] = []

    def note(part: Any) -> Any:
        parts.append(part)
        return part

    changed(item, note)
    return parts


def is_strange(part: Any) -> bool:
    """Whether no mates are made of this part: an object."""
    known = part is None or isinstance(part, np.ndarray) or type(part) in (list, tuple)
    return not (known or _is_number(part) or _is_whole(part) or texts_of(part))


def unvaried(whole: Company, takes: Callable[[Any], bool]) -> str:
    """The type of a part of the row in which no mate differs that the model takes beside it, "" where there is none."""
    parts = parts_of(whole.row)
    strange = {i: bits(part) for i, part in enumerate(parts) if is_strange(part)}
    for mate in whole.mates.values() if strange else ():
        others = parts_of(mate)
        differ = [i for i in strange if i < len(others) and bits(others[i]) != strange[i]]
        if differ and takes(mate):
            strange = {i: strange[i] for i in strange if i not in differ}
    return next((type(parts[i]).__name__ for i in strange), whole.same)


def texts_of(part: Any) -> list[Any]:
    """The texts that a part of an item is made of: its own, those of a list, or of an array; none where it holds others."""
    if type(part) in TEXTS:
        return [part]
    if isinstance(part, np.ndarray):
        part = part.ravel().tolist() if part.dtype.kind in "USO" else []
    return part if type(part) is list and all(type(one) in TEXTS for one in part) else []


def with_texts(part: Any, change: Callable[[Any], Any]) -> Any:
    """A part that is made of texts, with each of them changed."""
    texts = list(map(change, texts_of(part)))
    if isinstance(part, np.ndarray):
        return np.array(texts, object if part.dtype.hasobject else None).reshape(part.shape)
    return texts if type(part) is list else texts[0]


def _is_tokens(value: Any) -> bool:
    return type(value) in (list, tuple) and bool(value) and all(type(entry) is int for entry in value)


def _is_floats(value: Any) -> bool:
    return type(value) in (list, tuple) and {float} <= set(map(type, value)) <= {float, int}


def _is_number(value: Any) -> bool:
    return isinstance(value, float | complex | np.inexact)


def _is_whole(value: Any) -> bool:
    return type(value) in (int, bool) or isinstance(value, np.integer | np.bool_)


def _loud(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind == "f":
        return np.asarray(LOUD * samples.noise(value, 2), value.dtype)
    return np.full_like(value, 255) if value.dtype == np.uint8 else value


def _zero(value: Any) -> Any:
    return np.zeros_like(value) if isinstance(value, np.ndarray) else value


def _tiny(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return np.asarray(TINY * samples.noise(value, 3), value.dtype) if value.dtype.kind == "f" else np.ones_like(value)


def _ordinary(value: Any) -> Any:
    return samples.noise(value, 1) if isinstance(value, np.ndarray) else value


def has_length(value: Any) -> bool:
    """Whether the item's length may be any: tokens in a list, or integers along one axis."""
    return _is_tokens(value) or (isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu")


def _shorter(value: Any) -> Any:
    return value[: (len(value) + 1) // 2] if has_length(value) else value


def _longer(value: Any) -> Any:
    if not has_length(value):
        return value
    return np.concatenate([value, value]) if isinstance(value, np.ndarray) else value + value


def _reversed(value: Any) -> Any:
    return value[::-1] if has_length(value) else value


def _none(value: Any) -> Any:
    return None if type(value) in (int, float) else value


def _not_a_number(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.full_like(value, np.nan) if value.dtype.kind in "fc" else value
    return type(value)("nan") if _is_number(value) else value


def _larger_number(value: Any) -> Any:
    return type(value)(LOUD * value + 1) if _is_number(value) else value


def _smaller_number(value: Any) -> Any:
    return type(value)(value / 2) if _is_number(value) else value


def _other_whole(value: Any) -> Any:
    if not _is_whole(value):
        return value
    return type(value)(not value if isinstance(value, bool | np.bool_) else int(value) + 1)


KINDS: dict[str, Callable[[Any], Any]] = {
    "loud": _loud, "zero": _zero, "tiny": _tiny, "ordinary": _ordinary,
    "shorter": _shorter, "reversed": _reversed, "longer": _longer,
    "larger-number": _larger_number, "smaller-number": _smaller_number, "other-whole-number": _other_whole,
}  # fmt: skip
