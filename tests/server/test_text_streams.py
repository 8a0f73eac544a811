"""Translations in pieces from a host of our own, beside the same model in closed batches; what is refused, and how."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from slotwise.archive.build import build
from tests.server.conftest import Live, started
from tests.server.event_client import EVENTS, client_to, events
from tests.worker.by_steps import built_by_steps
from tests.worker.texts import SENTENCES, payload

pytestmark = pytest.mark.server

MODEL = "/predictions/translation-steps"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A host with translation in closed batches and by steps."""
    store = tmp_path_factory.mktemp("store")
    built_by_steps(build("translation", store), tmp_path_factory.mktemp("work"), store)
    with started("slotwise", tmp_path_factory.mktemp("home"), store) as live:
        for name in ("translation", "translation-steps"):
            live.management.register(f"{name}.mar", batch_size=4, initial_workers=1)
        for name in ("translation", "translation-steps"):
            live.management.wait_ready(name, 1)
        yield live


@pytest.fixture
def client(live: Live) -> Iterator[httpx.Client]:
    with client_to(live) as client:
        yield client


def one(text: str, target: str = "fr") -> bytes:
    return payload([{"id": "1", "text": text}], source="en", target=target)


def test_the_same_translation_whole_and_in_pieces(client: httpx.Client) -> None:
    texts = [sentence[0] for sentence in SENTENCES[:10]]

    def asked(text: str) -> tuple[str, str]:
        whole = client.post(MODEL, content=one(text), headers={"content-type": "application/json"})
        *pieces, (kind, end) = events(client.post(MODEL, content=one(text), headers=EVENTS).text)
        assert (kind, end) == ("end", {"pieces": len(pieces)})
        return whole.json()["result"][0]["text"], "".join(str(data["text"]) for _, data in pieces)

    with ThreadPoolExecutor(8) as threads:  # more than there are slots
        answers = list(threads.map(asked, texts))
    assert [whole for whole, _ in answers] == [pieces for _, pieces in answers]
    assert sum(whole == sentence[2] for (whole, _), sentence in zip(answers, SENTENCES, strict=False)) >= 9


def test_many_records_are_answered_whole(client: httpx.Client) -> None:
    records = [{"id": i, "text": sentence[0]} for i, sentence in enumerate(SENTENCES)]
    body = payload(records, source="en", target="de")
    answers = [client.post(f"/predictions/{name}", content=body) for name in ("translation", "translation-steps")]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[1].json()["result"][0] == {"id": 0, "text": SENTENCES[0][3]}
    assert [row["id"] for row in answers[1].json()["result"]] == list(range(len(SENTENCES)))
    refused = client.post(MODEL, content=body, headers=EVENTS)
    assert (refused.status_code, "this body has 24" in refused.text) == (400, True)


def test_what_there_is_nothing_to_translate_of(client: httpx.Client) -> None:
    assert events(client.post(MODEL, content=one(" \u3000"), headers=EVENTS).text) == [("end", {"pieces": 0})]
    same = events(client.post(MODEL, content=one("As it is.", "en"), headers=EVENTS).text)
    assert same == [("piece", {"text": "As it is."}), ("end", {"pieces": 1})]


def test_bad_input_is_refused_before_a_piece(client: httpx.Client) -> None:
    for body, query, status in [
        (b"{", "", 400),
        (b"{}", "", 422),
        (one("x", "zz"), "", 422),
        (payload([{"id": "1"}], source="en", target="fr"), "", 422),
        (one("Good morning. " * 200), "", 413),
        (one("Good morning."), "?max_tokens=0", 400),
        (one("Good morning."), "?max_tokens=257", 400),
    ]:
        refused = client.post(f"{MODEL}{query}", content=body, headers=EVENTS)
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, status), (body, query)
    short = events(client.post(f"{MODEL}?max_tokens=2", content=one("Good morning."), headers=EVENTS).text)
    assert "Bonjour.".startswith("".join(str(data.get("text", "")) for _, data in short))


def test_closed_batches_do_not_stream(client: httpx.Client) -> None:
    refused = client.post("/predictions/translation", content=one("Good morning."), headers=EVENTS)
    assert (refused.status_code, "application/json" in refused.json()["error"]["message"]) == (406, True)
    either = {**EVENTS, "accept": "text/event-stream, */*"}
    assert client.post("/predictions/translation", content=one("Good morning."), headers=either).status_code == 200
