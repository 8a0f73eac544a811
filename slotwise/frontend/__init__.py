"""The gateway in front of a model server: REST, a page, load shedding, second tries, and swaps without a lost request.

inference_request.py   one request: its head and body, read within the limits
forward.py             the hot path: the request to the server, the answer back
traffic.py             the requests to one model: its limit, its hedging, its passage
race.py                the copies of one request: a second try, and hedges
hedging.py             when an answer is late, and how many hedges there may be
passage.py            which request has been overtaken, and who goes alone
ending.py              whether a worker has just ended
alone.py               a request whose worker died; killers.py remembers the bodies that end workers
limits.py              a concurrency limit with a short queue for each model, and a budget for bodies in memory
canary.py              a share of the requests for another archive; both are compared
canary_windows.py      what became of comparable requests to two archives, in windows
rollout_record.py      what `slotwise rollout` wants, a file a model
access.py              around all routes: security headers, and keys (keys.py); allowed_hosts.py other sites' pages
replies.py             what leaves the gateway: error JSON, headers
upstream.py            one model server as the gateway sees it: its connections, its token, what is in flight there
backend.py             how the gateway learns of its server
gateway.py             the state of one gateway: its server, the models there
app.py                 the routes; openapi.py their description; catalog.py what models take; metrics.py; page/ the page
protocols/             KServe V1, Open Inference Protocol, SageMaker; a file each, routes.py joins them to the gateway
http_protocol.py       one connection, read by receiver.py; http_framing.py where a request on it ends
client_connections.py  how many connections there may be, and how slow; client_address.py whose a request is
keeper.py              the process that starts the gateway, and again where it dies; listening.py its ports
serve.py               the gateway's own process: its drain on SIGTERM
process.py             the process as others see it: its record, starting and stopping it
swap.py                another server behind a running gateway
"""
