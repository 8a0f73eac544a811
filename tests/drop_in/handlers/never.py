def handle(data, context):
    """Cannot start."""
    raise RuntimeError("this handler never starts")
