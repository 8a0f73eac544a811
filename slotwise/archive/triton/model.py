"""Serve the archive beside this file in Triton's python backend.

`slotwise export triton` copies this file into a model repository as 1/model.py; nothing else of Slotwise is needed but what the
archive carries. The archive is unpacked, and compared with the digest in config.pbtxt, when Triton loads the model.
"""

import hashlib
import importlib
import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import triton_python_backend_utils as backend

GUARD = "_slotwise_guard"  # around the handler of another tool's archive


class TritonPythonModel:
    """One instance of the model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Unpack the archive and start its handler."""
        if sys.version_info < (3, 11):  # noqa: UP036  whatever Python this Triton has
            raise backend.TritonModelException("Slotwise needs Python 3.11 or newer: Triton 24.11 or newer has it")
        parameters = json.loads(args["model_config"])["parameters"]
        archive = Path(__file__).with_name("model.mar")
        with archive.open("rb") as source:
            if hashlib.file_digest(source, "sha256").hexdigest() != parameters["archive_sha256"]["string_value"]:
                raise backend.TritonModelException(f"{archive} is not the archive that was exported: export it again")
        self.folder = Path(tempfile.mkdtemp(prefix="slotwise-triton-"))
        try:
            with zipfile.ZipFile(archive) as source:
                source.extractall(self.folder)
            package = f"{GUARD}.hosts" if (self.folder / GUARD).is_dir() else "slotwise.worker.hosts"
            sys.path.insert(0, str(self.folder))
            self.host = importlib.import_module(f"{package}.triton").TritonHost(backend, args, self.folder)
        except Exception as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise backend.TritonModelException(f"{args['model_name']}: {error}") from error

    def execute(self, requests: list[Any]) -> Any:
        """Answer one batch."""
        return self.host.execute(requests)

    def finalize(self) -> None:
        """End the handler and remove what was unpacked."""
        self.host.close()
        shutil.rmtree(self.folder, ignore_errors=True)
