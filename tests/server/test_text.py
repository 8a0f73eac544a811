"""Translation and captions on both real servers: the answer in any batch is the answer alone."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwise.archive.build import build
from slotwise.archive.inspection import extract
from slotwise.files import project
from tests.server.bursts import Answer, answer, burst, together
from tests.server.conftest import Live, started
from tests.worker.drawings import caption, everything, picture
from tests.worker.texts import LANGUAGES, SENTENCES, odd_texts, payload

pytestmark = pytest.mark.server

BATCH_SIZE = 8
DELAY_MS = 400  # a batch of 8 forms when its requests come within this time; those that go alone wait so long
MODELS = ("translation", "translation-beams", "captions")
TOGETHER_S = 0.002


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with captions, translation, and translation with four beams: the same weights in another archive."""
    store, work = tmp_path_factory.mktemp("texts"), tmp_path_factory.mktemp("beams") / "translation-beams"
    build("captions", store)
    extract(build("translation", store), work)
    described = (project.model_folder("translation") / "model.toml").read_text("utf-8")
    described = described.replace('name = "translation"', 'name = "translation-beams"').replace("beams = 1 ", "beams = 4 ")
    for carried in ("slotwise", "MAR-INF"):
        shutil.rmtree(work / carried)
    shutil.copytree(work / "examples", work, dirs_exist_ok=True)
    (work / "model.toml").write_text(described, "utf-8")
    build(work, store)
    return store


