"""Real digits on both real servers: every picture its own right answer, whatever its batch-mates are."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from slotwise.files import project
from tests.server.bursts import Answer, together
from tests.server.conftest import BATCH_SIZE, Live

pytestmark = pytest.mark.server

BAD = {"text": b"this is not a picture", "empty": b"", "half": b""}


@cache
def pictures() -> dict[str, bytes]:
    """Ten handwritten digits by their label."""
    folder: Path = project.model_folder("digits") / "examples"
    return {file.stem: file.read_bytes() for file in sorted(folder.glob("*.png"))}


def bad(kind: str) -> bytes:
    picture = pictures()["7"]
    return picture[: len(picture) // 2] if kind == "half" else BAD[kind]


def check(labels: list[str], answers: list[Answer]) -> None:
    """`labels`: the right label of a good picture, "" of a bad one; all in one full batch."""
    assert {answer.batch_size for answer in answers} == {BATCH_SIZE}
    for label, answer in zip(labels, answers, strict=True):
        if label:
            assert (answer.status, answer.body["label"]) == (200, label)
            assert sum(answer.body["probabilities"].values()) == pytest.approx(1.0, abs=0.1)
        else:
            assert answer.status in (400, 415), answer
            assert answer.is_clean_error, answer


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_picture_at_every_position(live: Live, kind: str) -> None:
    before, hit = live.pids("digits"), set()
    for _attempt in range(10):  # two requests may overtake each other on their way
        for position in set(range(BATCH_SIZE)) - hit:
            labels = [str(i) for i in range(BATCH_SIZE)]
            labels[position] = ""
            answers = together(live.inference, "digits", [pictures()[label] if label else bad(kind) for label in labels])
            check(labels, answers)
            hit.add(answers[position].slot)
    assert hit == set(range(BATCH_SIZE))
    assert live.pids("digits") == before


@pytest.mark.parametrize("count", range(1, BATCH_SIZE + 1))
def test_one_to_eight_bad_pictures(live: Live, count: int) -> None:
    labels = [""] * count + [str(9 - i) for i in range(BATCH_SIZE - count)]
    kinds = list(BAD)
    bodies = [pictures()[label] if label else bad(kinds[i % len(kinds)]) for i, label in enumerate(labels)]
    check(labels, together(live.inference, "digits", bodies))


def test_what_a_worker_says_it_got_is_in_describe(live: Live) -> None:
    model = live.management.describe("digits")
    assert (model.name, model.version, model.batch_size, model.profile) == ("digits", "1.0", BATCH_SIZE, "cpu")
    assert model.engine in ("torch", "onnxruntime", "openvino")
    assert [worker.status for worker in model.workers] == ["READY"]
    assert all(worker.memory_bytes > 0 and worker.got["model"] == "digits" for worker in model.workers)
