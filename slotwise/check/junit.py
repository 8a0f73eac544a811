"""Write what `slotwise check` found as JUnit's XML, which continuous integration shows: a suite a worker, a case a promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from slotwise.check.conformance import CheckReport
from slotwise.files.disk import written_whole


def write_junit(path: Path, reports: Sequence[CheckReport], sentences: Mapping[str, str], foreign: Sequence[str] = ()) -> None:
    """Write one file for all archives. sentences: what each promise says. foreign: archives that made none; theirs do not fail.

    A promise that is not kept is a failure, one that could not be asked for is skipped, each with its reason.
    """
    root = ElementTree.Element("testsuites", name="slotwise check")
    for report in reports:
        for kind, verdicts in report.verdicts.items():
            name = _printable(Path(report.archive).name)
            suite = ElementTree.SubElement(root, "testsuite", name=f"{name} on {kind} {report.versions[kind]}")
            failures = skipped = 0
            for verdict in verdicts:
                case = ElementTree.SubElement(suite, "testcase", classname=f"{name}.{kind}", name=verdict.promise)
                why = _printable(verdict.why or sentences[verdict.promise])
                if verdict.holds is None or (verdict.holds is False and report.archive in foreign):
                    ElementTree.SubElement(case, "skipped", message=why)
                    skipped += 1
                elif not verdict.holds:
                    ElementTree.SubElement(case, "failure", message=why).text = _printable(sentences[verdict.promise])
                    failures += 1
            suite.attrib |= {"tests": str(len(verdicts)), "failures": str(failures), "skipped": str(skipped), "errors": "0"}
    ElementTree.indent(root)
    with written_whole(path) as unfinished:
        ElementTree.ElementTree(root).write(unfinished, "utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)
