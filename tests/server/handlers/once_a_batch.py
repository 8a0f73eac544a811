"""A handler of somebody else's that answers once a batch, whatever is in it."""


def handle(data, context):  # type: ignore[no-untyped-def]
    if data is None:
        return None
    return [{"first": bytes(data[0].get("body") or data[0].get("data") or b"").decode()}]
