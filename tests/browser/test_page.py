"""The page in a real browser: what a person does, and what they get."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image, ImageDraw

from slotwise.frontend.admission import keys
from tests.frontend.live import StandInThread

from .conftest import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.browser


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three pictures, and one that is none."""
    folder = tmp_path_factory.mktemp("pictures")
    for name in ("one.png", "it's two.png", "three.jpg"):
        picture = Image.new("RGB", (56, 56), "white")
        ImageDraw.Draw(picture).line((15, 12, 42, 12, 24, 46), fill="black", width=5)
        picture.save(folder / name)
    (folder / "broken.png").write_bytes(b"not a picture")
    return [str(folder / name) for name in ("one.png", "it's two.png", "three.jpg", "broken.png")]


def upload(page: Page, files: list[str], model: str = "digits") -> None:
    page.select_option("#model", model)
    page.set_input_files("#picked", files)


def test_a_picture_gets_its_answer_and_its_time(page: Page, pictures: list[str]) -> None:
    upload(page, pictures[:1])
    card = page.locator(".card")
    assert card.locator(".answer").inner_text() == "7"
    assert card.locator(".bars").inner_text().split() == ["7", "95.0%", "1", "4.0%", "9", "1.0%"]
    page.locator("#summary", has_text="one.png: 7").wait_for()
    legend = card.locator(".legend").inner_text()
    for words in ("queue", "decode", "inference", "total", "slot 1 in a batch of 4"):
        assert words in legend
    assert card.locator(".slots i").count() == 4
    assert card.locator("img.thumb").get_attribute("src").startswith("blob:")


def test_its_way_is_drawn_where_requests_are_remembered(page: Page, pictures: list[str], site: Site) -> None:
    site.server.server.script.append("died")
    upload(page, pictures[:1])
    page.locator(".card .answer").wait_for()
    page.locator(".card .way summary").click()
    steps = page.locator(".card .way .steps")
    steps.get_by_text("slot 1 of 4").first.wait_for()
    words = steps.inner_text()
    for part in ("waits for a worker", "decodes", "the model", "ms"):
        assert part in words
    bars = steps.locator(".track i").evaluate_all("all => all.map(each => [each.style.left, each.style.width])")
    assert len(bars) >= 4
    assert all(0 <= float(value.removesuffix("%")) <= 100 for bar in bars for value in bar)


def test_a_request_that_was_hedged_or_went_alone_says_so(page: Page, pictures: list[str], site: Site) -> None:
    site.server.server.script.append("died")
    upload(page, pictures[:1])
    page.locator(".card .sent", has_text="Its worker died: tried alone").wait_for()
    assert page.locator(".card .answer").inner_text() == "7"


@contextmanager
def locked(browser: Browser, folder: Path) -> Iterator[tuple[Page, str]]:
    """A page that asks for a key, and the key."""
    file, home = folder / "keys.json", folder / "home"
    home.mkdir()
    key = keys.add(file, "person")
    server = StandInThread(models={"digits": 1}, likely=True)
    with server.front(home, "--keys", str(file)) as gateway, browser.new_context() as context:
        context.set_default_timeout(90_000)
        page = context.new_page()
        page.goto(f"{gateway.url}/index.html")
        page.get_by_role("button", name="Locked").wait_for()
        yield page, key


def unlock(page: Page, key: str, words: str) -> None:
    """Type a key; the page then says these words."""
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Unlock").click()
    page.locator("#strip", has_text=words).wait_for()


def test_a_key_unlocks_the_page(browser: Browser, pictures: list[str], tmp_path: Path) -> None:
    with locked(browser, tmp_path) as (page, key):
        for given, words in (("wrong", "This key is not known"), (key, "Ready")):
            unlock(page, given, words)
        page.locator("#model:not([disabled])").wait_for()
        upload(page, pictures[:1])
        page.locator("#summary", has_text="one.png: 7").wait_for()
        assert page.locator("#key-form").is_hidden()
        assert page.locator("#key").input_value() == ""


