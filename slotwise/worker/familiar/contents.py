"""Look into a value, to see later whether something in it has changed, and to put it back.

Looked into is what an author's own classes and functions keep, and containers, also of classes made of them; of a torch module
its parts and hooks. What an object of a library keeps is seen where it is one of its attributes, and never put back.
"""

from __future__ import annotations

import gc
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO, StringIO
from itertools import chain
from queue import Queue
from threading import local
from types import BuiltinMethodType, CellType, FunctionType, MemberDescriptorType, MethodType, SimpleNamespace
from typing import Any

from slotwise.worker.copies import ATOMS
from slotwise.worker.familiar.sources import functions_in, is_authors
from slotwise.worker.familiar.values import HOOKS, MISSING, attributes, may_change, shown

CONTAINERS = (list, dict, set, deque, bytearray)
KNOWN = (SimpleNamespace, UserDict, UserList, Queue, local)  # of the standard library, but as plain as an author's own
CACHES = "transformers.cache_utils"  # whose objects are plain, too: keys and values of the tokens that a network has read
MOST_ENTRIES = 4096  # of a container that is looked into, and in all of what is copied
ENTRY_BYTES = 256  # of an array that count as one
WEIGHTS = ("_parameters", "_buffers", "_modules")
COUNTS = ("call_count",)  # of a pipeline of transformers
LIBRARIES = "asyncio builtins concurrent functools logging opentelemetry prometheus_client re slotwise thread threading torch"
BUSY = frozenset(LIBRARIES.split())
OURS = frozenset(
    ("_read_alone_since", "_reads_alone", "predict_until", "metrics", "max_rows")
)  # of a handler's, set by others at any time

Parts = list[list[Any]]


@dataclass
class KeptParts:
    """What is in one object. look: what is in it now; fill: has it hold this again, where that can be done."""

    before: Parts
    look: Callable[[], Parts]
    fill: Callable[[Parts], None] | None

    def differs(self) -> bool:
        """Whether it has other parts than before."""
        return differ(self.before, self.look())

    def put_back(self) -> None:
        """Have it hold what it held."""
        if self.fill and self.differs():
            self.fill(self.before)


def kept_of(value: Any, seen: set[int] | None = None) -> list[KeptParts]:
    """All that is reached from a value; without what is too large, and what that leads to. seen: ids, of what is left out."""
    seen = set() if seen is None else seen
    entries_left, kept_parts, waiting = MOST_ENTRIES, list[KeptParts](), [value]
    while waiting:
        one = waiting.pop()
        if type(one) in ATOMS or id(one) in seen:
            continue
        seen.add(id(one))
        with suppress(Exception):  # an author's own object may answer with anything, and others change it meanwhile
            parts, size, kept = _inner(one, entries_left)
            if 1 + size > entries_left:
                continue
            entries_left -= 1 + size
            waiting += parts
            kept_parts += [kept] if kept else []
    return kept_parts


def is_librarys(value: Any) -> bool:
    """Whether this is an object of a library that keeps what it is told."""
    kind = type(value)
    return not is_authors(kind) and kind.__module__.lstrip("_").partition(".")[0] not in BUSY and kind is not object


def differ(before: Parts, now: Parts) -> bool:
    """Whether these are other parts than before."""
    return len(now) != len(before) or not all(
        len(one) == len(other) and all(map(same, one, other)) for one, other in zip(before, now, strict=True)
    )


def listed(value: Any) -> Parts:
    """What is in a container, of a dict its keys and values."""
    if isinstance(value, dict):
        plain: Any = _plain_dict(value)
        return [list(plain.keys(value)), list(plain.values(value))]
    kind = next(kind for kind in CONTAINERS if isinstance(value, kind))
    return [list(kind.__iter__(value))]


