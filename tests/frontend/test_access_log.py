"""The access log: each request and refusal on one line, with its reason, its key's name and address, and nobody's secrets."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from slotwise.frontend.admission import keys
from slotwise.frontend.admission.keys import KeyFile
from slotwise.frontend.http.app import build_app
from slotwise.frontend.observing.access_log import AccessLog
from slotwise.frontend.observing.observer import Observer
from slotwise.frontend.observing.remembered import Remembered
from slotwise.frontend.observing.seen_request import shown_path
from slotwise.log_format import JsonLines

from .conftest import Front, MakeFront
from .over_http import answer, connecting

SECRET = "s3cr3t-7f2b"
COMMON = re.compile(
    r'\S+ - \S+ \[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d \+0000\] "\S+ \S+ \S+" \d{3} (\d+|-) \d+\.\d \S+ ([0-9a-f]{32}|-) "[^"]*"'
).fullmatch


def observed(front: Front, form: Any = "json") -> io.StringIO:
    """The gateway with an access log and a memory, which is returned as text."""
    written = io.StringIO()
    remembered = Remembered(100)
    gateway = front.gateway
    gateway.observer = Observer(gateway.options.trusted_proxies, lambda: gateway.models, [AccessLog(form, written), remembered])
    gateway.observer.remembered = remembered
    return written


@pytest.mark.anyio
async def test_each_refusal_names_its_reason_the_key_and_the_address(make_front: MakeFront, tmp_path: Path) -> None:
    front = await make_front()
    file = tmp_path / "keys.json"
    good, slow, other = (keys.add(file, "shop"), keys.add(file, "slow", (), 0.001), keys.add(file, "other", ("nothing",)))
    front.gateway.keys = KeyFile(file)
    written = observed(front)

    async def asked(head: str, body: bytes = b"x") -> int:
        reader, writer = await connect()
        writer.write(f"POST {head}\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        status, _ = await answer(reader)
        return status

    async with connecting(front) as connect:

        def predict(key: str) -> str:
            return f"/predictions/digits HTTP/1.1\r\nx-api-key: {key}"

        assert await asked(predict(good)) == 200
        assert await asked(predict("wrong")) == 401
        assert await asked(predict(other)) == 403
        assert await asked(predict(slow)) == 200
        assert await asked(predict(slow)) == 429
        assert await asked(predict(good), bytes(2**20 + 1)) == 413
        assert await asked("/nowhere-\x01 HTTP/1.1") == 400
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [(line["status"], line.get("key", ""), line.get("reason", "")) for line in lines] == [
        (200, "shop", ""),
        (401, "", "this key is not known"),
        (403, "other", "this key may not use this model"),
        (200, "slow", ""),
        (429, "slow", "this key may ask 0.001 times a second"),
        (413, "shop", "the body is over the limit of 1048576 bytes"),
        (400, "", "the first line is no request of HTTP/1.1"),
    ]
    assert {line["address"] for line in lines} == {"127.0.0.1"}
    assert all(line["request_id"] for line in lines)
    assert not any(key in written.getvalue() for key in (good, slow, other))


@pytest.mark.anyio
async def test_the_common_form_is_one_line_each_by_the_asgi_way_too(make_front: MakeFront) -> None:
    front = await make_front()
    written = observed(front, "common")
    async with connecting(front) as connect:
        for path in ("/v2/models/digits/infer", "/predictions/digits", "/predictions/unknown", "/status"):
            reader, writer = await connect()
            method = "GET" if path == "/status" else "POST"
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            await answer(reader)
    lines = written.getvalue().splitlines()
    assert len(lines) == 4
    assert all(COMMON(line) for line in lines), lines
    assert "/predictions/*" in lines[2]


@pytest.mark.anyio
async def test_planted_secrets_are_in_no_log_and_in_nothing_that_is_remembered(
    make_front: MakeFront, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.handler.setFormatter(JsonLines())
    front = await make_front()
    logs = [observed(front, form) for form in ("common", "json")]
    asked = [
        f"POST /predictions/{SECRET} HTTP/1.1",
        f"POST /predictions/digits?token={SECRET} HTTP/1.1",
        f"POST /predictions/digits/{SECRET} HTTP/1.1",
        f"POST /v1/models/{SECRET}:predict HTTP/1.1",
        f"POST /v2/models/digits/infer?k={SECRET} HTTP/1.1",
        f"GET /v2/models/{SECRET}/config HTTP/1.1",
        f"GET /examples/digits/{SECRET} HTTP/1.1",
        f"GET /{SECRET} HTTP/1.1",
        f"GET /static/../{SECRET} HTTP/1.1",
        f"POST /predictions/{SECRET}%zz HTTP/1.1",
        f"GET http://[{SECRET}/ HTTP/1.1",
        f"POST /predictions/digits HTTP/1.1\r\nx-deadline-ms: {SECRET}",
        f"POST /predictions/digits HTTP/1.1\r\nCookie: {SECRET}\r\nAuthorization: Bearer {SECRET}\r\nx-api-key: {SECRET}",
        f"POST /predictions/digits HTTP/1.1\r\ncontent-type: multipart/form-data; boundary={SECRET}",
        f"POST /predictions/digits HTTP/1.1\r\ncontent-encoding: {SECRET}",
        f"POST /predictions/digits HTTP/1.1\r\ntraceparent: 00-{SECRET}-00f067aa0ba902b7-01",
        f"POST /predictions/digits HTTP/1.1\r\n{SECRET}: a\r\n b",
    ]
    bodies = [SECRET, json.dumps({"instances": [SECRET]}), json.dumps({"inputs": [{"name": SECRET}]})]
    async with connecting(front) as connect:
        for head in asked:
            for body in bodies:
                reader, writer = await connect()
                writer.write(f"{head}\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                await reader.readuntil(b"\r\n\r\n")
    assert front.gateway.observer is not None
    assert front.gateway.observer.remembered is not None
    seen = [one for one, _ in front.gateway.observer.remembered._kept]
    assert len(seen) >= len(asked)
    assert SECRET not in caplog.text
    assert all(SECRET not in log.getvalue() for log in logs)
    assert SECRET not in "".join(repr(one) for one in seen)


def test_of_a_path_only_what_is_known_is_shown() -> None:
    assert shown_path("/predictions/digits/1.0", {"digits"}) == "/predictions/digits/*"
    assert shown_path("/v1/models/digits:predict", {"digits"}) == "/v1/models/digits:predict"
    assert shown_path("/v1/models/a:predict", {"digits"}) == "/v1/models/*:predict"
    assert shown_path("/" + "/".join("abcdefghijklmnop")).count("*") < 12


def test_a_line_of_json_is_one_object_with_its_ids(tmp_path: Path) -> None:
    record = logging.LogRecord("slotwise.gateway", logging.INFO, "", 1, "a %s\nline", ("b",), None)
    record.fields = {"request_id": "id-1", "trace_id": "0" * 32}
    (line,) = JsonLines().format(record).splitlines()
    about = json.loads(line)
    assert (about["message"], about["request_id"], about["level"]) == ("a b\nline", "id-1", "INFO")


@pytest.mark.anyio
async def test_where_nobody_watches_nothing_is_seen(make_front: MakeFront) -> None:
    front = await make_front()
    app = build_app(front.gateway)
    assert app.observer is None
    assert (await front.predict()).status_code == 200
