"""The process of `slotwise gateway` before a host of our own: it holds the sockets, and has the host answer on them.

Where the host dies, connections wait until there is another one of that name, and the sockets go there. Where another host
takes its place (`slotwise apply`), it opens there first; then the old one accepts nothing more, and answers what it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from slotwise import log_format
from slotwise.errors import SlotwiseError
from slotwise.frontend.handover import Handover
from slotwise.frontend.keeper import Kept
from slotwise.frontend.process import GatewayRecord
from slotwise.frontend.serve import LINES, in_place_of
from slotwise.frontend.succession import Starting
from slotwise.host.front_options import front_settings
from slotwise.host.model_versions import LOADING_S
from slotwise.host.opened_fronts import END, LONGEST, MOVED, REPLACED, address
from slotwise.interrupts import handed_to, settle
from slotwise.server.record import ServerRecord, running

log = logging.getLogger("slotwise.gateway")

LOOK_S = 0.2
ANSWER_S = 30.0
OWN = ("slotwise", "ray")  # servers whose front is a process of ours
ANOTHER_KIND = 3  # the exit code: the keeper starts a gateway that goes to the server by HTTP


def offered(name: str) -> bool:
    """Whether the server of that name can open gateways in its own process."""
    record = running(name)
    return record is not None and record.kind in OWN


def serve(name: str, options: dict[str, Any], say: Callable[[str], None], kept: Kept, starting: Starting) -> None:
    """Run until a signal. Raises SlotwiseError where another gateway of that name runs, or the host cannot open it."""
    settings = in_place_of(name, front_settings(options, kept.restarts), kept.keeper, starting)
    log_format.set_up(LINES, logging.INFO, settings.log)
    link = GatewayLink(name, {**options, "grpc_port": settings.listen.grpc_port}, say, kept, starting, settings.own)
    with handed_to(link.end):
        asyncio.run(link.run())
        settle()
    if link.moved:
        sys.exit(ANOTHER_KIND)


class GatewayLink:
    """One gateway that is open, or to be opened, in a host. own: as in FrontSettings."""

    def __init__(
        self,
        name: str,
        options: dict[str, Any],
        say: Callable[[str], None],
        kept: Kept,
        starting: Starting,
        own: str = "",
    ) -> None:
        self.name, self.options, self.say, self.kept, self.starting, self.own = name, options, say, kept, starting, own
        self.ending = 0
        self.is_replaced = self.moved = False
        self.host: HostConnection | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """Open it, and keep it open until the end."""
        self.woken = asyncio.Event()
        self.loop = loop = asyncio.get_running_loop()
        handover = Handover(self.kept.sockets, self._replaced, self.end)
        handover.listen(loop)
        again = bool(self.kept.restarts)  # then its host may have died, too, and another one comes
        self.host = await self._opened(first=not again)
        while again and self.host is None and not self._leaving:
            await asyncio.sleep(LOOK_S)
            self.host = await self._opened()
        if self.host is None:
            return
        about = self.host.about
        self.own = about["own"]
        record = GatewayRecord.of_this_process(
            name=self.name,
            url=about["url"],
            drain_s=about["drain_s"],
            key=about["own"],
            certificate=about["certificate"],
            grpc=about["grpc"],
            keeper=self.kept.keeper,
            handover=handover.address,
            options=self.starting.options,
        )
        record.save(self.kept.restarts)
        self.starting.is_up()
        if about["warning"]:
            self.say(about["warning"])
        self.say(record.listening())
        try:
            await self._follow()
            if self.starting.predecessor:
                await self.starting.predecessor.end(loop, about["drain_s"])
        finally:
            handover.close()
            if not self.moved:  # else the keeper looks whether this one was up
                record.forget()

    def end(self) -> None:
        """The first signal has it answer what it has, the second ends it at once."""
        self.ending += 1
        if self.host and self.ending == 1:
            self.host.say(END)
        if self.loop:  # else it has not begun
            self.loop.call_soon_threadsafe(self.woken.set)

    def _replaced(self) -> None:
        """A successor accepts connections; where a host is just opening this gateway, that is called off."""
        self.is_replaced = True
        self.woken.set()
        if self.host:
            self.host.say(REPLACED)

    async def _follow(self) -> None:
        """Return once it has ended. Another host's process is followed."""
        while self.host is not None and self.ending < 2:
            await self._look()
            if self.host.gone and (self.ending or self.is_replaced):
                return
            record = running(self.name)
            if self.ending or self.is_replaced or record is None:
                continue
            if record.kind not in OWN:
                self.host.say(MOVED)  # the sockets go to the gateway that the keeper starts now
                self.moved = True
                return
            if self.host.gone or record.run_id != self.host.run_id:
                before, self.host = self.host, await self._opened() or self.host
                if self.host is not before:
                    before.say(REPLACED)
                    log.info("now in the process of %s (pid %d)", record.kind, record.pid)

    async def _look(self) -> None:
        assert self.host is not None
        self.woken.clear()
        waits = [asyncio.ensure_future(wait) for wait in (self.woken.wait(), self.host.wait_gone())]
        await asyncio.wait(waits, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self.host.gone:
            await asyncio.sleep(LOOK_S)

    @property
    def _leaving(self) -> bool:
        """Whether it is to be opened nowhere any more."""
        return bool(self.ending) or self.is_replaced

    async def _opened(self, *, first: bool = False) -> HostConnection | None:
        """The gateway in the host that there is now; None where there is none. Raises SlotwiseError the first time only."""
        record = running(self.name)
        while record is not None and not self._leaving:
            try:
                asked = {"name": self.name, "own": self.own, "options": self.options, "restarts": self.kept.restarts}
                models = self.host.models if self.host else ()
                opening = asyncio.ensure_future(HostConnection.open(record, asked, self.kept.sockets, models))
                waking = asyncio.ensure_future(self.woken.wait())
                await asyncio.wait((opening, waking), return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()
                if self._leaving:
                    opening.cancel()
                    with contextlib.suppress(asyncio.CancelledError, OSError, ValueError, SlotwiseError):
                        (await opening).say(END if self.ending else REPLACED)  # it was open already
                    return None
                return await opening
            except (OSError, ValueError) as error:  # it is still starting, or has just ended
                if first:
                    raise SlotwiseError(
                        f"the host does not open the gateway: {error}", "`slotwise ready` tells when it can"
                    ) from error
                return None
            except SlotwiseError as error:
                if first:
                    raise
                log.error("%s", error.message)
                return None
        return None


class HostConnection:
    """A gateway that is open in one host. about: what the host says of it."""

    def __init__(self, run_id: str, connection: socket.socket, about: dict[str, Any]) -> None:
        self.run_id, self.connection, self.about = run_id, connection, about
        self.models: list[str] = []
        self.ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(connection, self._hear)

    @classmethod
    async def open(
        cls, record: ServerRecord, asked: dict[str, Any], sockets: Sequence[socket.socket], models: Sequence[str] = ()
    ) -> HostConnection:
        """Have the host open it, once it has these models. Raises OSError, ValueError or SlotwiseError where it does not."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(ANSWER_S)
            connection.connect(address(record.tmp_dir))
            message = json.dumps({**asked, "models": [*models]}).encode()
            socket.send_fds(connection, [message], [one.fileno() for one in sockets])
            connection.setblocking(False)
            async with asyncio.timeout(LOADING_S + ANSWER_S):
                about = json.loads(await asyncio.get_running_loop().sock_recv(connection, LONGEST))
            if "error" in about:
                raise SlotwiseError(about["error"], about["hint"])
        except BaseException:
            connection.close()
            raise
        return cls(record.run_id, connection, about)

    @property
    def gone(self) -> bool:
        """Whether the gateway has ended there."""
        return self.ended.is_set()

    async def wait_gone(self) -> None:
        """Wait until it has."""
        await self.ended.wait()

    def say(self, word: bytes) -> None:
        """Tell the host."""
        if not self.gone:
            try:
                self.connection.send(word)
            except OSError:
                log.info("the host is gone")

    def _hear(self) -> None:
        try:
            if message := self.connection.recv(LONGEST):
                self.models = json.loads(message)["models"]
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        asyncio.get_running_loop().remove_reader(self.connection)
        self.connection.close()
        self.ended.set()
