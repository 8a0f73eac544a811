"""The verdicts of `slotwise check` as continuous integration reads them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from slotwise.check.conformance import CheckReport, PromiseVerdict
from slotwise.check.junit import write_junit

SENTENCES = {"slots": "Every request keeps its slot.", "rows": "Rows are kept apart.", "loads": "It loads."}


def report(archive: str) -> CheckReport:
    verdicts = [
        PromiseVerdict("slots", False, "row 3 < row 4\x00"),
        PromiseVerdict("rows", None, "no examples"),
        PromiseVerdict("loads", True, ""),
    ]
    return CheckReport(archive, {"mms": "1.1.11"}, {"mms": verdicts})


def test_a_broken_promise_is_a_failure_and_an_unasked_one_is_skipped(tmp_path: Path) -> None:
    write_junit(tmp_path / "out.xml", [report("store/toy.mar"), report("store/other.mar")], SENTENCES, ["store/other.mar"])
    suites = list(ElementTree.parse(tmp_path / "out.xml").getroot())
    assert [(suite.get("name"), suite.get("tests"), suite.get("failures"), suite.get("skipped")) for suite in suites] == [
        ("toy.mar on mms 1.1.11", "3", "1", "1"),
        ("other.mar on mms 1.1.11", "3", "0", "2"),
    ]
    failure = suites[0].find("testcase/failure")
    assert failure is not None
    assert (failure.get("message"), failure.text) == ("row 3 < row 4?", "Every request keeps its slot.")


def test_a_name_that_xml_cannot_hold_is_written_without_it(tmp_path: Path) -> None:
    write_junit(tmp_path / "out.xml", [report("store/a\x01b\udcff.mar")], SENTENCES)
    (suite,) = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert suite.get("name") == "a?b?.mar on mms 1.1.11"
