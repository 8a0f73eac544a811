"""Start a program whose arguments hold secrets, so that no list of processes shows them, not even for a moment.

Everybody may read a process's arguments, and only its owner its environment. So the secret arguments are passed there, with a
placeholder among the arguments. The new process is stopped before its first instruction (ptrace), the pointers to the
placeholders are set to the texts in the environment, and it goes on: it finds its arguments as it wants them. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

DETACH = 17  # PTRACE_DETACH
NOT_ALLOWED = 77
# PTRACE_TRACEME: the next exec stops the process
TRACED = f"""\
import ctypes, os, sys
if ctypes.CDLL(None).ptrace(0, 0, None, None) == -1:
    os._exit({NOT_ALLOWED})
os.execv(sys.argv[1], sys.argv[1:])
"""
POINTER = struct.Struct("P")
NAME_BYTES = 32  # of a variable; ours are shorter
# Fields of /proc/PID/stat behind the program's name: where the stack begins, with argc; the arguments, then the environment
START_STACK, ARGUMENTS_BEGIN, ENVIRONMENT_END = 25, 45, 48


def start(
    command: Sequence[str], secrets: Collection[str], environ: Mapping[str, str], **given: Any
) -> subprocess.Popen[bytes] | None:
    """Start a command, hiding those of its arguments that hold one of the secrets; None where the system does not allow that.

    The environment holds them until `hide` is called. given: as for Popen.
    """
    hidden = {index: word for index, word in enumerate(command) if any(secret in word for secret in secrets)}
    visible = [f"(hidden {index})" if index in hidden else word for index, word in enumerate(command)]
    names = {index: f"SLOTWISE_HIDDEN_{index}" for index in hidden}
    passed = {names[index]: word for index, word in hidden.items()}
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", TRACED, *visible], env={**environ, **passed}, **given)
    try:
        status = os.waitpid(process.pid, 0)[1]
        if not os.WIFSTOPPED(status):
            process.returncode = os.waitstatus_to_exitcode(status)
            return None
        with Path(f"/proc/{process.pid}/mem").open("r+b", buffering=0) as memory:
            _point(memory, _number(process.pid, START_STACK), len(command), names)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        if libc.ptrace(DETACH, process.pid, None, None):
            raise OSError(ctypes.get_errno(), "ptrace")
    except (OSError, ValueError, LookupError, struct.error):
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        return None
    return process


def hide(pid: int, secrets: Collection[str]) -> bool:
    """Overwrite secrets in the process's arguments and environment as the system shows them; whether that was possible."""
    try:
        start, end = _number(pid, ARGUMENTS_BEGIN), _number(pid, ENVIRONMENT_END)
        with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            words = memory.read(end - start)
            for secret in secrets:
                words = words.replace(secret.encode(), b"*" * len(secret.encode()))
            memory.seek(start)
            memory.write(words)
        left = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        return not any(secret.encode() in left for secret in secrets)
    except (OSError, ValueError, IndexError):
        return False


def _point(memory: IO[bytes], stack: int, count: int, variables: Mapping[int, str]) -> None:
    """On a new process's stack (argc, argv..., 0, envp..., 0) set argv[index] to a variable's value. Raises LookupError."""
    if _pointer(memory, stack) != count:
        raise LookupError("there are other arguments")
    missing = {name.encode(): index for index, name in variables.items()}
    at = stack + POINTER.size * (count + 2)
    while address := _pointer(memory, at):
        memory.seek(address)
        name = memory.read(NAME_BYTES).partition(b"=")[0]
        if name in missing:
            memory.seek(stack + POINTER.size * (1 + missing.pop(name)))
            memory.write(POINTER.pack(address + len(name) + 1))
        at += POINTER.size
    if missing:
        raise LookupError("a variable is not there")


def _pointer(memory: IO[bytes], at: int) -> int:
    memory.seek(at)
    return int(POINTER.unpack(memory.read(POINTER.size))[0])


def _number(pid: int, field: int) -> int:
    """A number of the process's stat file, counted from behind the program's name."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[field])
