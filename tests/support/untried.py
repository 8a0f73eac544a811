"""At the end of a run: which areas were not tried on this machine, and why. A skip is not a pass."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from scripts import areas


def lines(skipped: int) -> list[str]:
    """What a person should know who reads only the end."""
    untried = [f"{area}: {why}" for area, why in areas.untried()]
    return [*(untried or ["every area can be tried here"]), f"{skipped} tests were skipped, each with its reason above"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.config.option.collectonly:
        return
    terminalreporter.section("not tried on this machine")
    for line in lines(len(terminalreporter.stats.get("skipped", []))):
        terminalreporter.line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without", action="append", default=[], help="a package that is not here: what imports it is skipped")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file of tests that imports a package of `--without` is skipped, and named."""
    report = yield
    absent = [name for name in collector.config.option.without if f"No module named '{name}" in str(report.longrepr)]
    if report.failed and absent:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 1, f"Skipped: without {absent[0]}")
    return report
