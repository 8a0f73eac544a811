"""A certificate for TLS in tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

NAME = "slotwise.example"


def certificate(folder: Path, name: str = "cert", ca: tuple[Path, Path] | None = None) -> tuple[Path, Path]:
    """A certificate and its key; signed by that of `ca`, else by itself."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={name}" if ca else f"/CN={NAME}",
    ]
    command += ["-CA", str(ca[0]), "-CAkey", str(ca[1])] if ca else []
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key
