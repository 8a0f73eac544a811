"""Start TorchServe's workers without PyTorch, which is imported once something uses it.

TorchServe 0.12.0's own worker code says `import torch` to recognise an answer that is a tensor. Where the model runs on another
engine that costs every start a second, and every worker the memory.

As a program it is run by file, not by module: the archive has a copy of `slotwise` of its own, which must be the one imported.

    python .../slotwise/server/java/worker_start.py .../ts/model_service_worker.py --sock-type unix ...
"""

from __future__ import annotations

import importlib
import os
import runpy
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

SCRIPT = """\
#!/bin/sh
case $1 in
*/ts/model_service_worker.py) [ ! -f {start} ] || exec {python} {start} "$@" ;;
esac
exec {python} "$@"
"""


def python(folder: Path) -> str:
    """Make a program in `folder` for TorchServe to run as its Python: it starts workers as above, and all else as ever.

    So it does with workers, too, while this file is gone: Slotwise may be installed anew while a server runs.

    Returns its path, or that of our own Python where nothing in the folder may be run.
    """
    folder.mkdir(exist_ok=True)
    program = folder / "python"
    program.write_text(SCRIPT.format(python=shlex.quote(sys.executable), start=shlex.quote(__file__)), "utf-8")
    program.chmod(0o755)
    return str(program) if os.access(program, os.X_OK) else sys.executable


class NoTensor:
    """Stands for `torch.Tensor` while nobody has imported torch: then no value is one."""


class DeferredTorch(ModuleType):
    """What TorchServe's code gets for `torch`: the real one's, imported when the first of it is used."""

    def __getattr__(self, name: str) -> Any:
        """One thing of torch. Raises AttributeError for what the real one has not, either."""
        if name.startswith("__"):  # what the import system asks for
            raise AttributeError(name)
        if name == "Tensor" and "torch" not in sys.modules:
            return NoTensor
        return getattr(importlib.import_module("torch"), name)


def run(arguments: list[str]) -> None:
    """Run a worker's own module. arguments: its file and what it gets."""
    sys.argv = arguments
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(arguments[0])
    if "torch" not in sys.modules:  # it is there where a sitecustomize has imported it, and can be imported only once
        sys.modules["torch"] = DeferredTorch("torch")
        importlib.import_module("ts.protocol.otf_message_handler")
        del sys.modules["torch"]  # whoever else imports torch gets it
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    run(sys.argv[1:])
