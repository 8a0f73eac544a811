"""What the management API answers, on a port of its own or on that of inference, where TorchServe has /metrics, too."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from urllib.parse import parse_qs

from aiohttp import web

from slotwise.backends.management.api import NOT_OFFERED, ManagementCall, PlainCall, let_in, refused, routes
from slotwise.backends.management.bearer import Tokens
from slotwise.backends.management.models import ApiError
from slotwise.drop_in.configuration import Configuration
from slotwise.drop_in.model_table import DropInModels
from slotwise.frontend.inference_request import Scope

CHANGES = ("POST", "DELETE")  # of /models, where the model API is off
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
OTHERS = ("/token", "/metrics")
NEW_TOKENS = ("management", "inference")


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
        offered = routes(models, tokens, renewable)
        offered += [(method, f"{path}/", call) for method, path, call in offered if method == "DELETE"]  # an empty version
        self.routes = [(method, _pattern(path), call) for method, path, call in offered]

    def takes(self, method: str, path: str) -> bool:
        """Whether it answers this; predictions, health and the description are inference's."""
        models = path == "/models" or path.startswith("/models/")
        return path in OTHERS or (models and not path.endswith("/invoke") and method != "OPTIONS")

    async def answer(self, scope: Scope) -> web.Response:
        """The answer to what it takes."""
        brought = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        try:
            if scope["path"] == "/metrics" and self.numbers:
                if not self.configuration.flag("enable_metrics_api", default=True):
                    raise ApiError(404, *NOT_OFFERED[404])
                return web.Response(body=self.numbers(query.get("name[]", [])), headers={"content-type": PROMETHEUS})
            let_in(self.tokens, scope["path"], brought)
            return await self._managed(scope["method"], scope["path"], {name: values[0] for name, values in query.items()})
        except Exception as error:
            return refused(error)

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


def _pattern(path: str) -> re.Pattern[str]:
    """What a path of a route stands for."""
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))
