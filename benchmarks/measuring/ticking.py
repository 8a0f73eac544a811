"""A model that streams, whose steps take the same time for any number of streams.

A body: how many pieces, their bytes, and a name. Each piece says the name and its number, so that any other one is seen.
"""

import time

import numpy as np

from slotwise.worker import BadRequest, End, Next, StepEngine, StreamHandler

STEP_S = 0.005
SLOTS = 128


class Ticking(StepEngine):
    slots = SLOTS

    def prefill(self, slot, item):
        return np.zeros(1)

    def prefill_all(self, slots, items):
        return np.zeros((len(slots), 1))

    def step(self, rows):
        time.sleep(STEP_S)
        return np.zeros((len(rows), 1))

    def free(self, slot):
        pass


class TickingHandler(StreamHandler):
    def load(self, model_dir, settings):
        return Ticking()

    def example(self):
        return (2, 8, "a")

    def decode(self, body, headers):
        try:
            count, size, name = body.decode().strip('"').split()
            return [(int(count), int(size), name)]
        except ValueError:
            raise BadRequest("the body is two numbers and a name") from None

    def advance(self, state, output):
        (count, size, name), number = state.item, len(state.tokens)
        piece = f"{name}-{number};".ljust(size, ".")
        return End(piece) if number + 1 >= count else Next(1, piece)


handle = TickingHandler.entry_point()
