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

import pytest

from slotwise.archive.inspection import extract, inspect
from slotwise.worker import Headers, Request, Settings
from slotwise.worker.hosts.java.entry_point import EntryPoint
from slotwise.worker.hosts.local_worker import LocalWorker
from tests.worker.toy import RawContext, Toy, json_of


class Served:
    """A handler that has been initialised, and what it needs to be asked."""

    def __init__(self, local: LocalWorker, model_dir: Path, place: tempfile.TemporaryDirectory[str]) -> None:
        self.local, self.handler, self.model_dir = local, local.handler, model_dir
        self.place = place  # is gone with this

    @classmethod
    def of(cls, path: Path, overrides: Mapping[str, Any], batch_size: int = 8, profile: str = "cpu") -> Served:
        """Unpack the archive and start its handler with a profile's settings, some overridden."""
        place = tempfile.TemporaryDirectory(prefix="slotwise-test-")
        folder = extract(path, Path(place.name) / "model")
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
            local = LocalWorker(module.handle.__self__.handler, folder, batch_size)
        finally:
            os.environ.clear()
            os.environ.update(before)
        return cls(local, folder, place)

    def ask(self, bodies: Sequence[bytes], headers: Sequence[dict[str, str]] | None = None) -> list[Any]:
        """Send one batch; each answer with .code, .body, .headers and .value (None where it is not JSON)."""
        sent = zip(bodies, headers or [{}] * len(bodies), strict=True)
        answers = self.local.answer([Request(body, Headers(one), f"id-{i}") for i, (body, one) in enumerate(sent)])
        assert len(answers) == len(bodies)
        return [
            SimpleNamespace(
                code=a.status, body=a.body, headers={**a.headers, "content-type": a.content_type}, value=json_of(a.body)
            )
            for a in answers
        ]


def serving_entry(handler: Any = None, **settings: Any) -> EntryPoint:
    """A toy behind a server's entry point."""
    entry = EntryPoint(handler or Toy())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Settings, "load", classmethod(lambda *_: Settings(**{"batch_size": 8, **settings})))
        entry.handle(None, RawContext())
    return entry
