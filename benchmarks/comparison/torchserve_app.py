"""TorchServe's own way to write a handler without a class: `handle(data, context)`, a batch in, a list out."""

import json
from pathlib import Path

import classifier

loaded = {}


def handle(data, context):
    if not loaded:
        settings = json.loads((Path(context.system_properties["model_dir"]) / "settings.json").read_text("utf-8"))
        loaded["decode"], loaded["classify"] = classifier.decoder(settings), classifier.model(settings)
        loaded["encode"] = classifier.encoder(settings)
    if not data:
        return None
    outputs = loaded["classify"]([loaded["decode"](bytes(row.get("body") or row.get("data"))) for row in data])
    return [loaded["encode"](output) for output in outputs]
