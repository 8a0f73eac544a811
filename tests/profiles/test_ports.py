"""Which ports a server is given where nobody says which."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import astuple

import pytest

from slotwise.profiles.ports import MOST_CLAIMS, Ports

CHOOSES = """
import secrets, sys
from dataclasses import astuple
from slotwise.profiles.ports import FREE, Ports
wanted = iter([*map(int, sys.argv[1:]), *FREE])
secrets.choice = lambda _: next(wanted)
print(*astuple(Ports.free()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names of sockets that are no files")
def test_two_that_start_at_once_are_given_other_ports() -> None:
    given = [port for _ in range(MOST_CLAIMS // 5) for port in astuple(Ports.free())]
    assert len(set(given)) == len(given)
    command = [sys.executable, "-c", CHOOSES, *map(str, given)]
    others = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert len(set(others)) == 5
    assert set(map(int, others)).isdisjoint(given)