@pytest.fixture(scope="module", params=["torchserve", "mms"])
def live_texts(request: pytest.FixtureRequest, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A real server with the three models, each in batches of 8."""
    with started(request.param, tmp_path_factory.mktemp(f"texts-{request.param}"), texts) as server:
        for model in MODELS:
            server.management.register(
                f"{model}.mar", batch_size=BATCH_SIZE, max_batch_delay=DELAY_MS, initial_workers=1, response_timeout=60
            )
        for model in MODELS:
            server.management.wait_ready(model)
        yield server


def full_batch(live: Live, model: str, bodies: list[bytes]) -> list[Answer]:
    """The answers of bodies that really shared a batch."""
    answers = together(live.inference, model, bodies, TOGETHER_S)
    assert {found.batch_size for found in answers} == {len(bodies)}
    return answers


def alone(live: Live, model: str, bodies: list[bytes]) -> list[Answer]:
    """The answers of bodies that had no company."""
    found = [answer(live.inference.predict(model, body)) for body in bodies]
    assert {one.batch_size for one in found} == {1}
    return found


def mixed_requests(count: int, seed: int) -> list[bytes]:
    """Requests of 1 to 6 records: known sentences and odd texts, every pair of languages, all lengths."""
    draw, odd = random.Random(seed), odd_texts(40, seed)
    requests = []
    for _ in range(count):
        source, target = draw.sample(range(len(LANGUAGES)), 2)
        known = [sentence[source] for sentence in SENTENCES]
        records = [{"id": str(i), "text": draw.choice(draw.choice([known, odd]))} for i in range(draw.randint(1, 6))]
        requests.append(payload(records, source=LANGUAGES[source], target=LANGUAGES[target]))
    return requests


@pytest.mark.parametrize("model", ["translation", "translation-beams"])
def test_translations_in_any_batch_are_the_translations_alone(live_texts: Live, model: str) -> None:
    bodies = mixed_requests(BATCH_SIZE, seed=len(model))
    wanted = [found.body for found in alone(live_texts, model, bodies)]
    for order in (range(BATCH_SIZE), random.sample(range(BATCH_SIZE), BATCH_SIZE)):
        answers = full_batch(live_texts, model, [bodies[i] for i in order])
        assert [found.body for found in answers] == [wanted[i] for i in order]


def test_one_bad_translation_request_of_eight_costs_only_itself(live_texts: Live) -> None:
    before = live_texts.pids("translation")
    record = [{"id": "1", "text": SENTENCES[0][1]}]
    good = payload(record, source="ja", target="en")
    bad = {
        b"no json": 400,
        payload(record, source="ja", target="xx"): 422,
        payload(record * 1001, source="ja", target="en"): 413,
        b'{"payload": {}}': 422,
    }
    for position, (body, code) in zip((0, 3, 5, 7), bad.items(), strict=True):
        answers = full_batch(live_texts, "translation", [body if i == position else good for i in range(BATCH_SIZE)])
        for i, found in enumerate(answers):
            if i == position:
                assert found.status == code
                assert found.is_clean_error
            else:
                assert found.body == {"result": [{"id": "1", "text": "Life is like a box of chocolates."}]}
    assert live_texts.pids("translation") == before


def test_one_bad_record_of_a_hundred_costs_only_itself(live_texts: Live) -> None:
    records: list[Any] = [{"id": "same", "text": SENTENCES[i % len(SENTENCES)][2]} for i in range(100)]
    (whole,) = alone(live_texts, "translation", [payload(records, source="fr", target="de")])
    for place, bad in ((0, {"id": "same", "text": 7}), (57, {"id": "same", "text": "a " * 5000}), (99, None)):
        spoiled = [bad if i == place else record for i, record in enumerate(records)]
        (found,) = alone(live_texts, "translation", [payload(spoiled, source="fr", target="de")])
        assert [one for i, one in enumerate(found.body["result"]) if i != place] == [
            one for i, one in enumerate(whole.body["result"]) if i != place
        ]
        assert found.body["result"][place]["error"]["code"] in (413, 422)
    assert [one["text"] for one in whole.body["result"]] == [SENTENCES[i % len(SENTENCES)][3] for i in range(100)]


def test_a_thousand_records_and_none(live_texts: Live) -> None:
    records = [{"id": str(i), "text": SENTENCES[i % len(SENTENCES)][0]} for i in range(1000)]
    body = payload(records, source="en", target="ja")
    thousand, none = burst(live_texts.inference, "translation", [body, payload([])])
    assert (none.status, none.body) == (200, {"result": []})
    wanted = [{"id": str(i), "text": SENTENCES[i % len(SENTENCES)][1]} for i in range(1000)]
    assert thousand.body == {"result": wanted}


def test_odd_texts_and_ids(live_texts: Live) -> None:
    records = [
        {"id": "\ud800", "text": ""},
        {"id": "\ud800", "text": "\udfff"},
        {"id": "s", "text": "</s> __fr__ <pad>"},
        {"id": "s", "text": SENTENCES[0][0]},
    ]
    body, note = payload(records, source="en", target="ja"), "x-model-note"
    response = live_texts.inference.predict("translation", body, {"content-type": "application/json; charset=utf-8"})
    found = response.json()["result"]
    assert found[0] == {"id": "\ud800", "text": ""}
    assert found[1]["error"]["code"] == 422
    assert "error" not in found[2]
    assert found[3] == {"id": "s", "text": SENTENCES[0][1]}
    assert "demonstration" in response.headers[note]
    described = live_texts.management.describe("translation")
    assert (described.engine, described.precision) == ("ctranslate2", "int8")
    assert "demonstration" in described.workers[0].got["notes"][note]


def test_captions_in_any_batch_are_the_captions_alone(live_texts: Live) -> None:
    shown = everything()[:: len(everything()) // BATCH_SIZE][:BATCH_SIZE]
    bodies = [picture(shapes, seed=i, side=60 + 40 * i, kind="jpeg" if i % 2 else "png") for i, shapes in enumerate(shown)]
    wanted = [found.body for found in alone(live_texts, "captions", bodies)]
    right = sum(found["caption"] == caption(shapes) for found, shapes in zip(wanted, shown, strict=True))
    assert right >= BATCH_SIZE // 2
    assert [found.body for found in full_batch(live_texts, "captions", bodies)] == wanted
    for position, bad in ((2, b"no picture"), (6, bodies[6][:200])):
        answers = full_batch(live_texts, "captions", [bad if i == position else body for i, body in enumerate(bodies)])
        assert [found.status for found in answers] == [400 if i == position else 200 for i in range(BATCH_SIZE)]
        assert [found.body for i, found in enumerate(answers) if i != position] == [
            body for i, body in enumerate(wanted) if i != position
        ]
