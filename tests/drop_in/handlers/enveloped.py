def handle(data, context):
    """Answers with the rows that the envelope took out of the request."""
    if data is None:
        return None
    return [{"got": row} for row in data]
