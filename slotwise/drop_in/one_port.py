"""What the management API answers, on a port of its own or on that of inference, where TorchServe has /metrics, too."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from urllib.parse import parse_qs

from aiohttp import web

from slotwise.backends.management.api import NOT_OFFERED, ManagementCall, PlainCall, let_in, refused, routes
from slotwise.backends.management.bearer import Tokens
from slotwise.backends.management.models import ApiError
from slotwise.drop_in.configuration import Configuration
from slotwise.drop_in.model_table import DropInModels
from slotwise.frontend.admission.limits import Receive
from slotwise.frontend.inference_request import Scope

CHANGES = ("POST", "DELETE")  # of /models, where the model API is off
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
OTHERS = ("/token", "/metrics")
NEW_TOKENS = ("management", "inference")
MOST_BYTES = 64 * 1024  # of a registration that is a JSON object


class OnePort:
    """Answers what is for the management API and for Prometheus.

    numbers: what /metrics says of these names, or of all; None: there is no /metrics on this port.
    """

    def __init__(
        self,
        configuration: Configuration,
        models: DropInModels,
        tokens: Tokens,
        numbers: Callable[[Sequence[str]], bytes] | None = None,
    ) -> None:
        self.configuration, self.tokens, self.numbers = configuration, tokens, numbers
        renewable = NEW_TOKENS if configuration.tokens else ()
        self.models = models
        offered = [*routes(models, tokens, renewable), ("GET", "/v1/models/{name}", self._ready)]
        self.routes = [(method, _pattern(path), call) for method, path, call in offered]

    def takes(self, method: str, path: str) -> bool:
        """Whether it answers this; predictions, health and the description are inference's."""
        models = path == "/models" or path.startswith("/models/")
        return path in OTHERS or (models and not path.endswith("/invoke") and method != "OPTIONS")

    async def answer(self, scope: Scope, receive: Receive) -> web.Response:
        """The answer to what it takes. A registration may be a JSON object, which is taken for what the address says."""
        brought = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        as_json = kind.partition(b";")[0].strip().lower() == b"application/json"
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        path = scope["path"]
        try:
            if path == "/metrics" and self.numbers:
                if not self.configuration.flag("enable_metrics_api", default=True):
                    raise ApiError(404, *NOT_OFFERED[404])
                return web.Response(body=self.numbers(query.get("name[]", [])), headers={"content-type": PROMETHEUS})
            let_in(self.tokens, path, brought)
            said = {name: values[0] for name, values in query.items()}
            if as_json and (scope["method"], path) == ("POST", "/models"):
                said = await _object(receive)
            return await self._managed(scope["method"], path, said)
        except Exception as error:
            return refused(error)

    async def _ready(self, call: ManagementCall) -> web.Response:
        """Whether a model has a worker that takes requests, as KServe's V1 says it."""
        model = self.models.get(call.match_info["name"])
        workers = (await asyncio.to_thread(self.models.host.describe, model)).workers
        return web.json_response({"name": model.name, "ready": any(worker.status == "READY" for worker in workers)})

    async def _managed(self, method: str, path: str, query: dict[str, str]) -> web.Response:
        if not self.configuration.flag("enable_model_api") and method in CHANGES and path.startswith("/models"):
            raise ApiError(405, *NOT_OFFERED[405])
        matching = [(own, call, match) for own, pattern, call in self.routes if (match := pattern.fullmatch(path))]
        for own, call, match in matching:
            if own == method:
                request: ManagementCall = PlainCall(query, match.groupdict())
                return await call(request)
        status = 405 if matching else 404
        raise ApiError(status, *NOT_OFFERED[status])


async def _object(receive: Receive) -> dict[str, str]:
    """A body that is a JSON object, by name; what is null in it is not there. Raises ApiError."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
        if len(body) > MOST_BYTES:
            raise ApiError(413, "RequestEntityTooLargeException", f"a registration is limited to {MOST_BYTES} bytes")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ApiError(400, "BadRequestException", "the body is no JSON object")
    named = {name: value for name, value in content.items() if value is not None}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in named.items()}


def _pattern(path: str) -> re.Pattern[str]:
    """What a path of a route stands for."""
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))
