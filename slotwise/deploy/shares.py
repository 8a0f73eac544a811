"""Several models on one server share its cores: so many for each, and its workers divide them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slotwise.errors import SlotwiseError


def share_cores(models: Sequence[str], cores: int, parts: Mapping[str, float]) -> dict[str, int]:
    """How many cores each model gets, at least one. parts: of the whole, 1 for a model that is not named.

    All together get no more than there are, unless there are more models than cores.
    """
    total = sum(parts.get(model, 1.0) for model in models)
    exact = {model: cores * parts.get(model, 1.0) / total for model in models}
    shares = {model: max(1, int(exact[model])) for model in models}
    for model in sorted(models, key=lambda model: int(exact[model]) - exact[model]):  # the largest remainder first
        if sum(shares.values()) < cores:
            shares[model] += 1
    while sum(shares.values()) > max(cores, len(shares)):  # who has more gives what the least of them need
        shares[max(shares, key=shares.__getitem__)] -= 1
    return shares


def parse_parts(text: str, models: Sequence[str]) -> dict[str, float]:
    """`a=2,b=1` as numbers. Raises SlotwiseError for what is none of the models, or no number above 0."""
    parts: dict[str, float] = {}
    for one in filter(None, text.split(",")):
        model, _, number = one.partition("=")
        if model not in models:
            raise SlotwiseError(f"--share names {model!r}, which is not served here", f"models: {', '.join(models)}")
        try:
            parts[model] = float(number)
        except ValueError:
            parts[model] = 0.0
        if not 0 < parts[model] < float("inf"):
            raise SlotwiseError(f"--share {one} is no number above 0", "for example --share a=2,b=1: a gets twice b's cores")
    return parts
