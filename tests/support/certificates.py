"""A certificate for TLS in tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(folder: Path, name: str = "cert") -> tuple[Path, Path]:
    """A certificate of its own, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=slotwise.example"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key
