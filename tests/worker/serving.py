"""An archive served in this process: unpacked, its handler loaded, batches answered as in a server's worker."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slotwise.archive.build import extract, inspect
from tests.worker.toy import RawContext


class Served:
    """A handler that has been initialised, and what it needs to be asked."""

    def __init__(self, handle: Any, model_dir: Path, batch_size: int) -> None:
        self.handle, self.model_dir, self.batch_size = handle, model_dir, batch_size

    @classmethod
    def of(cls, path: Path, overrides: Mapping[str, Any], batch_size: int = 8, profile: str = "cpu") -> Served:
        """Unpack the archive and start its handler with a profile's settings, some overridden."""
        folder = extract(path, Path(tempfile.mkdtemp(prefix="slotwise-test-")) / "model")
        info = inspect(path)
        spec = importlib.util.spec_from_file_location(f"served_{info.name}", folder / info.handler)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look themselves up there
        spec.loader.exec_module(module)
        before = dict(os.environ)
        os.environ |= {"SLOTWISE_PROFILE": profile, "SLOTWISE_OVERRIDES": json.dumps(dict(overrides))}
        try:
            module.handle(None, RawContext([], folder, batch_size))
        finally:
            os.environ.clear()
            os.environ.update(before)
        return cls(module.handle, folder, batch_size)

    @property
    def handler(self) -> Any:
        """The handler itself."""
        return self.handle.__self__

    def ask(self, bodies: Sequence[bytes], headers: Sequence[dict[str, str]] | None = None) -> list[Any]:
        """Send one batch; each answer with .code, .body, .headers and .value (None where it is not JSON)."""
        raw = RawContext(headers or [{}] * len(bodies), self.model_dir, self.batch_size)
        sent = self.handle([{"body": body} for body in bodies], raw)
        assert len(sent) == len(bodies)
        return [
            SimpleNamespace(code=raw.status[i][0], body=body, headers=raw.sent[i], value=_json(body))
            for i, body in enumerate(sent)
        ]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
