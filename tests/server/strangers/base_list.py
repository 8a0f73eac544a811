"""A BaseHandler whose preprocess gives a list, one tensor a request."""

import json

import torch
from ts.torch_handler.base_handler import BaseHandler


class Lists(BaseHandler):
    def preprocess(self, data):
        return [torch.tensor(json.loads(bytes(row.get("data") or row.get("body")))) for row in data]

    def inference(self, data):
        return torch.cat([self.model(one[None]) for one in data])
