"""A network behind FastAPI without batching, with the natural code of its documentation."""

import os
from contextlib import asynccontextmanager

from slotwise.worker.engines.torchvision_compat import ensure_importable

ensure_importable()

import torch  # noqa: E402
import uvicorn  # noqa: E402
from fastapi import FastAPI, UploadFile  # noqa: E402
from PIL import Image  # noqa: E402
from torchvision import models  # noqa: E402

from slotwise.zoo.networks import network  # noqa: E402

kept = {}


@asynccontextmanager
async def lifespan(app):
    kept["model"] = network(os.environ["NETWORK"], 1000, "none")
    kept["model"].load_state_dict(torch.load(os.environ["WEIGHTS"], weights_only=True))
    kept["model"].eval()
    kept["transform"] = models.ResNet18_Weights.DEFAULT.transforms()
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
def predict(request: UploadFile):
    image = Image.open(request.file).convert("RGB")
    with torch.inference_mode():
        probabilities, labels = kept["model"](kept["transform"](image)[None]).softmax(dim=1)[0].topk(5)
    return {"labels": labels.tolist(), "probabilities": probabilities.tolist()}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="error")
