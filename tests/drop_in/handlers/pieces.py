"""Answers in pieces, as TorchServe's text-generation examples do; what the body asks for."""

import time

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    answers = []
    for row in data:
        body = row.get("body") or row.get("data")
        answers.append(bytes(body).decode())
    words = answers[0].split()
    if words[0] == "type":
        context.set_response_content_type(0, "text/plain; charset=utf-8")
        context.set_response_header(0, "x-made-by", "pieces")
    if words[0] == "events":
        context.set_response_content_type(0, "text/event-stream")
    for word in words[1:]:
        if word == "fail":
            raise ValueError("in the middle")
        if word == "wait":
            time.sleep(0.2)
        piece = {"word": word} if words[0] == "json" else bytearray(b"\xff\x00\n") if words[0] == "bytes" else f"{word} "
        send_intermediate_predict_response([piece] * len(data), context.request_ids, "Intermediate", 200, context)
    if words[0] == "status":
        context.set_response_status(207, "Multi", 0)
    return ["end"] * len(data)
