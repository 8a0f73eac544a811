"""The page and every route in front of a real TorchServe with the given models: digits, captions, translation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from slotwise.archive.build import build
from slotwise.bench.bodies import RequestBody, examples
from slotwise.frontend.process import GatewayRecord
from slotwise.profiles.ports import Ports
from tests.server.conftest import started
from tests.support.schema import try_all

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(900)]
MODELS = ("digits", "captions", "translation")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("store")
    for model in MODELS:
        build(model, store)
    return store


@pytest.fixture(scope="module")
def second_port() -> int:
    return Ports.free().inference


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, store: Path, second_port: int) -> Iterator[GatewayRecord]:
    """A gateway on two ports in front of a TorchServe with the three models READY."""
    with started("torchserve", tmp_path_factory.mktemp("torchserve"), store) as live:
        for model in MODELS:
            live.management.register(f"{model}.mar", batch_size=4, max_batch_delay=50, initial_workers=1, response_timeout=120)
            live.management.wait_ready(model)
        with live.front("--translation-port", str(second_port), "--max-queued", "64") as record:
            yield record


@pytest.fixture
def page(browser: Browser, real: GatewayRecord) -> Iterator[Page]:
    with browser.new_context() as context:
        context.set_default_timeout(120_000)
        page = context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{real.url}/index.html")
        page.locator("#model:not([disabled])").wait_for()
        yield page
        assert faults == []


def example(store: Path, model: str, ending: str = "") -> RequestBody:
    return next(body for body in examples(str(store / f"{model}.mar")) if body.name.endswith(ending))


def test_captions_and_translations_on_both_ports(real: GatewayRecord, second_port: int, store: Path) -> None:
    picture, records = example(store, "captions"), example(store, "translation")
    ids = [record["id"] for record in json.loads(records.data)["payload"]["records"]]
    for url in (real.url, f"http://127.0.0.1:{second_port}"):
        with httpx.Client(base_url=url, timeout=120, trust_env=False) as http:
            caption = http.post("/caption", content=picture.data, headers={"content-type": picture.content_type})
            assert caption.status_code == 200
            assert caption.json()["caption"]
            translated = http.post("/translation", content=records.data, headers={"content-type": records.content_type})
            assert translated.status_code == 200
            assert [record["id"] for record in translated.json()["result"]] == ids
            refused = http.post("/caption", content=b"no picture")
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, 400)


@pytest.mark.long
def test_no_request_is_a_500_and_every_answer_is_in_the_schema(real: GatewayRecord) -> None:
    try_all(f"{real.url}/openapi.json")


def test_pictures_and_a_broken_one_get_an_answer_each(page: Page) -> None:
    page.select_option("#model", "digits")
    page.get_by_role("button", name="Send all, one broken").click()
    page.locator("#summary", has_text="1 refused, each for itself.").wait_for()
    cards = page.locator(".card:not(.failed)")
    for i in range(cards.count()):
        name = cards.nth(i).locator(".name").inner_text().strip()
        assert cards.nth(i).locator(".answer").inner_text() == name.removesuffix(".png")
    assert page.locator(".card.failed").count() == 1


def test_a_caption_and_a_translation_on_the_page(page: Page) -> None:
    page.select_option("#model", "captions")
    page.locator("#example-list button").first.click()
    page.locator(".card .answer").first.wait_for()
    page.select_option("#model", "translation")
    page.locator("#example-list button").first.click()
    page.locator(".card .translated").first.wait_for()
