"""TorchServe's two ways to send an answer piece by piece: intermediate answers of a closed batch, and continuousBatching."""

import json
from pathlib import Path

from step_model import StepModel
from ts.handler_utils.utils import send_intermediate_predict_response

loaded = {}


def handle(data, context):
    if not loaded:
        loaded["settings"] = json.loads((Path(context.system_properties["model_dir"]) / "settings.json").read_text("utf-8"))
        loaded["model"] = StepModel(loaded["settings"])
    if not data:
        return None
    model = loaded["model"]
    try:
        return (continuous if loaded["settings"]["continuous"] else closed)(model, data, context)
    except Exception:
        model.clear()
        raise


def closed(model, data, context):
    new = items(model, data, context, range(len(data)))
    last = [b"" if i in new else b"bad request" for i in range(len(data))]
    while new or model.streams:
        told, new = model.turn(new), {}
        for each in told:
            if each.failed:
                context.set_response_status(500, "failed", each.key)
        pieces = {each.key: line(each.text) for each in told if each.text is not None}
        if pieces:
            ids = {i: context.request_ids[i] for i in pieces}
            send_intermediate_predict_response(pieces, ids, "Intermediate", 200, context)
    return last


def continuous(model, data, context):
    ids = [context.request_ids[i] for i in range(len(data))]
    for gone in [key for key in model.streams if key not in ids]:
        model.leave(gone)
    joining = [i for i, key in enumerate(ids) if key not in model.streams]
    new = {ids[i]: item for i, item in items(model, data, context, joining).items()}
    told = {each.key: each for each in model.turn(new)}
    for i, key in enumerate(ids):
        if key in told and told[key].failed:
            context.set_response_status(500, "failed", i)
    ended = [key not in told or told[key].ended for key in ids]
    context.stopping_criteria = [lambda _, ended=each: ended for each in ended]
    return [line(told[key].text) if key in told else b"bad request" for key in ids]


def items(model, data, context, places):
    """What these bodies ask for, by place. A careful author refuses those that ask for nothing."""
    found = {}
    for i in places:
        try:
            found[i] = model.read(data[i].get("body") or data[i].get("data"))
        except Exception:
            if not model.careful:
                raise
            context.set_response_status(400, "bad request", i)
    return found


def line(text):
    return (json.dumps({"text": text}) + "\n").encode() if text is not None else b""
