"""What a run's processes are asked, where one may end meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import psutil

from slotwise.server.processes import processes_of

T = TypeVar("T")


def ask_processes(run_id: str, question: Callable[[psutil.Process], T]) -> dict[int, T]:
    """What each process of a run answers, by its pid. One that ends meanwhile is left out: servers have short-lived helpers."""
    answers: dict[int, T] = {}
    for process in processes_of(run_id):
        try:
            answers[process.pid] = question(process)
        except psutil.NoSuchProcess:
            continue
    return answers


def command_lines(run_id: str) -> dict[int, str]:
    """The command line of each process of a run, by its pid."""
    return ask_processes(run_id, lambda process: " ".join(process.cmdline()))
