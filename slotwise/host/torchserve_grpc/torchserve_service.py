"""What TorchServe's two gRPC services have in common: who is let in, and how a call ends that is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from urllib.parse import unquote

import grpc

from slotwise.backends.exchange import CLIENT_GONE
from slotwise.backends.interface import Refused
from slotwise.backends.management import bearer
from slotwise.backends.management.bearer import Tokens
from slotwise.frontend.frontend import Gateway
from slotwise.frontend.grpc.call import Call
from slotwise.frontend.grpc.service import Answer, CallEnd, GrpcService
from slotwise.frontend.http.client_connections import ConnectionLimits
from slotwise.frontend.protocols.records import ProtocolFault

CODES = {  # by HTTP's status, as TorchServe has them; any other is FAILED_PRECONDITION below 500, else INTERNAL
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    416: grpc.StatusCode.OUT_OF_RANGE,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    CLIENT_GONE: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
HTTP, ARCHIVE = "org.pytorch.serve.http", "org.pytorch.serve.archive.model"  # packages, as clients know them
IN_ARCHIVE = {"ModelException", "ModelNotFoundException", "ModelVersionNotFoundException", "InvalidModelException"}
INTERNAL = f"{HTTP}.InternalServerException"


class CallRefused(Exception):
    """A refusal in TorchServe's words. type_: its second line, "" for none. code: None has that of `status`, of HTTP."""

    def __init__(
        self, status: int, message: str, type_: str = INTERNAL, code: grpc.StatusCode | None = None, retry_after_s: int = 0
    ) -> None:
        super().__init__(message)
        details = f"{message}\n{type_}" if type_ else message
        self.end = CallEnd(status, code or code_of(status), details, retry_after_s)


class TorchServeService(GrpcService):
    """One of the two services. token: the kind that each of its calls has to bring, as on TorchServe.

    told(client, method, code, began): of every call that has ended; the code is gRPC's number.
    """

    told: Callable[[str, str, int, float], None] | None = None

    def __init__(
        self,
        gateway: Gateway,
        tokens: Tokens,
        token: str,
        name: str,
        answers: Mapping[str, Answer],
        streamed: Collection[str] = (),
    ) -> None:
        super().__init__(gateway, ConnectionLimits(), name, answers, streamed)
        self.tokens, self.token = tokens, token

    def let_in(self, method: str, call: Call) -> None:
        """Raise CallRefused where it does not bring the token."""
        if not self.tokens.opens(self.token, dict(call.headers).get(b"authorization", b"")):
            raise CallRefused(403, bearer.MESSAGE, "")

    def took(self, method: str, call: Call, code: grpc.StatusCode) -> None:
        """See GrpcService."""
        if self.told is not None:
            self.told(unquote(call.connection.partition(":")[2]), f"{self.name}/{method}", code.value[0], call.began)

    def end_of(self, error: Exception) -> CallEnd | None:
        """As TorchServe ends such a call; its clients look at the words, too."""
        if isinstance(error, CallRefused):
            return error.end
        if isinstance(error, ProtocolFault):
            return CallRefused(error.status, error.message, f"{HTTP}.BadRequestException").end
        if isinstance(error, Refused):
            return CallRefused(error.status, error.message, retry_after_s=error.retry_after_s).end
        return None


def code_of(status: int) -> grpc.StatusCode:
    """The code that TorchServe gives this status of HTTP."""
    return CODES.get(status, grpc.StatusCode.FAILED_PRECONDITION if status < 500 else grpc.StatusCode.INTERNAL)


def class_of(type_: str) -> str:
    """The whole name of one of TorchServe's exceptions."""
    return f"{ARCHIVE if type_ in IN_ARCHIVE else HTTP}.{type_}"
