"""What all generators of a process have in common: the seeds of random numbers, and how torch computes.

Modes that can be set at any time are each generator's own. What else one sets is only seen.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

DEVICES = ("cpu", "cuda")


def common_state() -> dict[str, object]:
    """What may be set for a whole process or thread, by the name of what sets it.

    A seed's value is another one where it is set, and, of `random` and numpy, after some hundred numbers.
    """
    numpy, torch = (sys.modules.get(name) for name in ("numpy", "torch"))
    looks: dict[str, Callable[[], object]] = {"random.seed": lambda: random.getstate()[1][:-1]}
    if numpy is not None:
        looks["numpy.random.seed"] = lambda: bytes(numpy.random.get_state(legacy=False)["state"]["key"])
    if torch is not None:
        looks["torch.manual_seed"] = torch.initial_seed
        looks["torch.inference_mode"] = torch.is_inference_mode_enabled
    found: dict[str, object] = {}
    for name, look in looks.items():
        with suppress(Exception):  # an earlier torch, or one that another thread imports now
            found[name] = look()
    return found


def set_between(before: dict[str, object], now: dict[str, object]) -> set[str]:
    """The names of what is not as it was, or was not there."""
    return {name for name, value in now.items() if name not in before or before[name] != value}


def moved_on() -> dict[str, object]:
    """What is set in common, random numbers seeded by their own next ones: so who sets the seed that was set before is seen."""
    numpy, torch = (sys.modules.get(name) for name in ("numpy", "torch"))
    random.seed(random.getrandbits(64))
    with suppress(Exception):  # as above
        if numpy is not None:
            numpy.random.seed(numpy.random.randint(1 << 31))
        if torch is not None:
            torch.manual_seed(int(torch.randint(1 << 62, ())))
    return common_state()


@contextmanager
def modes(own: Sequence[object] | None) -> Iterator[Callable[[], Sequence[object] | None]]:
    """Within, torch computes in these modes: gradients, the default type, autocast. None: as it does now.

    What it gives tells in which it does by then.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "set_grad_enabled"):  # none, or one that another thread imports now
        yield lambda: None
        return
    looks, sets = zip(*_modes(torch), strict=True)

    def now() -> list[object]:
        return [look() for look in looks]

    def have(wanted: Sequence[object]) -> None:
        for change, value, has in zip(sets, wanted, now(), strict=True):
            if has != value:
                change(value)

    outside = now()
    have(outside if own is None else own)
    try:
        yield now
    finally:
        have(outside)


def _modes(torch: Any) -> Iterator[tuple[Callable[[], object], Callable[[Any], object]]]:
    """What tells a mode, and what sets it."""
    yield torch.is_grad_enabled, torch.set_grad_enabled
    yield torch.get_default_dtype, torch.set_default_dtype
    for device in DEVICES if hasattr(torch, "get_autocast_dtype") else ():  # an earlier one
        yield partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device)
        yield partial(torch.get_autocast_dtype, device), partial(torch.set_autocast_dtype, device)
