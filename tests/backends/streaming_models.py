"""Archives whose handlers stream, for the tests of the local host: a generator that does what its body says, a step engine."""

from __future__ import annotations

from pathlib import Path

from slotwise.archive.build import build

# A body is a list of JSON: how many words, and what happens at which of them: [5], [5, "exit", 3], [5, "slow"], [5, "once", 3]
GENERATOR = """
import json, os, time
from slotwise.worker import BadRequest, StreamHandler

class Words(StreamHandler):
    at_once = 4

    def load(self, model_dir, settings):
        return None

    def decode(self, body, headers):
        if body == b"exit":
            os._exit(3)
        asked = json.loads(body)
        if asked and isinstance(asked[0], list):
            return asked
        if not asked:
            raise BadRequest("there is nothing to say")
        return [asked]

    def example(self):
        return [2]

    def stream(self, item):
        count, what, at = [*item, "", -1][:3]
        for i in range(count):
            if i == at:
                if what == "exit":
                    os._exit(3)
                if what == "once" and not os.path.lexists("was-there"):
                    os.symlink("nowhere", "was-there")
                    os._exit(3)
                if what == "raise":
                    raise RuntimeError("on purpose")
                if what == "refuse":
                    raise BadRequest("no more of it")
                if what == "hang":
                    time.sleep(600)
                if what == "number":
                    yield 7
                if what == "lines":
                    yield {"text": "a\\nb\\r\\u2028c", "more": [1, {}]}
            time.sleep(0.02 if what == "slow" else 0.002)
            yield f"word{i} " + ("x" * 100_000 if what == "large" else "")

handle = Words.entry_point()
"""

STEPS = '''
import numpy as np
from slotwise.worker import BadRequest, End, Next, StepEngine, StreamHandler

class Adding(StepEngine):
    """The output is the sum of all that a slot holds."""

    slots = 3

    def __init__(self):
        self.held = {}

    def prefill(self, slot, item):
        self.held[slot] = [int(item["from"])]
        return np.array([float(item["from"])])

    def step(self, rows):
        for row in rows:
            self.held[row.slot][row.position + 1:] = [row.token]
            if sum(self.held[row.slot]) == 666:
                raise RuntimeError("on purpose")
        return np.array([[float(sum(self.held[row.slot]))] for row in rows])

    def free(self, slot):
        self.held.pop(slot, None)

class Sums(StreamHandler):
    def load(self, model_dir, settings):
        return Adding()

    def example(self):
        return {"from": 1, "tokens": 3}

    def decode(self, body, headers):
        first, tokens = map(int, body.split())
        return [{"from": first, "tokens": tokens}]

    def advance(self, state, output):
        piece = f"{int(output[0])}/{state.random.randrange(1000)} "
        return End(piece) if len(state.tokens) + 1 == state.item["tokens"] else Next(1, piece)

handle = Sums.entry_point()
'''


def streaming_archive(folder: Path, name: str, handler: str, store: Path | None = None) -> Path:
    """Build an archive of this handler."""
    model = folder / f"{name}-model"
    model.mkdir(parents=True)
    (model / f"{name}.py").write_text(handler)
    (model / "model.toml").write_text(f'name = "{name}"\nhandler = "{name}.py"\n')
    store = store or folder / "store"
    store.mkdir(exist_ok=True)
    return build(model, store)
