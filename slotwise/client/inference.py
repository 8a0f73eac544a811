"""Client of a server's inference API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from slotwise.client import triton_protocol
from slotwise.client.api import TIMEOUT_S, Api
from slotwise.client.stream_pieces import EVENTS, NO_STREAM, pieces_of
from slotwise.client.tokens import auth_headers
from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.server.lifecycle import ServerRecord

ONE_VERSION = ("mms", "triton")  # servers that have one version of a model, and read none in a path

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

        Raises SlotwiseError where no server answers, or with the answer to another request, and where a server is asked for a
        version that reads none.
        """
        if version and self._api.record.kind in ONE_VERSION:
            raise SlotwiseError(f"{self._api.record.kind} serves one version of a model, and cannot be asked for {version}")
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

    @contextmanager
    def stream(self, model: str, body: bytes, headers: Mapping[str, str] | None = None) -> Iterator[Iterator[dict[str, Any]]]:
        """Within, the pieces of the answer to one body, each as soon as it has come; the client hangs up at the end.

        Raises SlotwiseError where there is no such answer, where it ends with an error, and where it breaks off.
        """
        if self._api.record.kind == "triton":
            raise SlotwiseError("Triton gives no answer piece by piece", NO_STREAM)
        all_headers = {"Content-Type": "application/octet-stream", "Accept": EVENTS, **(headers or {})}
        path = f"/predictions/{quote(model, safe='')}"
        response = self._api.send("POST", path, content=body, headers=all_headers, stream=True)
        try:
            yield pieces_of(response)
        finally:
            response.close()

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
