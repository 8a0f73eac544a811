"""Keep other sites' pages out of a gateway that listens on loopback only.

Every page in a browser on this machine can reach loopback. A name of its own that points to 127.0.0.1 makes it the same site as
the gateway, so that it may read the answers (DNS rebinding): the Host gives it away. Without that it can still send what forms
can send: the Origin gives it away, or Sec-Fetch-Site. No other client sends these two.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from slotwise.backends.interface import Refused
from slotwise.frontend.inference_request import Scope

READS = {"GET", "HEAD", "OPTIONS"}
SEEN = 64


class AllowedHosts:
    """The names that the gateway goes by: loopback's, and those that are given."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {name.lower().strip("[]") for name in names}
        self._seen: set[bytes] = set()  # Host headers that were let in: most requests bring one of a few

    def __call__(self, scope: Scope) -> None:
        """Check one request."""
        self.check(scope["method"], scope["headers"])

    def check(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raise Refused (403) where a request was meant for another host, or comes from another site's page."""
        host = origin = site = b""
        for name, value in headers:
            if name == b"host":
                host = value
            elif name == b"origin":
                origin = value
            elif name == b"sec-fetch-site":
                site = value
        if host and host not in self._seen:  # every browser names one
            if not self._has(b"//" + host):
                raise _foreign(f"the host {_shown(host)} is not this gateway's")
            if len(self._seen) < SEEN:
                self._seen.add(host)
        if origin and not self._has(origin):
            raise _foreign(f"pages of {_shown(origin)} may not ask this gateway")
        if not origin and site == b"cross-site" and method not in READS:
            raise _foreign("pages of other sites may not ask this gateway")

    def _has(self, url: bytes) -> bool:
        try:
            name = urlsplit(url.decode("ascii")).hostname or ""
        except ValueError:
            return False
        name = name.removesuffix(".")
        if name in self._names or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


NOT_OURS = "a name of a host, or a page's, that is not this one's"


def _foreign(what: str) -> Refused:
    return Refused(403, f"{what}: --allow-host lets further names in", logged=NOT_OURS)


def _shown(value: bytes) -> str:
    return value[:100].decode("latin-1")
