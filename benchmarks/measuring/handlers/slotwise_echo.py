"""The same answer from a handler of Slotwise: slots, headers and metrics, but no input and no model."""

from slotwise.worker import BatchHandler

ANSWER = b"x" * 150


class Echo(BatchHandler):
    def load(self, model_dir, settings):
        return None

    def decode(self, body, headers):
        return [0]

    def collate(self, items):
        return items

    def predict(self, inputs):
        return inputs

    def respond(self, request, results):
        return ANSWER, "application/json"


handle = Echo.entry_point()
