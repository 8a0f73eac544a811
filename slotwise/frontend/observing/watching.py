"""Who watches a front's requests, by its options."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Container
from dataclasses import dataclass

from slotwise.frontend.http.client_address import TrustedProxies
from slotwise.frontend.observing.access_log import AccessFormat, AccessLog
from slotwise.frontend.observing.observer import Observer, Watcher
from slotwise.frontend.observing.remembered import Remembered
from slotwise.log_format import ACCESS_VARIABLE, REMEMBER_VARIABLE


@dataclass(frozen=True)
class WatchOptions:
    """What is seen of requests. remember: so many for `slotwise trace` and `top`. access_log: its form; None: there is none.

    traces: where an OTLP collector listens; "": nowhere. trace_share: of requests without a parent that are kept whatever
    becomes of them. trace_slow_s: who takes longer is kept as errors are.
    """

    remember: int = 0
    access_log: AccessFormat | None = None
    traces: str = ""
    trace_share: float = 0.01
    trace_slow_s: float = 1.0

    def observer(self, trusted: TrustedProxies, known: Callable[[], Container[str]]) -> Observer | None:
        """What sees requests; None where nobody wants to. Raises SlotwiseError where a package is missing."""
        watchers: list[Watcher] = []
        if self.access_log:
            watchers.append(AccessLog(self.access_log))
        remembered = Remembered(self.remember) if self.remember else None
        if remembered is not None:
            watchers.append(remembered)
        if self.traces:
            from slotwise.frontend.observing.spans import Sampling, over_http  # noqa: PLC0415  the extra otel

            spans = over_http(self.traces, Sampling(self.trace_share, self.trace_slow_s))
            late_s, sample = None if watchers else self.trace_slow_s, spans.sampling.at_head
            watchers.append(spans)
            observer = Observer(trusted, known, watchers, remembered, sample, propagates=True, late_s=late_s)
            atexit.register(observer.flush)  # before what ends the exporter, which came first
            return observer
        return Observer(trusted, known, watchers, remembered) if watchers else None


def from_environment() -> WatchOptions:
    """For the front of a host of ours: what the one who started it wants; nothing by itself."""
    wanted, remember = os.environ.get(ACCESS_VARIABLE), os.environ.get(REMEMBER_VARIABLE, "")
    form: AccessFormat | None = "json" if wanted == "json" else "common" if wanted == "common" else None
    return WatchOptions(int(remember) if remember.isdigit() and len(remember) < 8 else 0, form)
