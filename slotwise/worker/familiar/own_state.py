"""See what an author's methods change on their handler, and have it as before where they fail.

What a call has left there when it fails is in nobody's answer: its second try is with others. And who is asked again, so that
two answers can be compared, is asked as if the first time had not been.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any, ParamSpec, TypeVar

from slotwise.worker.copies import ATOMS
from slotwise.worker.familiar.contents import (
    CONTAINERS,
    MOST_ENTRIES,
    OURS,
    KeptParts,
    Parts,
    differ,
    filled,
    kept_of,
    listed,
    put,
)
from slotwise.worker.familiar.handed_on import changed_by, changed_on
from slotwise.worker.familiar.sources import is_authors
from slotwise.worker.familiar.values import MISSING, attributes, may_change

LOOKED_INTO = (*CONTAINERS, defaultdict, OrderedDict, Counter)
MOST_LOOKS = 4  # at a handler's source
P = ParamSpec("P")
T = TypeVar("T")
DATA = frozenset(("builtins", "collections", "datetime", "decimal", "fractions", "uuid", "array"))


def states_of(handle: Callable[..., Any]) -> list[dict[str, Any]]:
    """Where a stranger's handler may leave something: its object or module, and the objects there whose classes are its own."""
    root = attributes(handle.__self__) if isinstance(handle, MethodType) else getattr(handle, "__globals__", {})
    inner = list(root.values())
    own = [one for one in inner if type(one).__module__ == handle.__module__]
    own += [one.__self__ for one in inner if isinstance(one, MethodType)]  # an envelope has its handler so
    return list({id(of): of for of in (root, *map(attributes, own)) if type(of) is dict}.values())


@dataclass(frozen=True)
class KeptAttributes:
    """Attributes, and the containers in them, as they are at one time. besides: names of what others set at any time."""

    held: list[tuple[dict[str, Any], dict[str, Any]]]
    parts: dict[int, Parts]

    @classmethod
    def now(cls, states: Iterable[dict[str, Any]], besides: Container[str] = ()) -> KeptAttributes:
        """Of these dicts of attributes."""
        held = [(of, {name: value for name, value in of.copy().items() if name not in besides}) for of in states]
        values = [value for _, values in held for value in values.values()]
        return cls(held, {id(value): found for value in values if (found := _parts(value)) is not None})

    def differs(self, value: Any) -> bool:
        """Whether this container has other parts now."""
        return id(value) in self.parts and differ(self.parts[id(value)], listed(value))

    def changed(self) -> set[str]:
        """The names of what is set, or put into containers, by now."""
        pairs = [
            (name, of.get(name, MISSING), values.get(name, MISSING)) for of, values in self.held for name in {*of, *values}
        ]
        return {name for name, now, was in pairs if now is not was or self.differs(was)} - OURS

    def put_back(self, besides: Container[str] = ()) -> None:
        """Have all of it as it was."""
        for of, values in self.held:
            for name in [name for name in of.keys() - values.keys() if name not in besides]:
                del of[name]
            of |= values
            for value in filter(self.differs, values.values()):
                filled(value, self.parts[id(value)])


@dataclass(frozen=True)
class KeptPlaces:
    """What some places hold, and what is in that, at one time; but what is large, or of a library's class, stays as it is."""

    held: list[tuple[Any, str, Any]]
    contents: list[KeptParts]

    @classmethod
    def now(cls, places: Iterable[tuple[Any, str]]) -> KeptPlaces:
        """Of these holders and names (handed_on.py)."""
        held = [(holder, name, attributes(holder).get(name, MISSING)) for holder, name in places]
        return cls(held, [kept for _, _, value in held for kept in kept_of(value)])

    def put_back(self) -> None:
        """Have all of it as it was."""
        for kept in self.contents:
            kept.put_back()
        for holder, name, value in self.held:
            if attributes(holder).get(name, MISSING) is not value:
                put(holder, name, value)


@contextmanager
def undone(states: Sequence[dict[str, Any]], alone: Callable[[], bool] = lambda: True) -> Iterator[Callable[[], set[str]]]:
    """Within, a handler runs; where it fails, its attributes and the containers in them are as they were before.

    What it gives tells the names of what is set, or put into containers, by then. alone(): whether no other call has begun
    since; where one has, all stays, as that call may use it.
    """
    before = KeptAttributes.now(states)
    try:
        yield before.changed
    except BaseException:
        if alone():
            before.put_back()
        raise


