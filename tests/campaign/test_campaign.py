"""`tests/campaign`: what it counts, that it goes on where it was, and a hundredth of it."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.campaign import front_to_back
from tests.campaign.__main__ import earlier_parts, resumed
from tests.campaign.archive_faults import zipped
from tests.campaign.cases import GRACE_S, Case, Part, run_part
from tests.campaign.innocents import Innocents
from tests.campaign.resources import WHAT, slope
from tests.campaign.served import same
from tests.campaign.tally import BROKEN, Tally

OFFLINE = ("archives", "fuzz", "batches")
ROOT = Path(__file__).resolve().parents[2]


def part(*, deadline_s: float = 60.0) -> tuple[Part, dict[int, float]]:
    """A part whose case 2 raises and whose case 3 never ends; and what each case drew."""
    drawn: dict[int, float] = {}

    def case(i: int, draw: Random, tally: Tally) -> None:
        drawn[i] = draw.random()
        tally.requests += 1
        if i == 2:
            raise KeyError("a bug")
        while i == 3:
            try:
                time.sleep(60)
            except Exception:
                continue

    @contextmanager
    def start(work: Path, scale: float) -> Iterator[Case]:
        yield case

    return Part("toy", "", 6, start, deadline_s), drawn


def test_a_failure_is_counted_and_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """In a process of its own: an alarm may end one in which other libraries have their threads."""
    process = multiprocessing.get_context("spawn").Process(target=count_a_failure_and_go_on, args=(tmp_path,))
    process.start()
    process.join(200)
    assert process.exitcode == 0


def count_a_failure_and_go_on(tmp_path: Path) -> None:
    toy, drawn = part(deadline_s=1.0 - GRACE_S)
    saved: list[int] = []
    tally = Tally(planned=4)
    run_part(toy, 7, 1.0, tally, tmp_path, 60.0, lambda: saved.append(tally.cases))
    assert (tally.cases, tally.requests, tally.unplanned, tally.hangs, saved) == (4, 4, 1, 1, [4])
    assert [(failure["case"], failure["kind"]) for failure in tally.failures] == [(2, "unplanned"), (3, "hangs")]
    assert tally.broken
    further = Tally(**json.loads(json.dumps(tally.as_dict())))
    further.planned = 6
    run_part(toy, 7, 1.0, further, tmp_path, 60.0, lambda: None)
    assert (further.cases, further.requests) == (6, 6)
    again, other = part()
    run_part(again, 7, 1.0, Tally(planned=1), tmp_path, 60.0, lambda: None)
    assert other[0] == drawn[0], "a case follows from the seed, the part and its number"
    run_part(again, 8, 1.0, Tally(planned=1), tmp_path, 60.0, lambda: None)
    assert other[0] != drawn[0]


def test_a_part_goes_on_only_at_its_own_commit_and_the_others_stay(tmp_path: Path) -> None:
    facts = {"seed": 1, "scale": 0.5, "commit": "abc", "server": "", "tree": "012", "date": "today"}
    facts["machine"] = {"cpu": "abacus"}
    toy, _ = part()
    tally = resumed(None, toy, facts)
    assert (tally.planned, tally.full, tally.commit, tally.cpu) == (3, 6, "abc", "abacus")
    tally.cases = 2
    file = tmp_path / "counts.json"
    assert earlier_parts(file) == {}
    file.write_text(json.dumps({"parts": {"toy": tally.as_dict()}}))
    left = earlier_parts(file)["toy"]
    assert resumed(left, toy, facts).cases == 2
    assert resumed(left, toy, {**facts, "commit": "def"}).cases == 0


def test_memory_that_only_grows_is_a_leak() -> None:
    steady, growing = Tally(planned=1), Tally(planned=1)
    steady.memory_mib, growing.memory_mib = [50, 300, *[400] * 14], [400.0 + 20 * i for i in range(16)]
    for tally in (steady, growing):
        tally.check_memory()
    assert (steady.leaks, growing.leaks) == (0, 1)


def test_a_reader_from_front_to_back_sees_what_no_directory_lists() -> None:
    whole = zipped([("a.py", b"1"), ("b/", b""), ("é", b"2")], 8)
    assert front_to_back.read(whole) == [("a.py", b"1"), ("b/", b""), ("é", b"2")]
    evil = zipped([("evil", b"3")], 8)
    assert front_to_back.read(evil[: evil.find(b"PK\x01\x02")] + whole)[0] == ("evil", b"3")
    with pytest.raises(ValueError):
        front_to_back.read(b"MZ" + whole)


def test_answers_are_the_same_but_for_the_last_digits() -> None:
    sure = {"label": "7", "probabilities": {"7": 0.9, "1": 0.1}}
    close = {"label": "7", "probabilities": {"7": 0.5, "1": 0.4999}}
    assert same(sure, {"label": "7", "probabilities": {"7": 0.90001, "1": 0.09999}})
    assert same(close, {"label": "1", "probabilities": {"7": 0.4999, "1": 0.5}})
    assert not same(sure, {"label": "1", "probabilities": {"7": 0.1, "1": 0.9}})
    assert not same({"answer": 3.0}, {"answer": 5.0})


def test_only_what_grows_by_more_than_its_noise_for_long_enough_leaks() -> None:
    draw = Random(1)

    def leaks(seconds: int, growth_mib: float, known_mib: float = 0.0) -> list[str]:
        samples = [(float(t), 300 + growth_mib * t / seconds + draw.uniform(-20, 20), 30.0, 40.0, 20.0) for t in range(seconds)]
        return [what for what in WHAT if slope(what, samples).leaks(known_mib if what == "memory_mib" else 0.0)]

    assert leaks(900, 0.0) == []
    assert leaks(900, 300.0) == ["memory_mib"]
    assert leaks(900, 300.0, known_mib=200.0) == []  # two thirds of the time are judged
    assert leaks(200, 300.0) == []  # it may still be warming up


def test_a_case_lists_only_some_of_its_failures() -> None:
    tally = Tally(planned=2)
    for _ in range(100):
        tally.fail(0, "lost", "the same")
    tally.fail(1, "wrong", "another")
    assert (tally.lost, tally.wrong) == (100, 1)
    assert [failure["case"] for failure in tally.failures] == [0, 0, 0, 1]


def test_an_innocent_is_answered_refused_wrong_or_lost() -> None:
    found = Innocents()
    for status, right in (("200", True), ("200", False), ("429", False), ("RESOURCE_EXHAUSTED", False), ("timeout", False)):
        found.count(status, right, 0.5, "what was said")
    assert (found.waits_s, found.wrong, found.refused, found.lost, len(found.failures)) == ([0.5], 1, 2, 1, 4)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("part", "case"), [("soak", 0), ("chaos", 3)], ids=["TorchServe", "a killed gateway"])
def test_a_short_soak_and_one_round_of_chaos_break_nothing(part: str, case: int) -> None:
    command = [sys.executable, "-m", "tests.campaign", part, "--case", str(case), "--scale", "0.001"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)
    assert counts["innocents"] > 50
    assert not any(counts[kind] for kind in BROKEN)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(900)
def test_a_few_timed_traces_break_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.campaign", "traces", "--scale", "0.01", "--json", str(tmp_path / "counts.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads((tmp_path / "counts.json").read_text())["parts"]["traces"]
    assert counts["innocents"] > 50
    assert counts["measured"]["answers from batches of several"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1500)  # a minute or so on a machine that does nothing else
def test_a_hundredth_of_the_campaign_breaks_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.campaign", *OFFLINE, "--scale", "0.01", "--json", str(tmp_path / "counts.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((tmp_path / "counts.json").read_text())["parts"]
    for counts in parts.values():
        assert counts["cases"] == counts["planned"]
        assert counts["innocents"]
        assert counts["refused"]
        assert not any(counts[kind] for kind in BROKEN)


@pytest.mark.slow
def test_the_management_api_of_our_own_host_answers_as_torchserves(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.campaign",
        "management",
        "--server",
        "slotwise",
        "--json",
        str(tmp_path / "counts.json"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
