"""Whose request it is: what counts as one client, and which words of a proxy are believed."""

from __future__ import annotations

import pytest

from slotwise.errors import SlotwiseError
from slotwise.frontend.http.client_address import TrustedProxies, one_client


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::4", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_address_is_one_client_and_of_ipv6_all_of_a_network(address: str, client: str) -> None:
    assert one_client(address) == client


@pytest.mark.parametrize(
    ("peer", "lines", "client"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["203.0.113.7"], "192.0.2.1"),  # is no proxy of ours
        ("127.0.0.1", ["203.0.113.7"], "127.0.0.1"),  # nor is this one
        ("10.0.0.1", ["203.0.113.7"], "203.0.113.7"),
        ("::ffff:10.0.0.1", ["203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", ["198.51.100.1, 203.0.113.7 , 10.9.9.9"], "203.0.113.7"),
        ("10.0.0.1", ["198.51.100.1", "203.0.113.7"], "203.0.113.7"),
        ("2001:db8::1", ["2001:db8:7::7"], "2001:db8:7::7"),
        ("10.0.0.1", [], ""),
        ("10.0.0.1", ["10.0.0.2"], ""),
        ("10.0.0.1", ["203.0.113.7, unknown"], ""),
    ],
)
def test_the_last_address_that_is_no_proxy_is_the_clients(peer: str, lines: list[str], client: str) -> None:
    headers = [(b"accept", b"*/*"), *((b"x-forwarded-for", line.encode()) for line in lines)]
    assert TrustedProxies(["10.0.0.0/8", "2001:db8::1"]).client(peer, headers) == client


def test_what_is_no_address_cannot_be_trusted() -> None:
    with pytest.raises(SlotwiseError, match="--trusted-proxy"):
        TrustedProxies(["proxy.example"])
