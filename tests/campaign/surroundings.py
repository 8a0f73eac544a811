"""What surrounds a server and its gateway, and how it breaks: a disk that fills, a clock that jumps, a network that drops.

Each is a context: within, everything that is started has it. Where this machine or this user cannot make one, it says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNET = 0x40000000
DISK_MIB = 192
CHUNK = bytes(1 << 20)
CLOCK = Path(__file__).with_name("clock.c")


class NotHere(Exception):
    """This cannot be made here; the text says why."""


def run(*command: str) -> None:
    """Run a tool of the system. Raises NotHere where it fails."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        raise NotHere(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        raise NotHere(f"{' '.join(command)}: {error.stderr.strip()}") from None


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of DISK_MIB at `folder`."""
    folder.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False, timeout=20)


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Within, there is no room left on the file system of `folder`: not a byte."""
    file = folder / "filler"
    try:
        with file.open("wb", buffering=0) as target:
            for piece in (CHUNK, CHUNK[:4096], CHUNK[:1]):
                _write_all(target.fileno(), piece)
        yield
    finally:
        file.unlink(missing_ok=True)


def _write_all(file: int, piece: bytes) -> None:
    while True:
        try:
            os.write(file, piece)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return


@contextlib.contextmanager
def own_clock(folder: Path) -> Iterator[Path]:
    """Programs that are started within see a clock that `jump` sets wrong, through the file that this gives."""
    folder.mkdir()
    library, file = folder / "clock.so", folder / "clock"
    run("cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(CLOCK))
    jump(file, 0)
    settings = {"LD_PRELOAD": str(library), "CAMPAIGN_CLOCK": str(file)}
    before = {key: os.environ.get(key) for key in settings}
    os.environ.update(settings)
    try:
        yield file
    finally:
        for key, value in before.items():
            os.environ.pop(key)
            if value is not None:
                os.environ[key] = value


def jump(file: Path, seconds: int) -> None:
    """The clock goes wrong by so much; 0: it is right again."""
    with file.open("r+b" if file.exists() else "wb") as target:  # in place: programs look at these very bytes
        target.write(struct.pack("=q", seconds))


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """This thread, and the threads and processes that it starts, have a network of their own with nothing but `lo` in it."""
    missing = [tool for tool in ("ip", "nft", "tc") if shutil.which(tool) is None]
    if missing:
        raise NotHere(f"{' and '.join(missing)} is not installed (iproute2, nftables)")
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    if libc.unshare(CLONE_NEWNET):
        os.close(before)
        raise NotHere(f"no network namespace can be made: {os.strerror(ctypes.get_errno())}")
    try:
        run("ip", "link", "set", "lo", "up")
        yield
    finally:
        libc.setns(before, CLONE_NEWNET)
        os.close(before)


@contextlib.contextmanager
def dropping(percent: int) -> Iterator[None]:
    """So many packets in a hundred get lost; 100: the wire is cut. Those of every connection, the clients' as well."""
    run("nft", "add", "table", "ip", "campaign")
    try:
        run("nft", "add chain ip campaign wire { type filter hook input priority 0; }")
        drop = "drop" if percent >= 100 else f"numgen random mod 100 < {percent} drop"
        run("nft", f"add rule ip campaign wire {drop}")
        yield
    finally:
        subprocess.run(["nft", "delete", "table", "ip", "campaign"], check=False, capture_output=True, timeout=20)


@contextlib.contextmanager
def narrow(kbit: int) -> Iterator[None]:
    """A wire of so many kbit/s: everything waits, up to half a second."""
    shape = f"tc qdisc add dev lo root tbf rate {kbit}kbit burst 16kb latency 500ms"
    run("ip", "link", "set", "lo", "mtu", "1500")
    run(*shape.split())
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=False, capture_output=True, timeout=20)
        run("ip", "link", "set", "lo", "mtu", "65536")
