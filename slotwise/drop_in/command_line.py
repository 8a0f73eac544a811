"""TorchServe's command line: `slotwise torchserve --start ...`, or `slotwise-torchserve`, to be linked as `torchserve`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from slotwise import __version__
from slotwise.drop_in.arguments import parsed
from slotwise.errors import SlotwiseError

TORCHSERVE = "0.12.0"  # whose place this takes


def run(words: Sequence[str]) -> int:
    """Do what the command line says; returns the exit code."""
    from slotwise.drop_in import daemon  # noqa: PLC0415  --version and --help need nothing of it

    arguments = parsed(words)
    if arguments.version:
        print(f"TorchServe Version is {TORCHSERVE} (Slotwise {__version__})")
        return 0
    try:
        return daemon.stop(arguments) if arguments.stop else daemon.start(arguments)
    except SlotwiseError as error:
        print(error.message)  # where TorchServe says it, too
        if error.hint:
            print(f"hint: {error.hint}")
        return 1


def main() -> None:
    """The console script `slotwise-torchserve`."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
