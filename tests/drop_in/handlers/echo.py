def handle(data, context):
    """Answers with what it got: its type, and its text."""
    if data is None:
        return None
    answers = []
    for i, row in enumerate(data):
        value = row.get("data") or row.get("body")
        named = sorted(name for name in row if name not in ("data", "body"))
        text = bytes(value).decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else value
        answers.append(
            {"type": type(value).__name__, "value": text, "fields": named, "path": context.get_request_header(i, "url_path")}
        )
    return answers
