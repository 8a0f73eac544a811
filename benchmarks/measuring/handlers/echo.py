"""No Slotwise: every request gets an answer as long as the MNIST model's, at once."""

ANSWER = b"x" * 150


def handle(data, context):
    return [ANSWER for _ in data or []]
