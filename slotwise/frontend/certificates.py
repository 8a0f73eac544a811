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

    client_ca: who signs the clients' certificates (PEM); read this once. None: clients need none.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self.certificate, self.key = certificate, key
        self.client_ca = _authorities(client_ca) if client_ca else None
        self.stamp = self._stamp()
        self._check()

    def changed(self) -> bool:
        """Whether the files are others than at the last call, and can be used; a renewal writes one after the other."""
        stamp = self._stamp()
        if stamp == self.stamp:
            return False
        try:
            self._check()
        except SlotwiseError as error:
            log.warning("%s; the certificate from before goes on", error)
            return False
        self.stamp = stamp
        return True

    async def watch(self, context: ssl.SSLContext) -> None:
        """Load the files into the context whenever they change. Never returns."""
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            if await asyncio.to_thread(self.changed):
                self.load_into(context)
                log.info("the certificate in %s was read again", self.certificate)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Use the files as they are now."""
        context.load_cert_chain(self.certificate, self.key, _no_passphrase)

    def _check(self) -> None:
        try:
            self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except (OSError, ValueError) as error:
            raise SlotwiseError(f"the certificate and its key cannot be used: {error}", "both are PEM files") from error

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