def test_another_key_can_be_typed_in_peace(browser: Browser, tmp_path: Path) -> None:
    with locked(browser, tmp_path) as (page, key):
        for given, words in (("ключ", "This key is not known"), (key, "Ready")):  # no header takes the first
            unlock(page, given, words)
        page.get_by_role("button", name="Other key").click()
        for _ in range(2):
            page.wait_for_event("response", lambda answer: answer.url.endswith("/status"))
        assert page.locator("#key-form").is_visible()
        unlock(page, "wrong", "This key is not known")


def test_a_file_that_cannot_be_read_is_not_the_gateways_fault(page: Page, pictures: list[str], tmp_path: Path) -> None:
    gone = tmp_path / "gone.png"
    gone.write_bytes(Path(pictures[0]).read_bytes())
    page.select_option("#model", "digits")
    page.evaluate("() => { picked.onchange = (event) => { window.chosen = [...event.target.files]; }; }")
    page.set_input_files("#picked", str(gone))
    gone.unlink()
    page.evaluate(
        """() => {
          const held = new DataTransfer();
          window.chosen.forEach((file) => held.items.add(file));
          document.dispatchEvent(new DragEvent("drop", { dataTransfer: held }));
        }"""
    )
    assert page.locator(".card .error").inner_text() == "the file cannot be read: it has changed, or is a folder"


def test_models_that_could_not_be_asked_for_are_asked_for_again(browser: Browser, site: Site) -> None:
    asked = list[str]()

    def fail_once(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) == 2:  # the first is the strip's
            route.fulfill(status=503, body="{}")
        else:
            route.continue_()

    with browser.new_context() as context:
        context.set_default_timeout(90_000)
        page = context.new_page()
        page.route("**/status", fail_once)
        page.goto(f"{site.url}/index.html")
        page.locator("#model:not([disabled])").wait_for()


def test_several_files_get_an_answer_or_an_error_each(page: Page, pictures: list[str]) -> None:
    upload(page, pictures)
    page.get_by_text("3 answered, in batches of up to 4; 1 refused, each for itself.").wait_for()
    assert [name.strip() for name in page.locator(".card .name").all_inner_texts()] == [Path(p).name for p in pictures]
    assert page.locator(".card .answer").all_inner_texts() == ["7", "7", "7"]
    failed = page.locator(".card.failed")
    assert failed.locator(".error").inner_text() == "400: the body is not a picture"
    assert "Request " in failed.inner_text()
    assert failed.get_by_role("button", name="Try again").count() == 0  # it would not help
    page.get_by_role("button", name="Clear", exact=True).last.click()
    assert page.locator(".card").count() == 0


def test_the_curl_command_is_the_same_request(page: Page, pictures: list[str], site: Site) -> None:
    upload(page, pictures[1:2])
    page.get_by_text("As a curl command").click()
    command = page.locator(".copy pre").inner_text()
    assert command == f"curl -T 'it'\\''s two.png' {site.url}/predictions/digits"
    page.locator(".copy button").click()
    page.locator(".copy button", has_text="ed").wait_for()


def test_every_protocol_has_its_curl_command_and_they_work(page: Page, pictures: list[str], site: Site) -> None:
    upload(page, pictures[1:2])
    page.get_by_text("As a curl command").click()
    choice = page.get_by_label("Protocol")
    protocols = choice.locator("option").all_inner_texts()
    assert protocols == ["predictions", "KServe V1", "Open Inference Protocol V2", "SageMaker"]
    for protocol in protocols:
        choice.select_option(protocol)
        command = ["bash", "-c", page.locator(".copy pre").inner_text()]
        done = subprocess.run(command, cwd=Path(pictures[1]).parent, capture_output=True, text=True, timeout=120, check=True)
        assert '"7"' in done.stdout, (protocol, done)
    upload(page, pictures[:1], "captions")
    page.locator("#summary", has_text="a red circle").wait_for()
    page.get_by_text("As a curl command").first.click()
    assert page.get_by_label("Protocol").first.locator("option").all_inner_texts() == protocols[:3]


