"""What all generators of a process have in common: the seeds of random numbers, and how torch computes."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
        looks["torch.set_default_dtype"] = torch.get_default_dtype
        looks["torch.inference_mode"] = torch.is_inference_mode_enabled
        looks["torch.autocast"] = lambda: _autocast(torch)
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
def gradients(on: bool | None) -> Iterator[Callable[[], bool | None]]:
    """Within, torch keeps what gradients need, or not; None: as it does now. Then it tells whether it does by then."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "set_grad_enabled"):
        yield lambda: None
        return
    outside = torch.is_grad_enabled()
    torch.set_grad_enabled(outside if on is None else on)
    try:
        yield torch.is_grad_enabled
    finally:
        torch.set_grad_enabled(outside)


def _autocast(torch: Any) -> object:
    return [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in DEVICES]
