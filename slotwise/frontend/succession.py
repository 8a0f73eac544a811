"""Start one gateway of a name at a time, alone or in the place of the one that runs. Imports little: the keeper uses it."""

from __future__ import annotations

import socket
from typing import Any

from slotwise.files import project
from slotwise.files.disk import OnlyOne
from slotwise.frontend.handover import Predecessor
from slotwise.frontend.listening import ListenAddress, bound
from slotwise.frontend.process import already_running, running


class Starting:
    """A gateway that is being started. options: what it is started with. predecessor: the one whose place it takes."""

    def __init__(self, name: str, options: dict[str, Any], *, replace: bool) -> None:
        """Raises SlotwiseError where another one runs, or is being started, too."""
        self.options = options
        self._alone = OnlyOne(project.state_dir(name) / "gateway.starting", f"a gateway for {name!r} is being started already")
        self._before = running(name)
        if self._before is not None and not replace:
            raise already_running(self._before)
        self.predecessor = Predecessor(self._before.handover) if self._before is not None else None

    def sockets(self, listen: ListenAddress) -> list[socket.socket]:
        """The sockets to listen on. Raises SlotwiseError."""
        before, predecessor = self._before, self.predecessor
        if before is None or predecessor is None:
            return bound(listen)
        return bound(listen, predecessor.sockets, before.grpc_port)

    def is_up(self) -> None:
        """It listens, and its record is written: whoever comes now finds it."""
        if self.predecessor is not None:
            self.predecessor.replace()
        self._alone.release()