def test_a_drawing_by_mouse_or_by_keyboard(page: Page) -> None:
    page.select_option("#model", "digits")
    page.get_by_role("button", name="Ask", exact=True).click()
    page.locator("#summary", has_text="Draw something first.").wait_for()
    box = page.locator("#paper").bounding_box()
    page.mouse.move(box["x"] + 40, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, box["y"] + 40, steps=4)
    page.mouse.move(box["x"] + 80, box["y"] + 140, steps=4)
    page.mouse.up()
    page.get_by_role("button", name="Ask", exact=True).click()
    page.get_by_text("drawing-1.png: 7").wait_for()
    page.get_by_role("button", name="Clear", exact=True).first.click()
    page.locator("#paper").focus()
    for key in ("Space", *["ArrowRight"] * 6, *["ArrowDown"] * 8, "Enter"):
        page.keyboard.press(key)
    page.get_by_text("drawing-2.png: 7").wait_for()


def test_pasting_a_picture(page: Page, pictures: list[str]) -> None:
    page.select_option("#model", "captions")
    data = list(Path(pictures[0]).read_bytes())
    page.evaluate(
        """(data) => {
            const clipboardData = new DataTransfer();
            clipboardData.items.add(new File([new Uint8Array(data)], "image.png", { type: "image/png" }));
            document.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
        }""",
        data,
    )
    page.get_by_text("image.png: a red circle").wait_for()


def test_translation_shows_each_record_in_its_place(page: Page, site: Site) -> None:
    page.select_option("#model", "translation")
    assert page.locator("#drop").is_hidden()
    page.fill("#text", "guten Tag\n\nein Satz, der viel zu lang ist\nja")
    page.select_option("#from", "de")
    page.select_option("#to", "en")
    page.keyboard.press("Control+Enter")
    page.locator("#text").press("Control+Enter")
    page.locator(".card .translated").nth(1).wait_for()
    card = page.locator(".card").first
    assert card.locator(".translated").all_inner_texts() == ["GUTEN TAG", "JA"]
    assert card.locator(".records .error").inner_text() == "413: the text is longer than 20 characters"
    card.get_by_text("As a curl command").click()
    command = card.locator(".copy pre").inner_text()
    body = json.loads(command.split("-d '")[1].split("' http")[0])
    assert [record["text"] for record in body["payload"]["records"]][:2] == ["guten Tag", "ein Satz, der viel zu lang ist"]
    assert command.endswith(f"{site.url}/translation")


def test_the_examples_and_one_broken_among_them(page: Page) -> None:
    page.select_option("#model", "digits")
    page.locator("#example-list button").nth(1).wait_for()
    count = page.locator("#example-list button").count()
    page.locator("#example-list button").first.click()
    page.locator(".card .answer").wait_for()
    page.get_by_role("button", name="Send all, one broken").click()
    page.get_by_text(f"{count} answered, in batches of up to 4; 1 refused, each for itself.").wait_for()
    assert page.locator(".card.failed .name").inner_text() == "broken.png"


def test_a_number_is_shown_as_the_model_wrote_it(page: Page, pictures: list[str]) -> None:
    said = '{"id": 12345678901234567890, "share": 1.0, "more": [0.1000000000000000055, 1e400]}'
    page.route("**/predictions/digits", lambda asked: asked.fulfill(status=200, content_type="application/json", body=said))
    upload(page, pictures[:1])
    assert "".join(page.locator(".card pre").first.inner_text().split()) == "".join(said.split())


def test_an_example_goes_to_the_model_that_was_chosen_when_it_was_asked_for(page: Page) -> None:
    page.select_option("#model", "digits")
    page.locator("#example-list button").nth(1).wait_for()
    page.evaluate("document.getElementById('send-all').click(); document.getElementById('model').value = 'captions'")
    page.get_by_text("none refused").wait_for()
    assert page.locator(".card .answer").first.inner_text() == "7"


