"""What SageMaker asks of a container: `GET /ping`, and `POST /invocations` to the one model that it serves.

The body and the answer are the model's own. Source: SageMaker's documentation, "How containers serve requests".
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import parse_qs

from slotwise.backends.interface import Refused
from slotwise.frontend.inference_request import Scope

TARGET = b"x-amzn-sagemaker-target-model"


def named_model(query: bytes) -> str:
    """The model that the query of /invocations names, as TorchServe reads it: the first `model_name`; "": none."""
    return parse_qs(query.decode("latin-1")).get("model_name", [""])[0]


def asked_model(scope: Scope, default: str, models: Collection[str]) -> str:
    """The model that /invocations asks: of the query, else the default, else the only one.

    Raises Refused: 404 where there is none, or several; 400 where the client wants another one of a multi-model endpoint.
    """
    asked = named_model(scope["query_string"]) or default or (next(iter(models)) if len(models) == 1 else "")
    if not asked:
        known = f"there are {len(models)} models" if models else "there is no model"
        raise Refused(404, f"{known}, and none is the default: name one with --default-model")
    target = dict(scope["headers"]).get(TARGET, b"").decode("latin-1").strip("/")
    if target and target.removesuffix(".tar.gz").removesuffix(".mar") != asked:
        raise Refused(400, "this is no multi-model endpoint: TargetModel is for /models/NAME/invoke")
    return asked
