"""Look at what is kept under a name: what it may change into, what it leads to, and which names are names of one thing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from logging import Logger
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Literal

from slotwise.worker.copies import ATOMS
from slotwise.worker.familiar.sources import is_authors, outer_values

FIXED = frozenset((*ATOMS, count, type, FunctionType, ModuleType, range, slice, type(Ellipsis), type(NotImplemented)))
FIXED_NAMES = (
    "device",
    "dtype",
    "Pattern",
    "PosixPath",
    "float32",
    "float64",
    "int64",
    "int32",
    "bool_",
    "timedelta",
)
CONTAINERS = (list, dict, set, tuple, frozenset, deque)
TRUSTED = (
    "transformers",
    "tokenizers",
    "sentencepiece",
    "sklearn",
    "xgboost",
    "lightgbm",
    "prometheus_client",
    "opentelemetry",
)  # packages whose objects keep no request's data
MISSING = object()
CACHED = "_lru_cache_wrapper"
TRUSTED_NAMES = {"lock", "RLock", "_Environ", "Module", "LoggerAdapter", "Executor", CACHED}
OURS = ("slotwise.worker.guard.stand_in", "slotwise.worker.familiar.threads_context")  # what is on the context is theirs
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_modules")  # of torch's modules
MOST = 20_000  # things that are looked at, but for numbers and texts
Kind = Literal["fixed", "plain", "nested", "numbers", "trusted", "own", "other"]  # "own" is ours, too


def kind_of(value: Any) -> Kind:
    """What may happen to it: "fixed" nothing; "plain" is a container of what is fixed; "own" an object of an author's class."""
    if not may_change(value):
        return "fixed"
    if type(value).__module__.startswith("slotwise."):
        return "own"
    if isinstance(value, CONTAINERS):
        parts = value.values() if isinstance(value, dict) else value
        plain = type(value).__module__ in ("builtins", "collections") and not any(map(may_change, parts))
        return "plain" if plain else "nested"
    bases = [kind for kind in type(value).__mro__ if not is_authors(kind)]
    names = {kind.__name__ for kind in bases}
    if names <= {"object", "Module", "ABC", "Generic", "Protocol", "type"}:
        return "own" if len(bases) < len(type(value).__mro__) else "trusted" if "Module" in names else "other"
    if {"ndarray", "Tensor"} & names:
        return "numbers"
    return "trusted" if is_trusted(value) or TRUSTED_NAMES & names else "other"


def is_trusted(value: Any) -> bool:
    """Whether this is an object of one of TRUSTED."""
    return bool({kind.__module__.partition(".")[0] for kind in type(value).__mro__} & set(TRUSTED))


def may_change(value: Any) -> bool:
    """Whether it may have other contents, being the same."""
    if type(value) in (tuple, frozenset):
        return any(map(may_change, value))
    if isinstance(value, BuiltinFunctionType):
        return not isinstance(value.__self__, ModuleType | type(None))
    if isinstance(value, Logger):  # also of a library's class: some have every logger made as theirs
        return is_authors(type(value))
    return type(value) not in FIXED and not isinstance(value, type) and type(value).__name__ not in FIXED_NAMES


def reached(value: Any) -> Iterator[Any]:
    """It, and what it leads to that may change or be called: the parts of containers, of the context, of what is bound."""
    seen, waiting = set[int](), [value]
    while waiting and len(seen) < MOST:
        one = waiting.pop()
        if type(one) in ATOMS or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += _inner(one)


def _inner(one: Any) -> list[Any]:
    """What it leads to, at once."""
    if isinstance(one, CONTAINERS):
        return [part for part in (one.values() if isinstance(one, dict) else one) if type(part) not in ATOMS]
    if isinstance(one, partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, MethodType | BuiltinFunctionType):
        return [one.__self__] if not isinstance(one.__self__, ModuleType) else []
    if isinstance(one, FunctionType) and is_authors(one):
        return [value for name, value in outer_values(one).items() if name in one.__code__.co_freevars]
    if hasattr(one, "_forward_hooks") and hasattr(one, "_modules"):
        return [part for name in HOOKS for part in (vars(one).get(name) or {}).values()]
    if type(one).__module__ in OURS or type(one).__name__ in ("SimpleNamespace", "UserDict", "UserList"):
        return list(attributes(one).values())
    return []


def things_in(value: Any) -> set[str]:
    """What is equal for two names of one thing, of one that is in both, or of one memory."""
    return {thing for one in reached(value) if may_change(one) for thing in [_thing(one)]}


def _thing(value: Any) -> str:
    with suppress(Exception):  # a sparse one has none
        return f"memory {value.untyped_storage().data_ptr()}"
    while type(base := getattr(value, "base", None)).__name__ == "ndarray":  # numpy's, which may not be there
        value = base
    return f"thing {id(value)}"


def is_name(name: str) -> bool:
    """Whether it is none of things_in."""
    return " " not in name


def shown(value: Any) -> Any:
    """The memory of an array, or of a tensor that numpy can show, as an array; None of anything else."""
    if type(value).__module__.partition(".")[0] not in ("numpy", "torch") or not hasattr(value, "__array__"):
        return None
    try:
        array = value.detach().numpy() if hasattr(value, "detach") else value
        return None if array.dtype.hasobject or not array.flags.writeable else array
    except (AttributeError, RuntimeError, TypeError):
        return None


def attributes(owner: Any) -> dict[str, Any]:
    """An object's own; none where it has none, or does not say."""
    try:
        found: dict[str, Any] | None = getattr(owner, "__dict__", None)
    except Exception:
        found = None
    return {} if found is None else found
