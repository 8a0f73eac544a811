"""Where what workers print goes."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from slotwise import log_format
from slotwise.backends.local.prints import FilePrints
from slotwise.host import model_host


def test_with_json_logs_the_lines_of_one_read_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log_format.VARIABLE, "json")
    opened: list[Path] = []
    open_file = Path.open

    def open_counted(self: Path, *mode: str, **how: str) -> object:
        opened.append(self)
        return open_file(self, *mode, **how)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", open_counted)
    log = tmp_path / "log"

    async def run() -> None:
        with model_host._prints(log).opened("m_1-0") as printed:
            os.write(printed.descriptor, b"".join(b"line %d\n" % i for i in range(100)))
            await asyncio.sleep(0.1)
            assert printed.last_line() == "line 99"
        await asyncio.sleep(0.1)  # it hears of the end

    asyncio.run(run())
    assert [json.loads(line)["message"] for line in log.read_text().splitlines()] == [f"line {i}" for i in range(100)]
    assert opened.count(log) == 2  # this test reads it, too


def test_a_line_that_another_model_may_have_printed_is_nobodys(tmp_path: Path) -> None:
    prints = FilePrints(tmp_path / "log")
    with prints.opened("broken_1-0") as broken:
        os.write(broken.descriptor, b"ModuleNotFoundError\n")
        with prints.opened("broken_1-1"):
            assert broken.last_line() == "ModuleNotFoundError"
        with prints.opened("payroll_1-0") as other:
            os.write(other.descriptor, b"a salary\n")
            assert broken.last_line() == other.last_line() == ""
        del other
        assert broken.last_line() == ""
    del broken
    with prints.opened("alone_1-0") as alone:
        os.write(alone.descriptor, b"KeyError\n")
        assert alone.last_line() == "KeyError"
