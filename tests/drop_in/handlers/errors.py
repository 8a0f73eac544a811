def handle(data, context):
    """Fails for a body that says so."""
    if data is None:
        return None
    bodies = [row.get("data") or row.get("body") for row in data]
    texts = [bytes(body).decode("utf-8", "replace") if isinstance(body, bytes | bytearray) else str(body) for body in bodies]
    if "boom" in texts:
        raise ValueError("a handler's own error")
    if "short" in texts:
        return texts[:-1]
    return texts