def test_an_example_that_cannot_be_had_is_not_asked_about(page: Page) -> None:
    page.select_option("#model", "digits")
    page.locator("#example-list button").nth(1).wait_for()
    page.route("**/examples/**", lambda asked: asked.fulfill(status=503, content_type="application/json", body="{}"))
    for button in ("#example-list button", "#send-all"):
        page.locator(button).first.click()
        page.locator("#summary", has_text="The example cannot be had").wait_for()
        page.evaluate("document.getElementById('summary').textContent = ''")
    assert page.locator(".card").count() == 0


def test_the_server_goes_down_and_comes_back(page: Page, pictures: list[str], site: Site) -> None:
    page.locator('#strip[data-state="good"]').wait_for()
    site.server.down()
    try:
        upload(page, pictures[:1])
        page.get_by_text("502: the model server cannot be reached").wait_for()
        page.get_by_text("Model server not reachable").wait_for()
        page.screenshot(path="artifacts/test_the_server_is_down.png")
    finally:
        site.server.up()
    page.locator('#strip[data-state="good"]').wait_for()
    page.get_by_role("button", name="Try again").click()
    page.locator(".card .answer").wait_for()
    assert page.locator(".card").count() == 1


def test_the_strip_and_the_table_tell_the_servers_state(page: Page) -> None:
    page.locator('#strip[data-state="good"]').wait_for()
    strip = " ".join(page.locator("#strip").inner_text().split())
    for words in ("Ready", "TorchServe, cpu", "Models 3", "Workers ready 4 of 4", "In flight 0", "Requests a second"):
        assert words in strip
    row = page.locator("#models tbody tr", has_text="captions").inner_text().split("\t")
    assert row[2:5] == ["2 of 2", "8", "10 ms"]


@pytest.mark.parametrize("page", [{"viewport": {"width": 360, "height": 740}, "has_touch": True}], indirect=True)
def test_a_phone_needs_no_sideways_scrolling(page: Page, pictures: list[str]) -> None:
    upload(page, pictures)
    page.locator(".card.failed").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("page", [{"color_scheme": "dark"}], indirect=True)
def test_dark_mode_and_back(page: Page) -> None:
    def ground() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert ground() == "rgb(20, 22, 24)"
    page.get_by_role("button", name="Light").click()
    assert ground() == "rgb(246, 246, 243)"
    page.reload()
    page.locator("#model:not([disabled])").wait_for()
    assert ground() == "rgb(246, 246, 243)"  # it is remembered
    page.get_by_role("button", name="Dark").click()


@pytest.mark.parametrize("page", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True)
def test_nothing_stands_in_the_way_of_a_screen_reader(page: Page, pictures: list[str]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    upload(page, pictures)
    page.locator(".card.failed").wait_for()
    found = axe.run(page)
    assert found.violations_count == 0, found.generate_report()
    page.select_option("#model", "translation")
    found = axe.run(page)
    assert found.violations_count == 0, found.generate_report()


def test_everything_can_be_reached_by_keyboard(page: Page) -> None:
    page.select_option("#model", "digits")
    reached = []
    page.evaluate("document.activeElement.blur()")
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    for id_ in ("theme", "model", "choose", "paper", "send-drawing", "clear-drawing", "send-all", "send-broken"):
        assert id_ in reached


def test_the_api_page_asks_nobody_else(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/docs")
    page.get_by_text("/predictions/{model}", exact=True).wait_for()
    page.get_by_text("Parameters and answers").first.click()
    page.get_by_text("The deadline passed").first.wait_for()


def test_what_is_uploaded_is_not_kept(page: Page, pictures: list[str], site: Site) -> None:
    secret = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(secret, "PNG")
    page.select_option("#model", "digits")
    page.set_input_files("#picked", [{"name": "secret.png", "mimeType": "image/png", "buffer": secret.getvalue()}])
    page.locator(".card .answer").wait_for()
    assert all(secret.getvalue()[100:200] not in file.read_bytes() for file in site.home.rglob("*") if file.is_file())
    assert page.evaluate("[...Object.keys(localStorage)].filter((key) => key !== 'theme').length + sessionStorage.length") == 0