@contextmanager
def as_before(places: Iterable[tuple[Any, str]], alone: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Within, a method runs that changes these places; where it fails, they are as they were before. alone: see `undone`."""
    before = KeptPlaces.now(places)
    try:
        yield
    except BaseException:
        if alone():
            before.put_back()
        raise


@dataclass(frozen=True)
class AsItWas:
    """All that an author's handler may change, as it is at one time. besides: names of what others set at any time."""

    states: KeptAttributes
    places: KeptPlaces
    besides: Container[str] = ()

    def put_back(self) -> None:
        """Have all of it as it was."""
        self.states.put_back(self.besides)
        self.places.put_back()

    def has_made(self) -> bool:
        """Whether something was made since that is no data: a model that is loaded when it is first needed, say. It stays."""
        held = [(of, name, was) for of, values in self.states.held for name, was in _with_new(of, values, self.besides)]
        held += [(attributes(holder), name, was) for holder, name, was in self.places.held]
        if any((was is MISSING or was is None) and not _is_plain(of.get(name, MISSING)) for of, name, was in held):
            return True
        kept = [value for _, values in self.states.held for value in values.values() if self.states.differs(value)]
        grown = [(self.states.parts[id(value)], listed(value)) for value in kept]
        grown += [(one.before, one.look()) for one in self.places.contents if one.differs()]
        return any(not _is_data(part) for before, now in grown for part in _added(before, now))


class Keeping:
    """Remembers what a handler may change. states(): dicts of attributes; places(): what its source says that it changes."""

    def __init__(
        self,
        states: Callable[[], Sequence[dict[str, Any]]],
        places: Callable[[], list[tuple[Any, str]]],
        besides: Container[str] = (),
    ) -> None:
        self._states_of, self._places_of, self.besides = states, places, besides
        self._places, self._known_of, self._looks = list[tuple[Any, str]](), -1, 0

    def found(self) -> tuple[Sequence[dict[str, Any]], list[tuple[Any, str]]]:
        """Its attributes, and the places elsewhere."""
        states = self._states_of()
        if self._looks < MOST_LOOKS and self._known_of < (now := _made(states)):
            self._places, self._known_of, self._looks = self._places_of(), now, self._looks + 1
        return states, self._places

    def now(self) -> AsItWas:
        """All of it, as it is now."""
        states, places = self.found()
        return AsItWas(KeptAttributes.now(states, self.besides), KeptPlaces.now(places), self.besides)

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Within, it is asked what nobody has asked: afterwards all is as before, but for what was made."""
        before = self.now()
        try:
            yield
        finally:
            if not before.has_made():
                before.put_back()

    def each_time(self, call: Callable[P, T]) -> Callable[P, T]:
        """The same function, for which each time is like the first: what a handler keeps of an item says nothing of others."""
        before = self.now()

        def called(*args: P.args, **named: P.kwargs) -> T:
            if not before.has_made():
                before.put_back()
            return call(*args, **named)

        return called


class Undoing(Keeping):
    """Undoes what calls of a stranger's handler that fail have left: `with undoing(context): handle(...)`."""

    def __init__(self, handle: Callable[..., Any]) -> None:
        super().__init__(partial(states_of, handle), partial(changed_by, handle))

    @contextmanager
    def __call__(self, context: Any) -> Iterator[None]:
        """Within, it is called with this context."""
        states, places = self.found()
        with as_before(places), undone([*states, attributes(context)]):
            yield


HANDLERS = OURS | {"_apart", "_effects", "_looking", "_aside", "_one_at_a_time", "settings", "model_dir", "engine", "context"}


def kept_by(handler: Any) -> Keeping:
    """What the hooks of a handler of ours may change, whose class is its author's."""
    if not is_authors(type(handler)):
        return Keeping(list, list)
    return Keeping(lambda: [vars(handler)], partial(changed_on, handler), HANDLERS)


def _made(states: Sequence[dict[str, Any]]) -> int:
    """How much there is: names, and containers in which there is what may change itself: an empty one may come to that."""
    return sum(map(len, states)) + sum(may_change(_first_part(value)) for of in states for value in of.copy().values())


def _first_part(value: Any) -> Any:
    if type(value) not in LOOKED_INTO or not value:
        return None
    return next(iter(value.values() if isinstance(value, dict) else value))


def _with_new(of: dict[str, Any], values: dict[str, Any], besides: Container[str]) -> list[tuple[str, Any]]:
    """What there was by name, and the names that are new."""
    return [*values.items(), *((name, MISSING) for name in of.keys() - values.keys() if name not in besides)]


def _added(before: Parts, now: Parts) -> Iterator[Any]:
    known = {id(part) for parts in before for part in parts}
    return (part for parts in now for part in parts if id(part) not in known)


def _is_plain(value: Any) -> bool:
    return type(value) in ATOMS or value is MISSING or isinstance(value, CONTAINERS)


def _is_data(value: Any) -> bool:
    if hasattr(value, "dtype") and hasattr(value, "shape"):  # an array, or a number of one
        return True
    return not callable(value) and type(value).__module__ in DATA


def _parts(value: Any) -> list[list[Any]] | None:
    """What is in a container, of a dict its keys and values; None where that is not looked into."""
    if type(value) not in LOOKED_INTO or len(value) > MOST_ENTRIES:
        return None
    return listed(value)
