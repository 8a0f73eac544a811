"""Pages of other sites, which a browser on this machine may show: they neither read the gateway nor change it."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from slotwise.backends.interface import Refused
from slotwise.frontend.admission.killers import ALLOWED
from slotwise.frontend.http.allowed_hosts import AllowedHosts
from slotwise.frontend.listening import ListenAddress
from slotwise.frontend.serve import Access

from .live import StandInThread

OWN = AllowedHosts(["Tools.example"])


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "127.0.0.1:8000",
        "127.9.9.9",
        "[::1]:8000",
        "a.localhost",
        "localhost.",
        "tools.example:1",
    ],
)
def test_its_own_names_are_let_in(host: str) -> None:
    OWN.check("GET", [(b"host", host.encode())])
    OWN.check("POST", [(b"host", host.encode()), (b"origin", f"http://{host}".encode()), (b"sec-fetch-site", b"cross-site")])


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "localhost@evil.example", "192.0.2.1", "0.0.0.0", "[::2]", "[", "\xe4"]
)
def test_other_names_are_not(host: str) -> None:
    for method in ("GET", "POST"):
        with pytest.raises(Refused) as refused:
            OWN.check(method, [(b"host", host.encode("latin-1"))])
        assert refused.value.status == 403
        with pytest.raises(Refused):
            OWN.check(method, [(b"host", b"localhost"), (b"origin", b"http://" + host.encode("latin-1"))])


def test_a_page_that_hides_its_origin_changes_nothing() -> None:
    local = (b"host", b"localhost")
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for hidden in ((b"origin", b"null"), (b"sec-fetch-site", b"cross-site")):
            with pytest.raises(Refused):
                OWN.check(method, [local, hidden])
    OWN.check("GET", [local, (b"sec-fetch-site", b"cross-site")])  # a link to the page
    OWN.check("POST", [local])  # no browser
    OWN.check("POST", [])


def test_only_on_loopback_and_where_names_are_given() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.2"):
        assert Access().allowed_hosts(ListenAddress(host)) is not None
    assert Access().allowed_hosts(ListenAddress("0.0.0.0")) is None
    assert Access(hosts=("a.example",)).allowed_hosts(ListenAddress("0.0.0.0")) is not None


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway process on loopback, as it comes."""
    home: Path = tmp_path_factory.mktemp("front")
    with StandInThread().front(home, "--multi-model", str(home)) as record:
        yield record.url


def status(url: str, method: str, path: str, body: bytes = b"", **headers: str) -> int:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request(method, path, body or None, {name.replace("_", "-"): value for name, value in headers.items()})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/status", "/metrics", "/index.html", "/openapi.json"])
def test_a_name_that_points_to_loopback_reads_nothing(url: str, path: str) -> None:
    assert status(url, "GET", path, Host="rebound.example") == 403
    assert status(url, "GET", path, Origin="http://evil.example") == 403
    assert status(url, "GET", path) == 200


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}])
def test_no_other_sites_page_loads_a_model(url: str, headers: dict[str, str]) -> None:
    body = b'{"model_name": "m", "url": "nowhere.mar"}'
    assert status(url, "POST", "/models", body, **headers) == 403
    assert status(url, "DELETE", "/models/digits", **headers) == 403
    assert status(url, "POST", "/predictions/digits", b"x", **headers) == 403
    assert status(url, "POST", "/models", body) == 400  # there is no such file


def test_a_forwarded_header_is_not_believed_on_loopback_either(url: str) -> None:
    for i in range(ALLOWED):
        assert status(url, "POST", "/predictions/digits", b"killer %d" % i, X_Forwarded_For=f"203.0.113.{i}") == 500
    assert status(url, "POST", "/predictions/digits", b"good", X_Forwarded_For="203.0.113.99") == 429
