"""A stand-in for a model: a batch of n sleeps a*n + b milliseconds."""

from __future__ import annotations

from pathlib import Path

from slotwise.archive.build import build
from slotwise.bench.offline import LinearTime

LINE = LinearTime(20.0, 20.0)  # ms; about what the published numbers of the classic batching study come from
HANDLER = '''
"""A stand-in, no model: a batch of n sleeps a*n + b milliseconds."""
import time

from slotwise.worker import BatchHandler


class Sleeper(BatchHandler):
    def load(self, model_dir, settings):
        self.line = settings.model["options"]
        return None

    def example(self):
        return None

    def decode(self, body, headers):
        return [0]

    def collate(self, items):
        return items

    def predict(self, inputs):
        time.sleep((self.line["a_ms"] * len(inputs) + self.line["b_ms"]) / 1000)
        return inputs


handle = Sleeper.entry_point()
'''


def sleeper(folder: Path, line: LinearTime = LINE) -> Path:
    """Build the archive `standin` in `folder`: a batch of n sleeps line.a_ms * n + line.b_ms."""
    source = folder / "standin"
    source.mkdir(parents=True)
    (source / "sleeper.py").write_text(HANDLER.lstrip(), "utf-8")
    options = f"[options]\na_ms = {line.a_ms}\nb_ms = {line.b_ms}\n"
    (source / "model.toml").write_text(f'name = "standin"\nhandler = "sleeper.py"\n{options}', "utf-8")
    return build(source, folder)
