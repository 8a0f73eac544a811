"""Models of other people's libraries answer what the library answers, or are refused at build with the line that mends it.

One every day, all of them in the long run. They are made with the extra `exporters`; `python -m tests.thirty --write` writes
docs/thirty.md from what became of them.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.thirty.__main__ import PAGE, RUN, page
from tests.thirty.all_of_them import THIRTY
from tests.thirty.made import Brought
from tests.thirty.trial import tried

QUICK = ("several-inputs",)  # by hand: it needs onnx and nothing else
EACH = [pytest.param(one, id=one.name, marks=[] if one.name in QUICK else pytest.mark.long) for one in THIRTY]


@pytest.mark.parametrize("brought", EACH)
def test_it_answers_what_its_library_answers_or_is_refused(
    brought: Brought, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path / "home"))
    for package in brought.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    result = tried(brought, tmp_path)
    assert (result.wrong, result.lost) == ([], [])
    if brought.refused:
        assert brought.refused in result.said
    else:
        assert (result.said, result.answers > 0) == ("", True)


def test_the_page_is_what_the_run_wrote() -> None:
    run = json.loads(RUN.read_text("utf-8"))
    assert PAGE.read_text("utf-8") == page(run)
    assert [one["name"] for one in run["models"]] == [one.name for one in THIRTY]
    assert [one["name"] for one in run["models"] if one["wrong"] or one["lost"]] == []
    assert [bool(one["said"]) for one in run["models"]] == [bool(one.refused) for one in THIRTY]


def test_at_least_26_of_at_least_thirty_are_built() -> None:
    assert len(THIRTY) >= 30
    assert sum(not one.refused for one in THIRTY) >= 26
    assert len({one.name for one in THIRTY}) == len(THIRTY)
