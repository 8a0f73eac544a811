"""Handlers that set what Python keeps in context variables: numpy's options, decimal's, and their own."""

from __future__ import annotations

import decimal
from contextvars import ContextVar
from typing import Any

import numpy as np

from tests.worker.idioms.asked import apart, each_of, no_answer_is_wrong
from tests.worker.idioms.sets import DIGITS, Sets

NOW: ContextVar[str] = ContextVar("NOW")


@apart(DIGITS)
class NumpysDigits(Sets):
    """Sets how many digits numpy writes."""

    def put(self, wanted: int) -> None:
        np.set_printoptions(precision=wanted)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return data

    def seen(self, data: Any) -> Any:
        return str(np.array([data]))


@apart([{"x": 1.0, "set": way} for way in ("ignore", "raise")])
class NumpysErrors(Sets):
    """Sets whether numpy raises where it divides by nothing."""

    def put(self, wanted: str) -> None:
        np.seterr(divide=wanted)  # type: ignore[call-overload]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return [self.divided(x) for x in data]

    def divided(self, x: float) -> str:
        try:
            return str(np.float64(x) / np.float64(0))
        except FloatingPointError:
            return "raised"

    def seen(self, data: Any) -> Any:
        return data


class Divides(Sets):
    """Divides decimal numbers, with as many digits as are set."""

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return [f"a seventh is {decimal.Decimal(x) / 7}" for x in data]

    def seen(self, data: Any) -> Any:
        return data


@apart([{"x": 1, "set": digits} for digits in (3, 5, 9)])
class DecimalsPrecision(Divides):
    """Sets the precision of the context that it is in."""

    def put(self, wanted: int) -> None:
        decimal.getcontext().prec = wanted


@apart([{"x": x, "set": 0} for x in (1, 2)], late=[{"x": 1, "set": 3}])
class DecimalsPrecisionOfSome(Divides):
    """Sets it for those that ask for it; the others have the usual digits."""

    def put(self, wanted: int) -> None:
        if wanted:
            decimal.getcontext().prec = wanted


@apart([{"x": 1, "set": digits} for digits in (3, 5, 9)])
class DecimalsContext(Divides):
    """Sets another context of decimal numbers."""

    def put(self, wanted: int) -> None:
        decimal.setcontext(decimal.Context(prec=wanted))


@apart([{"x": 1.0, "set": name} for name in ("alice", "bob", "carol")])
class AContextVariable(Sets):
    """Has the request of now in a context variable."""

    def put(self, wanted: str) -> None:
        NOW.set(wanted)

    def seen(self, data: Any) -> Any:
        return NOW.get()


@each_of(__name__)
def test_no_answer_is_wrong(kind: type[Sets], rows_at_once: list[int]) -> None:
    no_answer_is_wrong(kind, rows_at_once)
