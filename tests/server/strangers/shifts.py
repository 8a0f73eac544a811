"""Answers in wrong slots, and state between batches: what raises nothing."""

import json


class Shifts:
    total = 0

    def initialize(self, context):
        pass

    def handle(self, data, context):
        bodies = [bytes(row["body"]) for row in data]
        if b"keep" in bodies:
            self.total += len(bodies)
            return [{"total": self.total} for _ in bodies]
        answers = [{"doubled": 2 * json.loads(body)} for body in bodies if body.strip()]
        return answers + [{"doubled": None}] * (len(bodies) - len(answers))
