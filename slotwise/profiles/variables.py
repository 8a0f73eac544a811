"""The environment's variables that set keys of a profile, for containers."""

from __future__ import annotations

from collections.abc import Mapping

from slotwise.errors import SlotwiseError

ENVIRONMENT = {"BATCH_SIZE": "batch_size", "WORKERS": "initial_workers", "MAX_BATCH_DELAY": "max_batch_delay_ms"}
OTHER_NAMES = {"LINGER_MS": "MAX_BATCH_DELAY"}  # as the ants and bees on Elastic Inference set it


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The profile keys that BATCH_SIZE, WORKERS and MAX_BATCH_DELAY (or LINGER_MS) set, as `--set` would.

    Raises SlotwiseError where the two names of one key say different things.
    """
    for other, variable in OTHER_NAMES.items():
        if said := environ.get(other):
            if environ.get(variable, "") not in ("", said):
                raise SlotwiseError(f"environment: {other} is {said}, but {variable} is {environ[variable]}", "set one of them")
            environ = {**environ, variable: said}
    return {key: environ[variable] for variable, key in ENVIRONMENT.items() if environ.get(variable)}
