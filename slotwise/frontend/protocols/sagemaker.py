"""What SageMaker asks of a container: `GET /ping`, and `POST /invocations` to the one model that it serves.

The body and the answer are the model's own. Source: SageMaker's documentation, "How containers serve requests".
"""

from __future__ import annotations

from collections.abc import Collection

from slotwise.backends.interface import Refused


def asked_model(default: str, models: Collection[str]) -> str:
    """The model that /invocations asks: the one that was named, else the only one. Raises Refused (404)."""
    if default:
        return default
    if len(models) != 1:
        known = f"there are {len(models)} models" if models else "there is no model"
        raise Refused(404, f"{known}, and none is the default: name one with --default-model")
    return next(iter(models))
