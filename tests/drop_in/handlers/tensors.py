import json

import torch
from ts.torch_handler.base_handler import BaseHandler


class Tensors(BaseHandler):
    """Lists of numbers in, lists of numbers out, through whatever the base handler loads: TorchScript or ONNX."""

    def preprocess(self, data):
        rows = []
        for row in data:
            value = row.get("data") or row.get("body")
            rows.append(json.loads(bytes(value)) if isinstance(value, bytes | bytearray) else value)
        return torch.tensor(rows, dtype=torch.float32)

    def inference(self, data, *args, **kwargs):
        if hasattr(self.model, "get_inputs"):
            name = self.model.get_inputs()[0].name
            return torch.from_numpy(self.model.run(None, {name: data.numpy()})[0])
        return super().inference(data, *args, **kwargs)

    def postprocess(self, data):
        return data.tolist()
