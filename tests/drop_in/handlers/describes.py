def handle(data, context):
    """Says of itself what its clients can read nothing of: a number that JSON has not. Asked for a version 2.0 it fails."""
    if data is None:
        return None
    if context.manifest["model"]["modelVersion"] == "2.0":
        raise ValueError("it says nothing")
    return [{"share": float("nan")} for _ in data]