def filled(value: Any, parts: Parts) -> None:
    """Have it hold these again, past what its class may have made of its methods."""
    if isinstance(value, bytearray):  # in its place: others may show its memory
        bytearray.__setitem__(value, slice(None), bytes(parts[0]))
        return
    kind: Any = next(kind for kind in CONTAINERS if isinstance(value, kind))
    kind = _plain_dict(value) if kind is dict else kind
    kind.clear(value)
    if isinstance(value, dict):
        for key, one in zip(*parts, strict=True):
            kind.__setitem__(value, key, one)
    else:
        (kind.update if kind is set else kind.extend)(value, *parts)


def _plain_dict(value: dict[Any, Any]) -> type:
    """The class of Python's own that knows what is in there: one that keeps its order itself breaks by another's methods."""
    return OrderedDict if isinstance(value, OrderedDict) else dict


def same(one: Any, other: Any) -> bool:
    """Whether this is the other, or the same number or text."""
    return one is other or (type(one) is type(other) and type(one) in ATOMS and one == other)


def _inner(one: Any, most: int) -> tuple[list[Any], int, KeptParts | None]:
    """What a value leads to, how large that is, and what is in it. most: what is larger is not copied."""
    if isinstance(one, CONTAINERS):
        if len(one) > most:
            return [], len(one), None
        parts = listed(one)
        own = named(one) if is_authors(type(one)) else {}
        inner = [] if isinstance(one, bytearray) else [*chain.from_iterable(parts)]
        return [*inner, *own.values()], len(one), KeptParts(parts, partial(listed, one), partial(filled, one))
    if isinstance(one, tuple | frozenset):
        return [*one], len(one), None
    if isinstance(one, MethodType | BuiltinMethodType):
        return [one.__self__], 1, None
    if isinstance(one, partial):
        return [one.func, *one.args, *one.keywords.values()], 1, None
    if type(one).__name__ == "_lru_cache_wrapper":
        parts = _cached(one)
        return parts[0], len(parts[0]), KeptParts(parts, partial(_cached, one), lambda _: one.cache_clear())
    if type(one) in (BytesIO, StringIO):
        return (
            [],
            len(one.getvalue()) // ENTRY_BYTES,
            KeptParts(_of_text(one), partial(_of_text, one), partial(_fill_text, one)),
        )
    if isinstance(one, FunctionType):
        return _of_function(one) if is_authors(one) else ([], 1, None)
    if isinstance(one, CellType):
        return _of_look(partial(_cell, one), partial(_fill_cell, one))
    if (show := shown(one)) is not None:
        if show.nbytes > most * ENTRY_BYTES:
            return [], show.nbytes // ENTRY_BYTES + 1, None
        kept = show.copy()
        return (
            [],
            show.nbytes // ENTRY_BYTES,
            KeptParts([[show.tobytes()]], partial(_memory, one), lambda _: _shown_again(one, kept)),
        )
    if isinstance(one, type):
        return _of_class(one) if is_authors(one) else ([], 1, None)
    return _of_object(one)


def _of_object(one: Any) -> tuple[list[Any], int, KeptParts | None]:
    module = attributes(one)
    hooks = [part for name in HOOKS if isinstance(of := module.get(name), dict) for part in of.values()]
    kind = type(one)
    own = is_authors(kind) or kind in KNOWN or kind.__module__ == CACHES or vars(kind).get("AUTHORS_SET_IT", False)
    if not own and (hooks or "_modules" in module or not is_librarys(one)):
        return hooks, 1 + len(hooks), None
    parts, size, kept = _of_look(partial(_named, one), partial(_fill_object, one) if own else None)
    return [*(parts if own else []), *hooks, *([type(one)] if is_authors(type(one)) else [])], size, kept


def _of_class(one: type) -> tuple[list[Any], int, KeptParts | None]:
    parts, size, kept = _of_look(partial(_variables, one), partial(_fill_class, one))
    return [*parts, *chain.from_iterable(map(functions_in, parts))], size, kept


def _of_function(one: FunctionType) -> tuple[list[Any], int, KeptParts | None]:
    inner = [*(one.__closure__ or ()), *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values(), one.__dict__]
    return inner, len(inner), None


