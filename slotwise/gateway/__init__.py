"""The front of a model server: REST contracts, a page, load shedding, retries, and profile swaps without a lost request.

replies.py    what leaves the gateway: answers, error JSON, headers
limits.py     a concurrency limit with a short queue for each model, and a budget for bodies held in memory
upstream.py   one model server as the gateway sees it: its connections, its token, what is in flight there
gateway.py    the state of one gateway: the server in front of which it stands, and the models there
forward.py    the hot path: a request in, the server's answer out
app.py        the routes; openapi.py their description; static/ the page
run.py        the process: ports, drain on SIGTERM, the loopback admin port; swap.py its client
"""
