import torch
from ts.handler_utils.micro_batching import MicroBatching
from ts.torch_handler.base_handler import BaseHandler


class Micro(BaseHandler):
    """Doubles a number, in micro-batches of two."""

    def __init__(self):
        super().__init__()
        self.handle = MicroBatching(self, micro_batch_size=2)

    def initialize(self, context):
        self.initialized = True

    def preprocess(self, data):
        return [float(bytes(row.get("data") or row.get("body"))) for row in data]

    def inference(self, data, *args, **kwargs):
        return torch.tensor(data) * 2

    def postprocess(self, data):
        return data.tolist()
