"""What `make serve` shows first: a photo, dropped on the page of a real gateway before a real TorchServe, gets its labels."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from slotwise.archive.build import build
from slotwise.archive.inspection import inspect
from slotwise.client.management import ManagementClient
from slotwise.deploy.deploy import deploy, registration
from slotwise.frontend import process
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.lifecycle import start, stop

from .conftest import ARTIFACTS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.server, pytest.mark.timeout(900)]

CHELSEA = Path(__file__).parents[2] / "models" / "efficientnet" / "examples" / "chelsea.png"
CATS = {"tabby", "tiger cat", "Egyptian cat"}
DROP = """(data) => {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([bytes], "chelsea.png", { type: "image/png" }));
    document.querySelector("#drop").dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
}"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The gateway of a server with the two models of `make serve`."""
    store, home = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("home")
    infos = [inspect(build(model, store)) for model in ("efficientnet", "digits")]
    profile = load_profile("cpu", environ={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTWISE_HOME", str(home))
        record = start("default", "torchserve", profile, model_store=store, ports=Ports.free(), models={})
        try:
            with ManagementClient(record) as client:
                for info in infos:
                    deploy(client, info, registration(info, profile, {}))
            gateway = process.start_detached("default", ["--port", "0", "--translation-port", "-1"])
            deadline = time.monotonic() + 240
            while not gateway.status()["ready"]:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield gateway.url
        finally:
            process.stop()
            stop(record)


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    """The page, as it opens."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.goto(f"{url}/index.html")
    page.locator("#model:not([disabled])").wait_for()
    yield page
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / "first-minute.png", full_page=True)
    context.close()


def test_a_cat_dropped_on_the_page_is_a_cat(page: Page) -> None:
    assert page.input_value("#model") == "efficientnet"
    page.evaluate(DROP, base64.b64encode(CHELSEA.read_bytes()).decode())
    card = page.locator(".card")
    assert card.locator(".answer").inner_text() in CATS
    bars = card.locator(".bars").inner_text()
    assert bars.count("%") == 5
    assert sum(cat in bars for cat in CATS) == 3


def test_the_same_by_curl(url: str) -> None:
    answer = httpx.put(f"{url}/predictions/efficientnet", content=CHELSEA.read_bytes(), headers={"accept": "text/plain"})
    assert answer.text in CATS
