"""How the front end learns of the server behind it: the record that `slotwise serve` writes, and the management API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slotwise.backends.interface import MAX_BODY_BYTES
from slotwise.client.inference import auth_headers
from slotwise.client.management import ManagementClient
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.server.lifecycle import ServerRecord

if TYPE_CHECKING:
    from slotwise.client.live_model import LiveModel

MAX_ANSWER_BYTES = 64 * 2**20  # or what the server itself allows, where that is more
HEAD_BYTES = 2**20  # what an answer's head may take besides
MANAGEMENT_S = 3.0  # a server that describes its models no faster is as good as down


@dataclass(frozen=True)
class ServerView:
    """How the front end learns of the server behind it. The functions may block; they run in threads.

    find: the server's record; None where there is none. models: its models' versions, the default ones first. auth: the header
    with its token.
    max_body_bytes: the largest body that it takes.
    max_answer_bytes: a longer answer is cut off, so that it cannot fill the front end's memory.
    """

    find: Callable[[], ServerRecord | None]
    models: Callable[[ServerRecord], Sequence[LiveModel]]
    auth: Callable[[ServerRecord], Mapping[str, str]]
    max_body_bytes: Callable[[ServerRecord], int] = lambda record: MAX_BODY_BYTES
    max_answer_bytes: Callable[[ServerRecord], int] = lambda record: MAX_ANSWER_BYTES


@dataclass(frozen=True)
class ModelLoader:
    """How models are loaded and unloaded where others say which. The functions may block, and raise SlotwiseError.

    load(record, name, url): it is ready when this returns; NoMemory where it does not fit. unload(record, name).
    """

    load: Callable[[ServerRecord, str, str], None]
    unload: Callable[[ServerRecord, str], None]


def described(client: ManagementClient) -> list[LiveModel]:
    """Every version that is registered, of each model the default one first. Raises SlotwiseError.

    A model that is unregistered meanwhile is left out.
    """
    models: list[LiveModel] = []
    for listed in client.list():
        try:
            versions = client.describe_all(listed.name)
            default = versions[0] if len(versions) == 1 else client.describe(listed.name)
            models += [default, *(one for one in versions if one.version != default.version)]
        except SlotwiseError:
            if listed.name in {left.name for left in client.list()}:
                raise
    return models


def server_view(name: str) -> ServerView:
    """The view of the server called `name`, as `slotwise serve` started it."""
    clients: dict[str, ManagementClient] = {}

    def find() -> ServerRecord | None:
        return ServerRecord.load(project.state_root() / name)

    def models(record: ServerRecord) -> list[LiveModel]:
        if record.run_id not in clients:
            for old in list(clients):
                clients.pop(old).close()
            clients[record.run_id] = ManagementClient(record, timeout_s=MANAGEMENT_S)
        return described(clients[record.run_id])

    def max_body_bytes(record: ServerRecord) -> int:
        try:
            return record.effective_profile().max_request_bytes
        except SlotwiseError:
            return MAX_BODY_BYTES

    def max_answer_bytes(record: ServerRecord) -> int:
        try:
            return max(record.effective_profile().max_response_bytes + HEAD_BYTES, MAX_ANSWER_BYTES)
        except SlotwiseError:
            return MAX_ANSWER_BYTES

    return ServerView(find, models, auth_headers, max_body_bytes, max_answer_bytes)
