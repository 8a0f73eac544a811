"""The front of a model server: REST contracts, a page, load shedding, retries, and profile swaps without a lost request.

replies.py    what leaves the gateway: answers, error JSON, headers
limits.py     a concurrency limit with a short queue for each model, and a budget for bodies held in memory
upstream.py   one model server as the gateway sees it: its connections, its token, what is in flight there
backend.py    how the gateway learns of its server
gateway.py    the state of one gateway: the server in front of which it stands, and the models there
inference_request.py  one request: its head and body, read within the limits
forward.py    the hot path: the request to the server, the answer back, a second try
app.py        the routes; openapi.py their description; catalog.py what models take; metrics.py; static/ the page
serve.py      the process: its ports, its drain on SIGTERM
process.py    the process as others see it: its record, starting and stopping it
swap.py       another server behind a running gateway
"""
