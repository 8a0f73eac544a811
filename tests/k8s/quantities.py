"""Kubernetes quantities: "500m" cores, "2Gi" bytes."""

from __future__ import annotations

import re
from decimal import Decimal

SCALE = {
    **{"": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")},
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([A-Za-z]*)")


def parse(text: object) -> Decimal:
    """The number that a quantity means. Raises ValueError for anything else, "2GiB" for example."""
    match = NUMBER.fullmatch(text if isinstance(text, str) else repr(text) if type(text) in (int, float) else "")
    if match is None or match[2] not in SCALE:
        raise ValueError(f"{text!r} is no quantity")
    return Decimal(match[1]) * SCALE[match[2]]
