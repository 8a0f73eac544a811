"""Three hosts behind HAProxy, under a steady load: one is killed, one falls silent, all are rolled; no request is lost."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slotwise.archive.build import build
from tests.server import hosts
from tests.server.hosts import FRONT, Host

ROOT = Path(__file__).parents[2]
START_S, SOON_S = 240.0, 120.0  # far more than a quiet machine needs
CLIENTS = 6

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(1200)]


class Balancer:
    """HAProxy in the front namespace, with the configuration that docs/containers.md shows."""

    def __init__(self, folder: Path, of: list[Host]) -> None:
        shown = re.findall(r"```haproxy\n(.*?)```", (ROOT / "docs" / "containers.md").read_text("utf-8"), re.DOTALL)
        assert len(shown) == 1, "docs/containers.md shows one HAProxy configuration"
        text = shown[0].replace("global\n", f"global\n    stats socket {folder}/stats.sock\n", 1)
        for host in of:
            text = text.replace(f"192.0.2.{host.number}:", f"{host.address}:")
        (folder / "haproxy.cfg").write_text(text, "utf-8")
        self.socket = folder / "stats.sock"
        self.url = "http://127.0.0.1:8000"
        with (folder / "haproxy.log").open("w") as log:
            self.process = hosts.within(FRONT, ["haproxy", "-f", str(folder / "haproxy.cfg")], stdout=log, stderr=log)
        until(self.socket.exists, SOON_S, "haproxy starts")

    def up(self) -> set[int]:
        """The hosts that get requests now."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(self.socket))
            asking.sendall(b"show stat\n")
            lines = b"".join(iter(lambda: asking.recv(65536), b"")).decode().splitlines()
        names = lines[0].lstrip("# ").split(",")
        rows = [dict(zip(names, line.split(","), strict=False)) for line in lines[1:] if line]
        return {
            int(row["svname"].removeprefix("host"))
            for row in rows
            if row["svname"].startswith("host") and "UP" in row["status"]
        }

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def until(holds: Callable[[], bool], patience_s: float, what: str) -> None:
    started = time.monotonic()
    while not holds():
        assert time.monotonic() < started + patience_s, f"not within {patience_s:.0f} s: {what}"
        time.sleep(0.1)
    print(f"{what}: {time.monotonic() - started:.1f} s")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("digits", tmp_path_factory.mktemp("store"))


@pytest.fixture
def three(tmp_path: Path, digits: Path) -> Iterator[list[Host]]:
    """Three hosts, each with its own copy of the archive, starting."""
    reason = hosts.why_not()
    if reason:
        pytest.skip(f"several hosts are NOT tested: {reason}")
    made = [Host(number, tmp_path / f"host{number}") for number in (1, 2, 3)]
    hosts.ip("netns", "add", FRONT)
    try:
        hosts.ip("-n", FRONT, "link", "set", "lo", "up")
        for host in made:
            (host.folder / "model_store").mkdir(parents=True)
            shutil.copy(digits, host.folder / "model_store")
            host.make()
            host.up()
        yield made
    finally:
        for host in made:
            host.close()
        subprocess.run(["ip", "netns", "del", FRONT], check=False, timeout=10)


@pytest.fixture
def balancer(tmp_path: Path, three: list[Host]) -> Iterator[Balancer]:
    made = Balancer(tmp_path, three)
    yield made
    made.close()


def test_no_request_is_lost(balancer: Balancer, three: list[Host]) -> None:
    first, second, _ = three
    until(lambda: balancer.up() == {1, 2, 3}, START_S, "all three are ready")
    examples = ROOT / "models" / "digits" / "examples"
    command = [sys.executable, str(Path(__file__).with_name("steady.py")), balancer.url, str(examples), str(CLIENTS)]
    load = hosts.within(FRONT, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        time.sleep(1)
        first.kill()
        until(lambda: balancer.up() == {2, 3}, SOON_S, "the killed host is noticed")
        first.up()
        until(lambda: balancer.up() == {1, 2, 3}, START_S, "the killed host is back")

        second.black_hole()
        until(lambda: balancer.up() == {1, 3}, SOON_S, "the silent host is noticed")
        second.heal()
        until(lambda: balancer.up() == {1, 2, 3}, SOON_S, "the silent host is back")

        for host in three:
            host.down()
            host.up()
            until(lambda: balancer.up() == {1, 2, 3}, START_S, f"host {host.number} is rolled")
    finally:
        printed, _ = load.communicate(timeout=150)
    found = json.loads(printed)
    print(found)
    assert found["failed"] == []
    assert found["wrong"] == []
    assert set(found["statuses"]) == {"200"}
    assert found["statuses"]["200"] > 100
