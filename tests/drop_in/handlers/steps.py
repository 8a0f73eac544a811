"""Answers step by step, as TorchServe's continuousBatching calls its examples; what the body asks for, a word a step."""

import time


class Steps:
    """Keeps its place in each request's words in the context's cache."""

    def initialize(self, context):
        context.cache = {}

    def handle(self, data, context):
        answers = []
        for i, (identity, row) in enumerate(zip(context.request_ids.values(), data, strict=True)):
            if identity not in context.cache:
                body = bytes(row.get("body") or row.get("data")).decode()
                context.cache[identity] = {"words": body.split(), "at": 0}
                if body.startswith("type"):
                    context.set_response_content_type(i, "text/plain; charset=utf-8")
            else:
                assert row == {}, row
            state = context.cache[identity]
            word = state["words"][state["at"]]
            state["at"] += 1
            if word == "fail":
                raise ValueError("in the middle")
            if word == "wait":
                time.sleep(0.2)
            if word == "left":
                word = str(len(context.cache))
            answers.append({"word": word} if word == "json" else f"{word} ")
        context.stopping_criteria = [self.stop(context, identity) for identity in context.request_ids.values()]
        return answers

    def stop(self, context, identity):
        def over(answer):
            state = context.cache[identity]
            if state["words"][state["at"] - 1] == "nothing":
                return None
            if state["at"] < len(state["words"]):
                return False
            del context.cache[identity]
            return True

        return over
