"""What SageMaker asks of a container: `GET /ping`, and `POST /invocations` to the one model that it serves.

The body and the answer are the model's own. Source: SageMaker's documentation, "How containers serve requests".
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import parse_qs

from slotwise.backends.interface import Refused


def named_model(query: bytes) -> str:
    """The model that the query of /invocations names, as TorchServe reads it: the first `model_name`; "": none."""
    return parse_qs(query.decode("latin-1")).get("model_name", [""])[0]


def asked_model(query: bytes, default: str, models: Collection[str]) -> str:
    """The model that /invocations asks: of the query, else the default, else the only one. Raises Refused (404)."""
    if asked := named_model(query) or default:
        return asked
    if len(models) != 1:
        known = f"there are {len(models)} models" if models else "there is no model"
        raise Refused(404, f"{known}, and none is the default: name one with --default-model")
    return next(iter(models))
