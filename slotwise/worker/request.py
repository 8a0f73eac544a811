"""One client's request, the same whichever server it came through."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, overload

from slotwise.worker.slot_errors import SlotError

Default = TypeVar("Default")


class Headers(Mapping[str, str]):
    """Request headers. Names are found in any case; iteration gives them in lower case.

    encoding: the content-encoding, "" where there is none.
    """

    def __init__(self, raw: Mapping[str, object] | None = None) -> None:
        self._values = {str(k).lower(): v for k, v in (raw or {}).items() if isinstance(v, str)}
        self.encoding = self._values.get("content-encoding", "")

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    @overload
    def get(self, name: str, default: None = None) -> str | None: ...

    @overload
    def get(self, name: str, default: str | Default) -> str | Default: ...

    def get(self, name: str, default: object = None) -> object:
        """The value of a header, or `default` where the request has none."""
        # Mapping's own `get` goes through an exception, four times a request.
        return self._values.get(name.lower(), default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values


@dataclass(frozen=True)
class Request:
    """One request as a handler sees it.

    body: the request's body, or the part of a form that carries it. headers: by name, in any case. id: for the log.
    deadline_s: Unix time in seconds after which no answer is of use, or None. more: further bodies, where a form has several
    parts of the body's name. fields: every field of a form, by name. query: the parameters in the address.

    refused: the error with which the host refuses the request, or None. unclear: the error where it is not clear which field
    of a form is the body, or None; only a handler whose `read` looks at the fields can answer such a request.
    """

    body: bytes
    headers: Headers = field(default_factory=Headers)
    id: str = ""
    deadline_s: float | None = None
    more: Sequence[bytes] = ()
    fields: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    refused: SlotError | None = None
    unclear: SlotError | None = None
    _until: float | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.deadline_s is not None:
            object.__setattr__(self, "_until", time.monotonic() + self.deadline_s - time.time())

    @property
    def until(self) -> float | None:
        """The deadline on time.monotonic's clock, from when the request was read: a clock that is set moves no deadline."""
        return self._until

    @property
    def is_late(self) -> bool:
        """Whether its deadline has passed."""
        return self._until is not None and time.monotonic() > self._until

    @property
    def bodies(self) -> list[bytes]:
        """Every body of the request. Nearly always there is one."""
        return [self.body, *self.more]
