"""Start and stop the one server of a folder for temporary files: $TMPDIR/.model_server.pid names it, as TorchServe's."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from slotwise.drop_in.arguments import Arguments
from slotwise.drop_in.configuration import configured
from slotwise.errors import SlotwiseError

MODULE = "slotwise.drop_in.server"
THEIRS = "org.pytorch.serve.ModelServer"  # the Java of a TorchServe in the same folder
STOP_S = 60.0
FOLDER = "slotwise-torchserve-"  # what a server keeps for itself, below the folder for temporary files


def pid_file() -> Path:
    """Where the server's pid stands; its second line is the folder that it keeps for itself."""
    return Path(tempfile.gettempdir()) / ".model_server.pid"


def own_folder() -> Path:
    """A new folder that only this user may enter, for sockets, archives and what workers report."""
    return Path(tempfile.mkdtemp(prefix=FOLDER))


def start(arguments: Arguments) -> int:
    """Start a server: it goes on alone, or with --foreground in this process's place. Raises SlotwiseError."""
    if running() is not None:
        print("TorchServe is already running, please use torchserve --stop to stop TorchServe.")
        return 1
    _forget()
    configured(arguments)  # what is wrong with it is said here, and nothing is left running
    command = [sys.executable, "-P", "-m", MODULE, *arguments.words]
    sys.stdout.flush()
    if arguments.foreground:
        pid_file().write_text(str(os.getpid()))
        os.execv(sys.executable, command)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    with contextlib.suppress(FileExistsError), pid_file().open("x") as file:  # unless it has written more already
        file.write(str(process.pid))
    return 0


def stop(arguments: Arguments) -> int:
    """End the server that runs, and wait until its workers are gone. Returns 1 where it still runs."""
    process = running()
    if process is None:
        print("TorchServe is not currently running.")
        _forget()
        return 0
    try:
        process.terminate()
        process.wait(STOP_S)  # also without --foreground: a --start right after it would find it still there
    except psutil.TimeoutExpired:
        print("Stopping TorchServe took too long.")
        return 1
    except psutil.AccessDenied:
        print(f"TorchServe (pid {process.pid}) is another user's: it runs on.")
        return 1
    except psutil.Error:
        print("TorchServe already stopped.")
    print("TorchServe has stopped.")
    return 0


def running() -> psutil.Process | None:
    """The server whose pid stands in the file, where it runs."""
    try:
        process = psutil.Process(int(pid_file().read_text().splitlines()[0]))
        words = process.cmdline()
    except (OSError, ValueError, IndexError, psutil.Error):
        return None
    gone = process.status() == psutil.STATUS_ZOMBIE
    return process if not gone and (MODULE in words or THEIRS in words) else None


def remember(folder: Path) -> None:
    """Write down this process and its folder, so that the next start can clear away what a killed one left."""
    try:
        pid_file().write_text(f"{os.getpid()}\n{folder}\n")
    except OSError as error:
        raise SlotwiseError(f"{pid_file()} cannot be written: {error.strerror}", "set TMPDIR to another folder") from error


def _forget() -> None:
    """Remove the pid file of a server that is gone, and its folder."""
    try:
        left = pid_file().read_text().splitlines()[1:2]
    except OSError:
        left = []
    for folder in map(Path, left):
        ours = folder.parent == Path(tempfile.gettempdir()) and folder.name.startswith(FOLDER)
        if ours and folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)
    pid_file().unlink(missing_ok=True)
