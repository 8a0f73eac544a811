"""Call a server's API with its token; a refusal becomes one SlotwiseError with the server's own message."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import httpx

from slotwise.client.http_exchange import REQUEST_ID
from slotwise.client.tokens import TokenKind, auth_headers, was_refused
from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.server.lifecycle import ServerRecord

TIMEOUT_S = 130.0
READ_S = 20.0  # for what only reads: whoever waits longer waits for a server that is stuck
TRIES = 5  # with a token each


class Transport(httpx.HTTPTransport):
    """Uses no connection again that gave a 5xx: a server that gave a request up may answer it there after all.

    Nor one that gave a worker's answer to another request: that one is nobody's.
    """

    _asked = itertools.count(1)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """As httpx's. The body of a 5xx is read at once, because its connection ends before it could be lent again."""
        request.headers[REQUEST_ID] = number = str(next(self._asked))
        response = super().handle_request(request)
        if response.headers.get(REQUEST_ID, number) != number:
            response.extensions["network_stream"].close()
            response.close()
            raise httpx.RemoteProtocolError("it gave the answer to another request", request=request)
        if response.status_code < 500:
            return response
        try:
            content = b"".join(cast("httpx.SyncByteStream", response.stream))
        finally:
            response.extensions["network_stream"].close()
            response.close()
        return httpx.Response(response.status_code, headers=response.headers, stream=httpx.ByteStream(content))


class Api:
    """One of a server's APIs over a kept connection; safe to use from several threads.

    transport: an httpx transport, for tests.
    """

    def __init__(
        self,
        record: ServerRecord,
        kind: TokenKind,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.record = record
        self.kind = kind
        url = record.inference_url if kind == "inference" else record.management_url
        transport = transport or Transport(limits=httpx.Limits(max_connections=None, max_keepalive_connections=None))
        # The server is on this machine: no proxy of the environment may come between.
        self.http = httpx.Client(base_url=url, timeout=timeout_s, trust_env=False, transport=transport)
        self._read_s = min(READ_S, timeout_s)

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> httpx.Response:
        """The server's answer, whatever its status. A refused token is looked up again, as long as there is another.

        stream: the body of a good answer is not read yet, and the answer has to be closed. Raises SlotwiseError where no server
        answers.
        """
        query = {key: str(value) for key, value in (params or {}).items() if value is not None}
        auth, timeout = auth_headers(self.record, self.kind), self._read_s if method == "GET" else self.http.timeout
        for attempt in range(TRIES):
            try:
                all_headers = {**(headers or {}), **auth}
                request = self.http.build_request(
                    method, path, params=query, content=content, headers=all_headers, timeout=timeout
                )
                response = self.http.send(request, stream=stream)
                if response.status_code >= 400:
                    response.read()
            except httpx.TimeoutException as error:
                raise SlotwiseError(
                    f"the server at {self.http.base_url} did not answer in time", "see its logs, or `slotwise describe`"
                ) from error
            except httpx.HTTPError as error:
                raise SlotwiseError(
                    f"no server answers at {self.http.base_url}: {error}", "`slotwise serve MODEL` starts one"
                ) from error
            fresh = auth_headers(self.record, self.kind) if was_refused(response) else auth
            if fresh == auth or attempt == TRIES - 1:
                break
            auth = fresh
        return response

    def call(self, doing: str, method: str, path: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer's JSON; any refusal as "cannot DOING: the server's message"."""
        response = self.send(method, path, params=params)
        body = _json(response)
        if response.status_code >= 400:
            message = body.get("message") or response.text.strip() or response.reason_phrase
            raise SlotwiseError(
                f"cannot {doing}: {message} (HTTP {response.status_code})", hint(response.status_code, self.record)
            )
        return body

    def close(self) -> None:
        """Close the connections."""
        self.http.close()


def hint(status: int, record: ServerRecord) -> str:
    """What a person can do about a refusal of the management API."""
    if status == 405:
        return "this server's profile keeps the model API off (model_api = false); start it with --set model_api=true"
    if status == 404:
        return "`slotwise list` shows the models of this server"
    if status == 409:
        return "`slotwise unregister MODEL` first, or build the archive with another version"
    return f"its logs are in {record.state_dir / 'logs'}"


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    if isinstance(body, list):  # TorchServe's describe: one object a version
        return {"versions": body}
    return body if isinstance(body, dict) else {}
