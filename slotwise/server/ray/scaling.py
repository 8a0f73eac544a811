"""How many replicas Ray is to have, by what the front has to do: Ray itself counts only what comes through its own proxy."""

from __future__ import annotations

import math
from typing import Any

ASKED = "slotwise_asked"  # what a replica reports: the requests that it has, and its share of those that wait


def by_front(context: Any) -> tuple[int, dict[str, Any]]:
    """So many replicas that each has its target; Ray keeps to the limits and delays (an autoscaling policy of Serve's)."""
    asked = sum((context.aggregated_metrics or {}).get(ASKED, {}).values())
    return max(1, math.ceil(asked / context.config.get_target_ongoing_requests())), {}
