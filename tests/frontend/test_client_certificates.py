"""Clients' certificates: who has none of ours is not let in, over HTTP and gRPC; probes and our own commands are."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import httpx
import pytest

from slotwise.errors import SlotwiseError
from slotwise.frontend.process import GatewayRecord
from slotwise.frontend.serve import Access
from tests.support.certificates import certificate
from tests.support.errors import error
from tests.support.grpc_client import client_of

from .live import StandInThread

Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def server(folder: Path) -> Pair:
    return certificate(folder, "server")


@pytest.fixture(scope="module")
def ca(folder: Path) -> Pair:
    return certificate(folder, "ca")


@pytest.fixture(scope="module")
def good(folder: Path, ca: Pair) -> Pair:
    return certificate(folder, "good", ca)


@pytest.fixture(scope="module", params=["of another CA", "its own"])
def bad(request: pytest.FixtureRequest, folder: Path) -> Pair:
    return certificate(folder, "bad", certificate(folder, "other") if request.param == "of another CA" else None)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, server: Pair, ca: Pair) -> Iterator[GatewayRecord]:
    """A gateway process that asks for certificates; that it starts shows that our own commands may ask it."""
    options = ["--tls-cert", str(server[0]), "--tls-key", str(server[1]), "--tls-client-ca", str(ca[0]), "--grpc-port", "0"]
    with StandInThread().front(tmp_path_factory.mktemp("home"), *options) as record:
        yield record


def client(front: GatewayRecord, own: Pair | None = None) -> httpx.Client:
    """An HTTP client that shows this certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if own:
        context.load_cert_chain(*own)
    return httpx.Client(base_url=front.url, verify=context, trust_env=False)


def test_a_good_certificate_is_let_in(front: GatewayRecord, good: Pair) -> None:
    for _ in range(2):  # on connections of their own, the second may resume the session of the first
        with client(front, good) as http:
            assert http.post("/predictions/digits", content=b"7").status_code == 200
            assert http.get("/status").status_code == 200


def test_without_one_only_probes_are_answered(front: GatewayRecord) -> None:
    with client(front) as http:
        for path in ("/healthz", "/ready", "/ready/digits", "/ping", "/v2/health/live"):
            assert http.get(path).status_code == 200, path
        for path in (
            "/",
            "/static/page.js",
            "/status",
            "/metrics",
            "/docs",
            "/v2/models/digits",
            "/ready/../status",
            "/nosuch",
        ):
            assert http.get(path).status_code == 403, path
        answer = http.post("/predictions/digits", content=b"7", headers={"authorization": "Bearer guessed"})
        assert (answer.status_code, error(answer)["message"]) == (403, "this needs a client's certificate")


def test_one_of_anybody_else_fails_in_the_handshake(front: GatewayRecord, bad: Pair) -> None:
    with client(front, bad) as http, pytest.raises(httpx.TransportError):
        http.get("/healthz")


def test_our_own_commands_are_let_in(front: GatewayRecord) -> None:
    assert front.status()["ready"] in (True, False)  # what `--detach` and `slotwise apply` ask


@pytest.mark.anyio
async def test_grpc_lets_in_a_good_certificate(front: GatewayRecord, server: Pair, good: Pair) -> None:
    async with client_of(front.grpc, server[0].read_bytes(), good) as call:
        assert (await call("ServerLive")).live


@pytest.mark.anyio
async def test_grpc_lets_in_nobody_without_one(front: GatewayRecord, server: Pair) -> None:
    async with client_of(front.grpc, server[0].read_bytes()) as call:
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await call("ServerLive")


@pytest.mark.anyio
async def test_grpc_lets_in_none_of_anybody_else(front: GatewayRecord, server: Pair, bad: Pair) -> None:
    async with client_of(front.grpc, server[0].read_bytes(), bad) as call:
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await call("ServerLive")


def test_what_cannot_work_is_said_at_the_start(server: Pair, tmp_path: Path) -> None:
    with pytest.raises(SlotwiseError, match="needs --tls-cert"):
        Access(tls_client_ca=server[0]).check()
    for name, content in (("none.pem", None), ("empty.pem", ""), ("key.pem", server[1].read_text())):
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(SlotwiseError, match=f"{name} cannot say whose clients"):
            Access(tls_cert=server[0], tls_key=server[1], tls_client_ca=tmp_path / name).check()


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(server: Pair, tmp_path: Path) -> None:
    cert, key = server
    locked = tmp_path / "locked.key"
    command = ["openssl", "rsa", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(SlotwiseError, match="cannot be used: the key has a passphrase"):
        Access(tls_cert=cert, tls_key=locked).check()
