"""What is printed is what was said, whatever it looks like to rich."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest

from slotwise.commands import gateway
from slotwise.console import emit, progress, say, table


def test_words_in_brackets_stay(capsys: pytest.CaptureFixture[str]) -> None:
    say("loading /data/[old]/m.mar [/7]")
    emit({}, False, lambda: ["no model at [/data/x]", table("of [/a]", ["[b]name"], [["[/c]"]])])
    printed = capsys.readouterr()
    assert printed.err.strip() == "loading /data/[old]/m.mar [/7]"
    for words in ("no model at [/data/x]", "of [/a]", "[/c]"):
        assert words in printed.out


def test_words_in_brackets_stay_beside_a_bar() -> None:
    with progress() as bar:
        bar.add_task("loading [/x]")
        assert str(bar.columns[0].render(bar.tasks[0])) == "loading [/x]"  # type: ignore[union-attr]


def test_json_is_what_every_program_reads(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"loss": math.nan, "most": [math.inf, 1.5, "NaN"], "file": Path("a")}, True)
    printed = capsys.readouterr().out
    assert "NaN," not in printed
    assert json.loads(printed) == {"loss": None, "most": [None, 1.5, "NaN"], "file": "a"}


def test_top_as_json_is_in_the_pipe_before_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(pipe, write_through=False))

    def waits(seconds: float) -> None:
        assert json.loads(pipe.getvalue()) == {"models": []}
        raise KeyboardInterrupt

    monkeypatch.setattr(gateway, "_asked", lambda name, path: {"models": []})
    monkeypatch.setattr(gateway.time, "sleep", waits)
    with pytest.raises(KeyboardInterrupt):
        gateway.top(as_json=True)