def _of_look(look: Callable[[], Parts], fill: Callable[[Parts], None] | None) -> tuple[list[Any], int, KeptParts | None]:
    parts = look()
    return [*chain.from_iterable(parts)], len(parts[-1]), KeptParts(parts, look, fill)


def _slots(one: Any) -> dict[str, MemberDescriptorType]:
    of_classes = [vars(kind).items() for kind in type(one).__mro__ if is_authors(kind)]
    return {name: slot for name, slot in chain.from_iterable(of_classes) if isinstance(slot, MemberDescriptorType)}


def named(one: Any) -> dict[str, Any]:
    """What an object has by name, also in slots, but for a network's weights, and how often a library's was called."""
    besides = WEIGHTS if is_authors(type(one)) else (*WEIGHTS, *COUNTS)
    found = {name: value for name, value in attributes(one).items() if name not in besides}
    for name, slot in _slots(one).items():
        with suppress(AttributeError):
            found[name] = slot.__get__(one, type(one))
    return found


def _named(one: Any) -> Parts:
    return listed(named(one))


def _fill_object(one: Any, parts: Parts) -> None:
    now, wanted, slots, held = named(one), dict(zip(*parts, strict=True)), _slots(one), attributes(one)
    for name in now.keys() - wanted.keys():
        slots[name].__delete__(one) if name in slots else held.pop(name)
    for name, value in wanted.items():
        if now.get(name, MISSING) is not value and name in slots:
            slots[name].__set__(one, value)
        elif now.get(name, MISSING) is not value:
            held[name] = value


def variables_of(kind: type) -> dict[str, Any]:
    """What a class keeps itself."""
    return {name: value for name, value in vars(kind).items() if not name.startswith(("__", "_abc_"))}


def _variables(kind: type) -> Parts:
    return listed(variables_of(kind))


def _fill_class(kind: type, parts: Parts) -> None:
    now, wanted = variables_of(kind), dict(zip(*parts, strict=True))
    for name in now.keys() - wanted.keys():
        type.__delattr__(kind, name)
    for name, value in wanted.items():
        if now.get(name, MISSING) is not value:
            type.__setattr__(kind, name, value)


def _cached(one: Any) -> Parts:
    """What a function of functools.lru_cache has given and keeps, where that may change."""
    parts = [part for of in gc.get_referents(one) for part in (of.values() if type(of) is dict else [of])]
    inner = [gc.get_referents(part) if type(part).__name__ == "_lru_list_elem" else [part] for part in parts]
    return [[part for part in chain.from_iterable(inner) if may_change(part) and type(part).__name__ != "_HashedSeq"]]


def _of_text(one: BytesIO | StringIO) -> Parts:
    return [[one.getvalue(), one.tell()]]


def _fill_text(one: Any, parts: Parts) -> None:
    text, at = parts[0]
    one.seek(0)
    one.truncate()
    one.write(text)
    one.seek(at)


def put(holder: Any, name: str, value: Any) -> None:
    """Have an object, a class or a module have this again, or not have it, past what its class makes of that."""
    if isinstance(holder, type):
        type.__delattr__(holder, name) if value is MISSING else type.__setattr__(holder, name, value)
    elif value is MISSING:
        del vars(holder)[name]
    else:
        vars(holder)[name] = value


def _cell(cell: CellType) -> Parts:
    try:
        return [[cell.cell_contents]]
    except ValueError:  # not set yet
        return [[]]


def _fill_cell(cell: CellType, parts: Parts) -> None:
    if parts[0]:
        cell.cell_contents = parts[0][0]


def _memory(one: Any) -> Parts:
    show = shown(one)
    return [[None if show is None else show.tobytes()]]


def _shown_again(one: Any, kept: Any) -> None:
    """Have an array show these numbers again, where it still has their shape."""
    if (now := shown(one)) is not None and now.shape == kept.shape:
        now[...] = kept
