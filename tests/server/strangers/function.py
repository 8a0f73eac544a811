"""A function, as most hand-written handlers: one bad body, and everybody's answer is lost."""

import json


def handle(data, context):
    return data and [{"doubled": 2 * json.loads(bytes(row["body"]))} for row in data]
