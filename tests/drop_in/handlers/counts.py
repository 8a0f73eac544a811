"""Adds up the numbers of each sequence, as TorchServe's stateful example does."""

import os
import time
from pathlib import Path


class Counts:
    def initialize(self, context):
        self.context = context
        context.cache = {}

    def handle(self, data, context):
        answers = []
        for i, row in enumerate(data):
            sequence = context.get_sequence_id(i)
            number = bytes(row.get("body") or row.get("data")).decode()
            if context.get_request_header(i, context.header_key_sequence_start):
                context.cache[sequence] = 0
            if number == "die":
                os._exit(3)
            if number == "fail":
                raise ValueError("this one fails")
            if number.startswith("wait"):
                gate = Path(number.partition(" ")[2])
                gate.with_suffix(".reached").touch()
                while not gate.exists():
                    time.sleep(0.01)
                number = "0"
            if sequence in context.cache:
                context.cache[sequence] += int(number)
            total = context.cache.get(sequence)
            if context.get_request_header(i, context.header_key_sequence_end):
                context.cache.pop(sequence, None)
            if number == "7":
                context.set_response_header(i, context.header_key_sequence_id, str(sequence))
            answers.append({"sequence": sequence, "total": total, "pid": os.getpid(), "together": len(data)})
        return answers
