"""A class whose bodies say what it does to them: {"x": 3, "do": "..."}."""

import json


class Odd:
    def initialize(self, context):
        self.kept = context

    def handle(self, data, context):
        answers = []
        for i, row in enumerate(data):
            wish = json.loads(bytes(row.pop("body")))
            do, answer = wish.get("do"), {"doubled": 2 * wish["x"], "id": bool(context.get_request_id(i))}
            if do == "bytes":
                answer = bytes([wish["x"]] * 3)
            elif do == "status":
                self.kept.set_response_status(201, "Created", i)
                self.kept.set_response_header(i, "x-mine", str(wish["x"]))
                self.kept.set_response_content_type(i, "text/plain")
                answer = "made"
            elif do == "raise":
                context.set_all_response_status(418, "Teapot")
                raise RuntimeError("/secret/path")
            elif do == "exit":
                raise SystemExit(3)
            elif do == "mute":
                answer = object()
            elif do == "none":
                return None
            elif do == "tuple":
                return tuple(data)
            if do != "short":
                answers.append(answer)
        return answers
