"""What TorchServe and MMS say of themselves, in answers that no handler gave: in which words, and with which status."""

from __future__ import annotations

from typing import Protocol

UNREADABLE = b"java.lang.IllegalArgumentException"  # the front end could not take a form apart
WRONG_TOKEN = b"InvalidKeyException"
NO_VERSION = b"ModelVersionNotFoundException"
SIGKILLED = 507  # TorchServe's word for a worker that SIGKILL ended


class _OwnError(Protocol):
    @property
    def status(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def from_slot(self) -> bool: ...


def worker_died(answer: _OwnError) -> bool:
    """Whether the worker died that had the request in hand. Both servers say so in these words, with 500 or 507."""
    return answer.status >= 500 and b"Worker died" in answer.body and not answer.from_slot


def token_refused(answer: _OwnError) -> bool:
    """TorchServe refuses a token with 400 "Token Authorization failed." and a hint about the token."""
    return answer.status in (400, 401, 403) and not answer.from_slot and b"token" in answer.body.lower()


def wrong_token(answer: _OwnError) -> bool:
    """Whether TorchServe says that it does not know the token, or that it has expired."""
    return answer.status == 400 and not answer.from_slot and WRONG_TOKEN in answer.body


def no_such_version(answer: _OwnError) -> bool:
    """Whether the server has the model, but not in the version that the path names."""
    return answer.status == 404 and not answer.from_slot and NO_VERSION in answer.body


def form_unreadable(answer: _OwnError) -> bool:
    """Whether TorchServe could not take a form apart, which it takes for a failure of its own."""
    return answer.status == 500 and not answer.from_slot and UNREADABLE in answer.body
