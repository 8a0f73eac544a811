"""The gateway's certificate, read again when it is renewed: new connections get the new one, and none is broken for it."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from slotwise.errors import SlotwiseError

log = logging.getLogger("slotwise.gateway")

LOOK_AGAIN_S = 1.0


class CertificateFiles:
    """A certificate (PEM, its chain after it) and its private key. Raises SlotwiseError where they cannot be used.

    client_ca: who signs the clients' certificates (PEM); read this once. None: clients need none. context: for TLS, with the
    files as they last were good; another one each time.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self.certificate, self.key = certificate, key
        self.client_ca = _authorities(client_ca) if client_ca else None
        self.stamp = self._stamp()
        self.context = self._loaded()

    def changed(self) -> bool:
        """Whether the files are others than at the last call, and can be used; a renewal writes one after the other."""
        stamp = self._stamp()
        if stamp == self.stamp:
            return False
        try:
            self.context = self._loaded()
        except SlotwiseError as error:
            log.warning("%s; the certificate from before goes on", error)
            return False
        self.stamp = stamp
        return True

    async def watch(self) -> None:
        """Load the files whenever they change. Never returns."""
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            if await asyncio.to_thread(self.changed):
                log.info("the certificate in %s was read again", self.certificate)

    def _loaded(self) -> ssl.SSLContext:
        """TLS with the files as they are now. A client's certificate is asked for where it counts: probes have none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, _no_passphrase)
        except (OSError, ValueError) as error:
            raise SlotwiseError(f"the certificate and its key cannot be used: {error}", "both are PEM files") from error
        if self.client_ca:
            context.load_verify_locations(cadata=self.client_ca.decode("ascii", "ignore"))
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _stamp(self) -> list[tuple[int, int, int, int]]:
        stamps = []
        for file in (self.certificate, self.key):
            try:
                status = file.stat()
            except OSError:
                continue
            stamps.append((status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size))
        return stamps


def _no_passphrase() -> str:
    """In place of a question at the terminal, for which a server would wait."""
    raise ValueError("the key has a passphrase")


def _authorities(file: Path) -> bytes:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
        return file.read_bytes()
    except (OSError, ValueError) as error:
        raise SlotwiseError(f"{file} cannot say whose clients are let in: {error}", "certificates of CAs, as PEM") from error
