"""Answers that come in pieces, on the page in a real browser, before a host of our own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from slotwise.frontend.process import GatewayRecord
from tests.backends.streaming_models import GENERATOR, streaming_archive
from tests.backends.test_archives import HANDLER
from tests.server.conftest import started

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayRecord]:
    """A gateway before a host with a model that streams, and one that does not."""
    folder, store = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("store")
    for name, handler in (("words", GENERATOR), ("twice", HANDLER)):
        streaming_archive(folder, name, handler, store)
    with started("slotwise", tmp_path_factory.mktemp("home"), store) as live:
        for name in ("words", "twice"):
            live.management.register(f"{name}.mar", batch_size=4, initial_workers=1)
            live.management.wait_ready(name, 1)
        with live.front() as record:
            yield record


@pytest.fixture
def page(browser: Browser, front: GatewayRecord) -> Iterator[Page]:
    with browser.new_context() as context:
        context.set_default_timeout(120_000)
        page = context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{front.url}/index.html")
        page.locator("#model:not([disabled])").wait_for()
        yield page
        assert faults == []


def card_of(page: Page, model: str, body: str) -> Locator:
    """The card of a file with this text."""
    page.select_option("#model", model)
    page.set_input_files("#picked", {"name": "body.json", "mimeType": "application/json", "buffer": body.encode()})
    return page.locator(".card").first


def test_words_are_shown_as_they_come(page: Page) -> None:
    card = card_of(page, "words", '[5000, "slow"]')
    card.locator(".growing", has_text="word0 word1 word2").wait_for()
    assert card.locator(".answer").count() == 0, "there are thousands more to come"


def test_in_the_end_the_answer_is_whole(page: Page) -> None:
    card = card_of(page, "words", "[4]")
    assert card.locator(".answer").inner_text().split() == [f"word{i}" for i in range(4)]
    assert card.locator(".growing, .waiting").count() == 0
    page.locator("#summary", has_text="body.json: answered").wait_for()


def test_an_error_in_the_middle_leaves_what_came(page: Page) -> None:
    card = card_of(page, "words", '[5, "raise", 2]')
    assert card.locator(".error").inner_text() == "500: the model failed on this input"
    assert card.locator(".growing").inner_text().split() == ["word0", "word1"]
    assert card_of(page, "words", "[]").locator(".error").inner_text() == "400: there is nothing to say"


def test_a_model_that_does_not_stream_answers_whole(page: Page) -> None:
    assert card_of(page, "twice", "2").locator(".body pre").inner_text() in ("4", "4.0")
