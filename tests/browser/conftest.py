"""A real Chromium, a real gateway process, and a stand-in for the model server. Screenshots go to artifacts/."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.frontend.live import StandInThread

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = [
    *["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"],
    *["--disable-background-networking", "--disable-component-update", "--disable-sync"],
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
MODELS = {"digits": 1, "captions": 2, "translation": 1}
ARTIFACTS = Path("artifacts")


def executable() -> str:
    """Chromium's path; without one these tests are skipped, and say so."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        message = "NO BROWSER: the page is not tested. `apt-get install chromium` makes these tests run."
        warnings.warn(message, stacklevel=1)
        pytest.skip(message)
    return found


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    pytest.importorskip("playwright")
    from playwright.sync_api import sync_playwright

    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=FLAGS, timeout=180_000, env={**os.environ, "HOME": str(tmp_path_factory.mktemp("home"))}
        )
        yield browser
        browser.close()


@dataclass
class Site:
    """Where the page is, and what it asked for outside of that."""

    url: str
    server: StandInThread
    home: Path
    outside: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        """Note every request to somebody else, and every fault in the page's scripts."""
        own = (self.url, "blob:", "data:")
        page.on("request", lambda asked: None if asked.url.startswith(own) else self.outside.append(asked.url))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda said: self.faults.append(said.text) if "Content Security" in said.text else None)


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home, server = tmp_path_factory.mktemp("home"), StandInThread(models=dict(MODELS), likely=True, batch_size=8)
    with server.front(home, "--default-model", "digits", "--remember", "200") as gateway:
        yield Site(gateway.url, server, home)


@pytest.fixture
def page(browser: Browser, site: Site, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page, loaded; afterwards a screenshot is kept and nobody else may have been asked for anything."""
    options = getattr(request, "param", {})
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
    context.set_default_timeout(90_000)
    page = context.new_page()
    site.outside.clear()
    site.faults.clear()
    site.watch(page)
    page.goto(f"{site.url}/index.html")
    page.locator("#model:not([disabled])").wait_for()
    yield page
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"{request.node.name.partition('[')[0]}.png", full_page=True)
    context.close()
    assert site.outside == []
    assert site.faults == []
