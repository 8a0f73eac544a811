"""Requests that a gateway's own OpenAPI schema allows or forbids."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

schemathesis = pytest.importorskip("schemathesis")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis.errors import Unsatisfiable  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.specs.openapi import checks  # noqa: E402

HELD = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
]


def try_all(url: str) -> None:
    """Try out every operation of the schema that is at this address."""
    for found in schemathesis.openapi.from_url(url).get_all_operations():
        for mode in GenerationMode:
            try_out(found.ok(), mode)


def try_out(operation: Any, mode: GenerationMode) -> None:
    """Requests that the schema allows (positive) or forbids (negative)."""

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=15, suppress_health_check=list(HealthCheck))
    def ask(case: Any) -> None:
        answer = case.call()
        assert answer.status_code not in (500, 502), answer.text
        case.validate_response(answer, checks=HELD)

    with suppress(Unsatisfiable):  # nothing that a request without parameters could do wrong
        ask()
