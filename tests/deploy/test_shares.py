"""Several models share the cores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slotwise.deploy.shares import parse_parts, share_cores
from slotwise.errors import SlotwiseError
from slotwise.worker.environment.cores import available_cores
from slotwise.worker.environment.settings import Settings


@pytest.mark.parametrize(
    ("models", "cores", "parts", "shares"),
    [
        ("ab", 8, {}, [4, 4]),
        ("abc", 8, {}, [3, 3, 2]),
        ("abc", 2, {}, [1, 1, 1]),
        ("ab", 3, {"a": 2.0}, [2, 1]),
        ("ab", 16, {"a": 3.0, "b": 1.0}, [12, 4]),
        ("abc", 4, {"a": 100.0}, [2, 1, 1]),
        ("abcd", 6, {"a": 100.0, "b": 100.0}, [2, 2, 1, 1]),
        ("abc", 2, {"a": 100.0}, [1, 1, 1]),
    ],
)
def test_shares(models: str, cores: int, parts: dict[str, float], shares: list[int]) -> None:
    assert list(share_cores(list(models), cores, parts).values()) == shares


def test_parts() -> None:
    assert parse_parts("a=2,b=0.5", ["a", "b"]) == {"a": 2.0, "b": 0.5}
    for text, message in (("c=1", "which is not served here"), ("a=0", "is no number above 0"), ("a", "is no number above 0")):
        with pytest.raises(SlotwiseError, match=message):
            parse_parts(text, ["a", "b"])


def test_a_worker_takes_its_models_share(tmp_path: Path) -> None:
    (tmp_path / "slotwise.json").write_text(json.dumps({"model": {"name": "a"}, "profiles": {"cpu": {}}}))
    assert Settings.load(tmp_path, {}).threads == available_cores()
    assert Settings.load(tmp_path, {"SLOTWISE_SHARES": '{"a": 1}'}).threads == 1
    assert Settings.load(tmp_path, {"SLOTWISE_SHARES": '{"b": 1}'}).threads == available_cores()
