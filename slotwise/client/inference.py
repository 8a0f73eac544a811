"""Client of a server's inference API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx

from slotwise.client import triton_protocol
from slotwise.client.api import TIMEOUT_S, Api
from slotwise.client.tokens import auth_headers

if TYPE_CHECKING:
    from slotwise.server.lifecycle import ServerRecord

__all__ = ["InferenceClient", "auth_headers"]


class InferenceClient:
    """Asks one server for predictions; may be used from several threads at once.

        with InferenceClient(record) as client:
            print(client.predict("digits", body).json())

    record: what `slotwise serve` wrote down about the server. timeout_s: seconds for one request. transport: httpx's, for
    tests.
    """

    def __init__(
        self, record: ServerRecord, *, timeout_s: float = TIMEOUT_S, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._api = Api(record, "inference", timeout_s=timeout_s, transport=transport)

    def predict(
        self, model: str, body: bytes, headers: Mapping[str, str] | None = None, *, version: str | None = None
    ) -> httpx.Response:
        """Send one body to a model and return the response, whatever its status.

        Raises SlotwiseError where no server answers, or with the answer to another request.
        """
        path = f"/predictions/{quote(model, safe='')}" + (f"/{quote(version, safe='')}" if version else "")
        all_headers = {"Content-Type": "application/octet-stream", **(headers or {})}
        if self._api.record.kind == "triton":
            return self._predict_on_triton(path, body, all_headers)
        return self._api.send("POST", path, content=body, headers=all_headers)

    def _predict_on_triton(self, path: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        sent = triton_protocol.request(path, headers, body)
        got = self._api.send("POST", sent.path, content=sent.body, headers=sent.headers)
        plain = triton_protocol.answer(got.status_code, got.headers, got.content)
        return httpx.Response(plain.status, headers=plain.headers, content=plain.body, request=got.request)

    def ping(self) -> bool:
        """Whether the server says that it is healthy. It says so before models are ready, see ManagementClient.ready."""
        path = "/v2/health/live" if self._api.record.kind == "triton" else "/ping"
        return self._api.send("GET", path).status_code == 200

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def __enter__(self) -> InferenceClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
