def handle(data, context):
    """Answers with each field's type and the header explain; sets the header that x-origin asks for."""
    if data is None:
        return None
    for i in range(len(data)):
        if origin := context.get_request_header(i, "x-origin"):
            context.set_response_header(i, "Access-Control-Allow-Origin", origin)
    return [
        {
            "fields": {name: f"{type(value).__name__} {bytes(value).decode()}" for name, value in row.items()},
            "explain": context.get_request_header(i, "explain"),
        }
        for i, row in enumerate(data)
    ]
