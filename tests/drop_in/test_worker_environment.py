"""What a worker of `slotwise torchserve` has in its environment."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.drop_in import own_host
from slotwise.drop_in.configuration import Configuration


def environment_of(keys: dict[str, str], folder: Path) -> dict[str, str]:
    """Of a worker of a model that is registered as `here`."""
    host: Any = object.__new__(own_host.DropInHost)
    host.environ, host.folder = own_host._environ(Configuration(keys)), folder
    host.record = SimpleNamespace(shares={}, overrides=())
    registered = SimpleNamespace(environment=lambda overrides: {})
    profile = SimpleNamespace(workers_by_load="off")
    return dict(host._environ(SimpleNamespace(id="m_1.0", name="here", profile=profile, as_registered=registered)))


@pytest.mark.parametrize(("keys", "told"), [({}, "true"), ({"decode_input_request": "false"}, "false")])
def test_it_says_whether_bodies_are_decoded(keys: dict[str, str], told: str, tmp_path: Path) -> None:
    assert environment_of(keys, tmp_path)["TS_DECODE_INPUT_REQUEST"] == told
