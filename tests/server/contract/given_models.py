"""Every given model on both real servers: a bad request at every place of a batch, and pictures that are dear to decode.

digits runs in `make test`; the others in `make test-full`, most of them with made-up weights. Those that are served by the same
handler and engines as resnet18, only with other weights, run in `make long`; so do large ones on MMS, and with the profile ei
on others' servers (tests/server/conftest.py).
"""

from __future__ import annotations

import fcntl
import io
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slotwise.archive.build import build
from slotwise.archive.inspection import inspect
from slotwise.bench.bodies import examples
from slotwise.check.example_variants import variants
from slotwise.client.inference import InferenceClient
from slotwise.deploy.deploy import registration
from slotwise.profiles.profile import load_profile
from tests.server.bursts import Answer, burst, together
from tests.server.conftest import BATCHES, Live

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

BATCH_SIZE = 4
QUICK = ("digits",)
LIKE_RESNET18 = ("ants_bees", "resnet152")
LARGE = ("iris", "moods", "efficientnet", "mnist", "ants_bees", "resnet18", "resnet152", "captions", "translation")
WEIGHTS = {"ants_bees": "none", "resnet18": "none", "resnet152": "none"}  # the others have small ones of their own
PICTURES = ("digits", "efficientnet", "ants_bees", "resnet18", "resnet152", "captions")
BAD = {"a text": b"not a picture, not a tensor, not JSON", "nothing": b"", "a bracket": b"{"}
NO_TEXTS = {"nothing": b"", "blanks": b" \n", "no UTF-8": b"\xff\xfe"}  # to a model that takes any text


def given(*models: str) -> list[Any]:
    """The models as parameters; the large ones are slow tests, those like another one are for the long run."""
    long = [pytest.mark.slow, pytest.mark.long]
    marks = {model: [] if model in QUICK else long if model in LIKE_RESNET18 else long[:1] for model in models}
    return [pytest.param(model, marks=marks[model]) for model in models]


