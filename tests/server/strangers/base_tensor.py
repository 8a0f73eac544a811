"""A BaseHandler whose preprocess gives one tensor: rows of another length make it fail."""

import json

import torch
from ts.torch_handler.base_handler import BaseHandler


class Tensors(BaseHandler):
    def preprocess(self, data):
        return torch.stack([torch.tensor(json.loads(bytes(row["body"]))) for row in data])
