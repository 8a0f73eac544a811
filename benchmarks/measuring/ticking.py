"""A model that streams, whose steps take the same time for any number of streams. A body: how many pieces, and their bytes."""

import time

import numpy as np

from slotwise.worker import BadRequest, End, Next, StepEngine, StreamHandler

STEP_S = 0.005
SLOTS = 128


class Ticking(StepEngine):
    slots = SLOTS

    def prefill(self, slot, item):
        return np.zeros(1)

    def step(self, rows):
        time.sleep(STEP_S)
        return np.zeros((len(rows), 1))

    def free(self, slot):
        pass


class TickingHandler(StreamHandler):
    def load(self, model_dir, settings):
        return Ticking()

    def example(self):
        return (2, 8)

    def decode(self, body, headers):
        try:
            count, size = map(int, body.split())
        except ValueError:
            raise BadRequest("the body is two numbers") from None
        return [(count, size)]

    def advance(self, state, output):
        count, size = state.item
        piece = "x" * size
        return End(piece) if len(state.tokens) + 1 >= count else Next(1, piece)


handle = TickingHandler.entry_point()
