"""`slotwise guard --example`: whether answers depend on their batch-mates is proven, refuted, or called unproven."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.guarding.foreign import GUARD
from slotwise.archive.guarding.guard_proof import Example, GuardProof
from slotwise.archive.guarding.guarded import guard, proof_of
from slotwise.archive.local_model import LocalModel
from slotwise.errors import SlotwiseError
from tests.archive.foreign_archives import mms_archive

KEEPS_APART = """
import json

def handle(data, context):
    return data and [{"doubled": 2 * json.loads(row["body"])} for row in data]
"""
MIXES = """
import json

def handle(data, context):
    numbers = [json.loads(row["body"]) for row in data or []]
    return [number - 0.001 * sum(numbers) / len(numbers) for number in numbers]
"""
SHIFTS = """
def handle(data, context):
    answers = [row["body"] for row in data or []]
    return answers[1:] + answers[:1]
"""
BY_CHANCE = """
import random

def handle(data, context):
    return [random.random() for _ in data or []]
"""
IN_A_HEADER = """
import json

def handle(data, context):
    numbers = [json.loads(row["body"]) for row in data or []]
    for i, number in enumerate(numbers):
        context.set_response_header(i, "x-share", str(number / max(numbers)))
    return ["done"] * len(numbers)
"""
KEPT = """
import json

KEPT = {}

def handle(data, context):
    numbers = [json.loads(row["body"]) for row in data or []]
    return [{"share": KEPT.setdefault(number, number / max(numbers))} for number in numbers]
"""
ROUNDS = """
import json

def handle(data, context):
    return data and [{"doubled": 2 * json.loads(row["body"]) * (1 + 1e-8 * len(data))} for row in data]
"""
SAYS_WHEN = """
import json, time

def handle(data, context):
    for i, _ in enumerate(data or []):
        context.set_response_header(i, "x-now", str(time.perf_counter_ns()))
    return data and [{"doubled": 2 * json.loads(row["body"])} for row in data]
"""
REFUSES = """
import json

def handle(data, context):
    return data and [1 / json.loads(row["body"]) for row in data]
"""
EXAMPLES = [Example(f"{number}.txt", str(number).encode(), "text/x-number") for number in (1, 20, 300)]
BROKEN = "import a_package_that_nobody_has\n\ndef handle(data, context):\n    return data\n"


def guarded(folder: Path, handler: str, examples: list[Example]) -> Path:
    return guard(mms_archive(folder / "theirs.mar", handler), examples=examples)


def terms(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as source:
        return dict(json.loads(source.read(f"{GUARD}/guard.json")))


def test_a_handler_that_keeps_its_rows_apart_is_proven(tmp_path: Path) -> None:
    path = guarded(tmp_path, KEEPS_APART, EXAMPLES)
    proof = proof_of(path)
    assert proof is not None
    assert (proof.separable, len(proof.examples), proof.sizes, proof.apart) == (True, 3, (2, 3, 4, 8), 0.0)
    assert proof.sentence().startswith("proven with 3 examples in batches of 2, 3, 4, 8")
    assert terms(path)["together"] is True
    again = guard(tmp_path / "theirs.mar", tmp_path / "again.mar", examples=EXAMPLES)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("handler", [ROUNDS, SAYS_WHEN], ids=["rounds", "says when"])
def test_so_is_one_that_rounds_by_the_batchs_size_or_says_the_time_in_a_header(tmp_path: Path, handler: str) -> None:
    proof = proof_of(guarded(tmp_path, handler, EXAMPLES))
    assert proof is not None
    assert (proof.separable, proof.cause) == (True, "")


@pytest.mark.parametrize(
    ("handler", "cause"),
    [
        (IN_A_HEADER, r"1\.txt: mixes rows: a batch of 2, 20\.txt mates"),
        (KEPT, r"1\.txt: mixes rows: a new worker's first batch"),
        (MIXES, r"1\.txt: mixes rows: a batch of 2, 20\.txt mates, numbers up to 0\.0095 apart"),
        (SHIFTS, r"1\.txt: mixes rows: a batch of 2"),
        (BY_CHANCE, r"1\.txt: not deterministic: the same batch of 2 again"),
    ],
    ids=["header", "kept", "mixes", "shifts", "chance"],
)
def test_one_that_does_not_gets_one_request_at_a_time(tmp_path: Path, handler: str, cause: str) -> None:
    path = guarded(tmp_path, handler, EXAMPLES)
    proof = proof_of(path)
    assert proof is not None
    assert proof.separable is False
    assert terms(path)["together"] is False
    assert re.search(cause, proof.cause), proof.cause
    if handler not in (BY_CHANCE, KEPT):
        with LocalModel(path) as model:
            bodies = [example.body for example in EXAMPLES]
            assert [one.body for one in model.answer(bodies)] == [model.answer([body])[0].body for body in bodies]


def test_what_is_not_known_is_called_unproven(tmp_path: Path) -> None:
    without = proof_of(guarded(tmp_path / "a", KEEPS_APART, []))
    assert without is not None
    assert without.sentence().startswith("unproven: ")
    refused = proof_of(guarded(tmp_path / "b", REFUSES, [*EXAMPLES, Example("zero.txt", b"0")]))
    assert refused is not None
    assert (refused.separable, refused.cause) == (None, "zero.txt: the example is refused: HTTP 500")
    assert GuardProof.from_terms({"format": 1}).separable is None
    assert proof_of(tmp_path / "a" / "theirs.mar") is None


def test_what_cannot_be_tried_is_refused_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    for examples in (EXAMPLES[:1], [EXAMPLES[0], Example("same.txt", b"1")]):
        with pytest.raises(SlotwiseError, match="needs two examples that differ"):
            guarded(tmp_path, KEEPS_APART, examples)
    with pytest.raises(SlotwiseError, match=r"nothing can be proven here: .*a_package_that_nobody_has"):
        guarded(tmp_path, BROKEN, EXAMPLES)
    assert [file.name for file in tmp_path.iterdir()] == ["theirs.mar"]


def test_the_command_and_inspect_say_it(tmp_path: Path) -> None:
    def slotwise(*arguments: str) -> str:
        command = [sys.executable, "-m", "slotwise.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    mms_archive(tmp_path / "theirs.mar", MIXES)
    for example in EXAMPLES:
        (tmp_path / example.name).write_bytes(example.body)
    examples = [word for example in EXAMPLES for word in ("--example", example.name)]
    said = slotwise("guard", "theirs.mar", *examples).splitlines()
    assert said[0] == "guarded theirs.mar: theirs-guarded.mar"
    assert said[1].startswith("REFUTED: an answer may depend on its batch-mates (1.txt: mixes rows")
    assert said[1] in slotwise("inspect", "theirs-guarded.mar")
    assert json.loads(slotwise("inspect", "theirs-guarded.mar", "--json"))["guard"]["separable"] is False