@pytest.fixture(scope="session")
def both_built(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Path:
    """Where both processes of a run find a model that one of them has built."""
    folder = tmp_path_factory.getbasetemp().parent / f"built-{testrun_uid}"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def model(request: pytest.FixtureRequest, live: Live, store: Path, both_built: Path) -> Iterator[str]:
    """A given model in the live server's store, under a name of its own: other tests register digits, too."""
    name: str = request.param
    if not (store / f"{name}.mar").is_file():
        with (both_built / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (both_built / f"{name}.mar").is_file():
                build(name, both_built, WEIGHTS.get(name))
        (store / f"{name}.mar").hardlink_to(both_built / f"{name}.mar")
    registered = name in {listed.name for listed in live.management.list()}
    if registered:
        live.management.unregister(name)
    yield name
    if registered:  # as the other tests know it
        live.management.register(f"{name}.mar", **BATCHES)
        live.management.wait_ready(name)


@cache
def bodies_of(archive: str) -> list[bytes]:
    """The archive's examples."""
    return [body.data for body in examples(archive)]


def same(got: Any, wanted: Any) -> bool:
    """The same answer; numbers may differ by what a kernel's order of adding changes with the size of the batch."""
    if isinstance(wanted, dict):
        return isinstance(got, dict) and got.keys() == wanted.keys() and all(same(got[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(got, list) and len(got) == len(wanted) and all(map(same, got, wanted))
    return abs(got - wanted) < 1e-2 if isinstance(wanted, float) else bool(got == wanted)


@pytest.mark.parametrize("model", given(*QUICK, *LARGE), indirect=True)
def test_a_bad_request_at_every_place_costs_only_itself(live: Live, store: Path, model: str) -> None:
    good = bodies_of(str(store / f"{model}.mar"))
    with (
        live.registered(model, batch_size=BATCH_SIZE, max_batch_delay=3000) as registered,
        InferenceClient(live.record, timeout_s=120) as client,
    ):
        pid = registered.workers[0].pid
        alone = [_good(burst(client, model, [body] * BATCH_SIZE)[0]) for body in good[:BATCH_SIZE]]
        places = [{place} for place in range(BATCH_SIZE)]
        places += [set(random.sample(range(BATCH_SIZE), count)) for count in range(2, BATCH_SIZE + 1)]
        for bad in places:
            which = [i % len(alone) for i in range(BATCH_SIZE)]
            sent = [
                random.choice(list((NO_TEXTS if model == "moods" else BAD).values())) if i in bad else good[which[i]]
                for i in range(BATCH_SIZE)
            ]
            answers = together(client, model, sent)
            assert {answer.batch_size for answer in answers} == {BATCH_SIZE}
            for i, answer in enumerate(answers):
                if i in bad:
                    assert 400 <= answer.status < 500, answer
                    assert answer.is_clean_error, answer
                else:
                    assert same(_good(answer), alone[which[i]]), (i, answer, alone[which[i]])
        assert live.pids(model) == [pid]


@pytest.mark.parametrize("model", given(*QUICK, *LARGE), indirect=True)
def test_batch_mates_change_not_a_byte_of_an_answer(live: Live, store: Path, model: str) -> None:
    """At one place of a batch of one size: among copies of itself, among the other examples, and among what is made of them."""
    (example, *others) = examples(str(store / f"{model}.mar"))
    mates = [body.data for body in [*others, *variants(example)]] or [example.data]
    with live.registered(model, batch_size=BATCH_SIZE, max_batch_delay=3000), InferenceClient(live.record) as client:
        among_copies = {answer.slot: answer for answer in together(client, model, [example.data] * BATCH_SIZE)}
        assert {(slot, answer.status) for slot, answer in among_copies.items()} == {(slot, 200) for slot in range(BATCH_SIZE)}
        place = BATCH_SIZE // 2  # where it is sent; requests may overtake each other
        for start in range(0, min(len(mates), 9), 3):
            sent = [mates[(start + i) % len(mates)] for i in range(BATCH_SIZE)]
            sent[place] = example.data
            answer = together(client, model, sent)[place]
            assert (answer.batch_size, answer.body) == (BATCH_SIZE, among_copies[answer.slot].body)


def _good(answer: Answer) -> Any:
    assert answer.status == 200, answer
    return answer.body


def tiny_webp() -> bytes:
    """50 million pixels of one colour in a few dozen bytes."""
    target = io.BytesIO()
    Image.new("RGB", (7070, 7070), (200, 10, 30)).save(target, "WEBP", lossless=True, method=0)
    return target.getvalue()


def deep_png() -> bytes:
    """50 million pixels of 16 bits."""
    target = io.BytesIO()
    Image.fromarray(np.full((7000, 7000), 40_000, np.uint16)).save(target, "PNG", compress_level=1)
    return target.getvalue()


@pytest.mark.parametrize("model", given(*PICTURES), indirect=True)
@pytest.mark.parametrize("profile", ["cpu", "ei"])
def test_pictures_that_are_dear_to_decode_cost_their_neighbour_nothing(
    live: Live, store: Path, model: str, profile: str
) -> None:
    info = inspect(store / f"{model}.mar")
    settings = registration(info, load_profile(profile, environ={}), {})
    (example, *_) = bodies_of(str(info.path))
    settings |= {"response_timeout": 10, "initial_workers": 1, "max_batch_delay": max(500, settings["max_batch_delay"])}
    with live.registered(model, **settings) as registered, InferenceClient(live.record, timeout_s=120) as client:
        for dear in ([tiny_webp()] * 16, [deep_png()] * 7):
            answers = burst(client, model, [*dear, example], gap_s=0)
            assert answers[-1].status == 200, answers[-1]
            assert {answer.status for answer in answers[:-1]} <= {200, 413, 503}, answers
        assert live.pids(model) == [worker.pid for worker in registered.workers]
