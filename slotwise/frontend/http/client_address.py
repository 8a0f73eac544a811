"""Say whose request it is, by its address: the sender's own, or the one that a trusted proxy names.

Whoever connects may write any header. So `X-Forwarded-For` counts only where it comes from a proxy that the operator names, and
of it only the last address that is none of these proxies': what stands before that one is the client's own words.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

from slotwise.backends.exchange import RawHeaders
from slotwise.errors import SlotwiseError

FORWARDED = b"x-forwarded-for"
PREFIX_V6 = 64  # one household or one machine has so much of IPv6, and each of its addresses is free
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """The proxies whose X-Forwarded-For is believed. Raises SlotwiseError where one of them is no address and no network."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        try:
            self._networks = [ipaddress.ip_network(one) for one in given]
        except ValueError as error:
            raise SlotwiseError(f"--trusted-proxy: {error}", "an address, or a network such as 10.0.0.0/8") from error

    def __contains__(self, address: str) -> bool:
        parsed = _parsed(address) if self._networks else None
        return parsed is not None and any(parsed in network for network in self._networks)

    def client(self, peer: str, headers: RawHeaders) -> str:
        """The address of who sent a request with these headers through `peer`; "" where the proxies do not say it."""
        if peer not in self:
            return peer
        forwarded = b",".join(value for name, value in headers if name == FORWARDED).decode("latin-1")
        for address in (one.strip() for one in reversed(forwarded.split(","))):
            if address not in self:
                return address if _parsed(address) else ""
        return ""


@lru_cache(maxsize=4096)
def one_client(address: str) -> str:
    """What counts as one client: an address, of IPv6 its /64. A Unix socket has none: ""."""
    parsed = _parsed(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(parsed), PREFIX_V6), strict=False))
    return str(parsed) if parsed else address


def _parsed(address: str) -> Address | None:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed
