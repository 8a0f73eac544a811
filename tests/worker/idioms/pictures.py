"""Small pictures, and a handler that reads them as TorchServe's examples do."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slotwise.worker import TorchServeHandler

torch = pytest.importorskip("torch")

LABELS = {str(i): f"class {i}" for i in range(5)}


def picture(seed: int, width: int = 12) -> str:
    """Noise as a PNG in base64."""
    pixels = np.random.default_rng(seed).integers(0, 255, (12, width, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


PICTURES = [{"data": picture(i)} for i in range(6)]


def network(outputs: int = 5) -> Any:
    """A network of one convolution."""
    torch.manual_seed(2)
    layers = torch.nn.Conv2d(3, 4, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten()
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, outputs)).eval()


class Reads(TorchServeHandler):
    """As TorchServe's vision_handler and image_classifier: the likeliest labels."""

    top = 2

    def initialize(self, context: Any) -> None:
        self.device, self.model, self.mapping = torch.device("cpu"), network(), LABELS
        self.prepare()
        self.initialized = True

    def prepare(self) -> None:
        pass

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        pictures = []
        for row in data:
            body = row.get("data") or row.get("body")
            raw = base64.b64decode(body["data"])  # type: ignore[index]
            pixels = np.asarray(Image.open(io.BytesIO(raw)).convert("RGB").resize((8, 8)), np.float32) / 255
            pictures.append(torch.from_numpy(pixels).permute(2, 0, 1))
        return torch.stack(pictures).to(self.device)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode():
            return self.model(data.to(self.device), *args, **kwargs)

    def postprocess(self, data: Any) -> Any:
        scores, classes = torch.topk(torch.nn.functional.softmax(data, dim=1), self.top, dim=1)
        rows = zip(classes.tolist(), scores.tolist(), strict=True)
        return [{self.mapping[str(label)]: score for label, score in zip(*row, strict=True)} for row in rows]
