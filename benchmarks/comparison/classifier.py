"""What every peer serves: natural code, or Slotwise's decoder and engine in its place; a peer's program adds the server.

COMPARED names a JSON file with all settings. Its `form`: natural (pillow, torchvision's transforms, eager PyTorch), decoder
(the archive's decoder, eager PyTorch), inference (the natural decoder, the archive's engine) or engine (both of the archive).
Its `kind`: picture, tensor (MNIST), or misbehaving (misbehaving.py).
"""

import io
import json
import os
from pathlib import Path

import numpy as np

SETTINGS = json.loads(Path(os.environ["COMPARED"]).read_text("utf-8")) if "COMPARED" in os.environ else {}


def decoder(settings=SETTINGS):
    """What makes one item of one body."""
    if settings["kind"] == "misbehaving":
        import misbehaving

        return misbehaving.decode
    if settings["kind"] == "tensor":
        return lambda body: (np.frombuffer(body, "<f4").reshape(1, 28, 28) - np.float32(0.13)) / np.float32(0.31)
    if settings["form"] in ("decoder", "engine"):
        from slotwise.worker.inputs.images import Recipe

        return Recipe.of(model_of(settings)["input"])
    from PIL import Image

    from slotwise.worker.engines.torchvision_compat import ensure_importable

    ensure_importable()
    from torchvision import models
    from torchvision.transforms import v2

    transform = models.ResNet18_Weights.DEFAULT.transforms()
    if settings["form"] == "inference":  # the archive's engine normalises
        shape = v2.Compose([v2.Resize(transform.resize_size, transform.interpolation), v2.CenterCrop(transform.crop_size)])
        return lambda body: np.asarray(shape(Image.open(io.BytesIO(body)).convert("RGB")))
    return lambda body: transform(Image.open(io.BytesIO(body)).convert("RGB"))


def model(settings=SETTINGS):
    """What makes outputs of a batch of items; `encoder` makes an answer of each."""
    if settings["kind"] == "misbehaving":
        import misbehaving

        network = getattr(misbehaving, settings["network"])
        return lambda items: misbehaving.predict(items, network)
    load = session if settings["kind"] == "tensor" else engine if settings["form"] in ("inference", "engine") else eager
    scores = load(settings)

    def answers(items):
        rows = np.asarray(scores(items))  # [b, labels]
        grown = np.exp(rows - rows.max(axis=1, keepdims=True))
        shares = grown / grown.sum(axis=1, keepdims=True)
        best = np.argsort(-shares, axis=1)[:, :5]
        return [
            {"labels": labels.tolist(), "probabilities": row[labels].tolist()} for labels, row in zip(best, shares, strict=True)
        ]

    return answers


def encoder(settings=SETTINGS):
    """What makes an answer of one output. A picture's and a tensor's output is its answer."""
    if settings["kind"] == "misbehaving":
        import misbehaving

        return misbehaving.encode
    return lambda output: output


def eager(settings):
    """The network in eager PyTorch; pictures of the archive's decoder are normalised first."""
    import torch

    from slotwise.zoo.networks import network

    module, described = network(settings["network"], 1000, settings["weights"]), model_of(settings)["input"]
    mean, std = (torch.tensor(described[key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))

    def scores(items):
        with torch.inference_mode():
            if settings["form"] == "natural":
                return module(torch.stack([torch.as_tensor(item) for item in items])).numpy()
            return module((torch.from_numpy(np.stack(items)).permute(0, 3, 1, 2).float() / 255 - mean) / std).numpy()

    return scores


def engine(settings):
    """The archive's own weights in the engine and precision of the settings."""
    from slotwise.worker import Settings
    from slotwise.worker.engines import load_engine

    keys = ("engine", "precision", "threads", "batch_size")
    chosen = Settings(model=model_of(settings), **{key: settings[key] for key in keys})
    loaded = load_engine(Path(settings["model_dir"]), chosen)
    return lambda items: loaded(np.stack(items))


def session(settings):
    """MNIST's graph in onnxruntime, which the archive uses, too."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings["threads"]
    loaded = onnxruntime.InferenceSession(str(Path(settings["model_dir"]) / "mnist.onnx"), options)
    name = loaded.get_inputs()[0].name
    return lambda items: loaded.run(None, {name: np.stack(items)})[0]


def model_of(settings):
    """The archive's description of its model."""
    return json.loads((Path(settings["model_dir"]) / "slotwise.json").read_text("utf-8"))["model"]
