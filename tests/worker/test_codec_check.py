"""A server whose version is unknown, or whose code gives something else, keeps its own code; and says so once."""

from __future__ import annotations

import importlib
import logging
import socket
import struct
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.worker.hosts.java import codec_check, fast_codec, mms_frames
from slotwise.worker.hosts.java.codec_check import SWITCH, VERSIONS, text

PLACES = [  # what the codecs replace
    ("protocol", "_retrieve_buffer"),
    ("protocol", "_retrieve_request"),
    ("protocol", "_retrieve_inference_msg"),
    ("service", "create_predict_response"),
]


def server_modules(server: str) -> SimpleNamespace:
    name = VERSIONS[server][0]
    package, protocol, service = (
        importlib.import_module(name + rest) for rest in ("", ".protocol.otf_message_handler", ".service")
    )
    return SimpleNamespace(package=package, protocol=protocol, service=service)


@pytest.fixture(params=["exchange on torchserve", "exchange on mms", "frames"])
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A codec that is not installed yet: its server's modules, how it is installed, what its loss costs."""
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for package in ("TS", "MMS"):
        monkeypatch.setenv(f"{package}_DECODE_INPUT_REQUEST", "false")
    codec_check.decline.cache_clear()
    server = request.param.rpartition(" ")[2] if "exchange" in request.param else "mms"
    modules = server_modules(server)
    modules.frames = request.param == "frames"
    modules.install = mms_frames.install if modules.frames else lambda: fast_codec.install(server)
    modules.cost = "Worker died" if modules.frames else "Only speed is lost"
    before = [getattr(getattr(modules, where), name) for where, name in PLACES]
    yield modules
    for (where, name), plain in zip(PLACES, before, strict=True):
        setattr(getattr(modules, where), name, plain)


def declined(codec: Any, caplog: pytest.LogCaptureFixture) -> str:
    """The one line that says why the codec is not installed, however often it is tried; nothing is replaced."""
    before = [getattr(getattr(codec, where), name) for where, name in PLACES]
    assert not codec.install()
    assert not codec.install()
    assert [getattr(getattr(codec, where), name) for where, name in PLACES] == before
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert codec.cost in line
    assert "\n" not in line
    return line


def test_with_the_known_version_it_is_installed_and_says_nothing(codec: Any, caplog: pytest.LogCaptureFixture) -> None:
    plain = codec.service.create_predict_response
    assert codec.install()
    assert codec.service.create_predict_response is not plain
    assert not caplog.records


def test_without_the_servers_modules_nothing_happens(
    codec: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, codec.service.__name__, None)
    assert not codec.install()
    assert not caplog.records


@pytest.mark.parametrize("version", ["0.12.1", "1.1.10", "", None])
def test_any_other_version_is_declined(
    codec: Any, version: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if version is None:
        monkeypatch.delattr(codec.package, "__version__")
    else:
        monkeypatch.setattr(codec.package, "__version__", version)
    assert (version or "of an unknown version") in declined(codec, caplog)


def test_the_environment_switches_it_off(codec: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(SWITCH, "0")
    assert f"{SWITCH}=0" in declined(codec, caplog)


@pytest.mark.parametrize("value", ["true", None])
def test_it_says_that_bodies_are_parsed_where_the_servers_configuration_does_not_forbid_it(
    codec: Any, value: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("TS_DECODE_INPUT_REQUEST", "MMS_DECODE_INPUT_REQUEST"):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    monkeypatch.setenv(SWITCH, "0")
    if not codec.frames:
        codec.cost = "unless decode_input_request=false"
    declined(codec, caplog)


def test_a_worker_of_torchserve_that_never_answers_keeps_the_servers_code(
    codec: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    if codec.package.__name__ == "ts":
        assert "LOCAL_RANK=1" in declined(codec, caplog)
    else:
        assert codec.install(), "MMS knows no ranks"


def exits(*_: Any, **__: Any) -> Any:
    sys.exit(0)


WRITES = [
    ("service", "create_predict_response", lambda plain: lambda *args, **named: plain(*args, **named)[:-4]),
    ("service", "create_predict_response", lambda plain: exits),
    ("service", "Context", lambda plain: None),
]
READS = [
    ("protocol", "_retrieve_int", lambda plain: lambda conn: plain(conn) and 0),
    ("protocol", "_retrieve_input_data", lambda plain: lambda conn: plain(conn) and {"name": "body"}),
    ("protocol", "_retrieve_reqest_header", lambda plain: exits),
    ("protocol", "_retrieve_inference_msg", lambda plain: lambda conn: [plain(conn), plain(conn)]),  # reads too far
]


@pytest.mark.parametrize(("where", "name", "other"), WRITES + READS)
def test_a_server_whose_code_gives_something_else_keeps_it(
    codec: Any, where: str, name: str, other: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if codec.frames and (where, name, other) in READS:
        pytest.skip("frames are about writing")
    module = getattr(codec, where)
    monkeypatch.setattr(module, name, other(getattr(module, name)))
    assert "sample batch" in declined(codec, caplog)


fields = st.one_of(
    st.integers(-6, 6).map(lambda n: struct.pack("!i", n)), st.binary(max_size=6).map(text), st.binary(max_size=6)
)


@pytest.mark.parametrize("server", VERSIONS)
@given(st.lists(fields, max_size=30).map(b"".join))
def test_whatever_arrives_is_read_as_the_server_would_have_read_it(server: str, stream: bytes) -> None:
    """Broken lengths, names that are no text, a connection that ends anywhere: the same requests or the same failure."""
    protocol = server_modules(server).protocol
    buffer, request = fast_codec.reader(protocol._retrieve_buffer)

    def outcome(buffer: Any, requests: Any) -> Any:
        front_end, worker = socket.socketpair()
        with front_end, worker:
            front_end.sendall(b"I" + stream)
            front_end.shutdown(socket.SHUT_WR)
            try:
                return buffer(worker, 1), requests(worker)
            except (Exception, SystemExit) as error:
                return type(error)

    ours = outcome(buffer, lambda conn: list(iter(lambda: request(conn), None)))
    assert ours == outcome(protocol._retrieve_buffer, protocol._retrieve_inference_msg)
