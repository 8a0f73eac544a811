"""One key, and how often it may ask. What a request costs is taken once it is let in, so that a refusal costs nothing.

A key has a second's requests at most, one at least. Whoever has one left may send a request of any number of records: the key
is in debt then, and may send nothing until that is paid off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Set
from dataclasses import dataclass, field

from slotwise.backends.interface import Refused


@dataclass(frozen=True)
class AccessKey:
    """One key. models: those that it may use, all where empty. requests_per_s: 0 means any number.

    until: Unix time in seconds from which on it opens nothing; 0: it has no end. weight: how many of its requests go in its
    turn, where keys take turns. priority: those of a higher one go first.
    """

    name: str
    sha256: str
    models: tuple[str, ...] = ()
    requests_per_s: float = 0.0
    until: float = 0.0
    weight: int = 1
    priority: int = 0

    @property
    def ended(self) -> bool:
        """Whether its time is over."""
        return bool(self.until) and time.time() >= self.until

    def opens(self, model: str) -> bool:
        """Whether it may use that model."""
        return not self.models or model in self.models


@dataclass
class _Bucket:
    """What the keys of one name have left; below 0: what they owe."""

    tokens: float
    filled_at: float


class KeyRates:
    """What each name has left of its rate."""

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}

    def refuse_if_spent(self, key: AccessKey) -> None:
        """Raise Refused (429) where the key may not ask now."""
        if not key.requests_per_s:
            return
        left = self._filled(key).tokens
        if left < 1:
            wait_s = (1 - left) / key.requests_per_s
            raise Refused(429, f"this key may ask {key.requests_per_s:g} times a second", retry_after_s=math.ceil(wait_s))

    def charge(self, key: AccessKey, count: int) -> None:
        """Take `count` requests from what the key has left."""
        if key.requests_per_s:
            self._filled(key).tokens -= count

    def keep(self, names: Set[str]) -> None:
        """Forget all others: keys come and go."""
        self._buckets = {name: bucket for name, bucket in self._buckets.items() if name in names}

    def _filled(self, key: AccessKey) -> _Bucket:
        """The bucket with what has come into it since it was last looked at."""
        now, most = time.monotonic(), max(key.requests_per_s, 1.0)
        bucket = self._buckets.setdefault(key.name, _Bucket(most, now))
        bucket.tokens = min(most, bucket.tokens + (now - bucket.filled_at) * key.requests_per_s)
        bucket.filled_at = now
        return bucket


@dataclass(eq=False)
class Bill:
    """What one request costs its key, once, whatever is sent for it. key: None where there are no keys."""

    key: AccessKey | None = None
    rates: KeyRates = field(default_factory=KeyRates)
    paid: bool = False

    def pay(self, count: int) -> None:
        """Pay for a request of `count` records. Raises Refused (429): others of the same key may have spent all meanwhile."""
        if self.key is not None and not self.paid:
            self.rates.refuse_if_spent(self.key)
            self.pay_anyhow(count)

    def pay_anyhow(self, count: int) -> None:
        """Pay, also with what the key does not have."""
        if self.key is not None and not self.paid:
            self.rates.charge(self.key, count)
            self.paid = True


FREE = Bill()  # of whoever has no key
