"""Open gateways in the host's own process: their requests go straight to the models' queues.

`slotwise gateway` stays a process of its own, small, which holds the listening sockets (gateway_link.py). It sends them here,
with its options, over a Unix socket in the host's folder for temporary files, which nobody else may enter.

    link -> host   {"name": ..., "own": ..., "options": {...}, "restarts": 0, "models": [...]} and the sockets; then b"end",
                   b"replaced" or b"moved"
    host -> link   {"url": ..., "own": ..., ...}, or {"error": ..., "hint": ...}; {"models": [...]} as they change; then the
                   end, once everything is answered

The models are those that clients could ask before: where a host takes another one's place it answers once it has them. The
name is the gateway's, which the host may have got after its start; own is the key by which commands ask the gateway, which has
it in whatever host. After b"moved" a gateway in a process of its own takes over: the front stays until that is up, for gRPC's
port is no socket that is handed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from slotwise.errors import SlotwiseError
from slotwise.frontend.process import GatewayRecord
from slotwise.frontend.serve import PreparedFront
from slotwise.host.front_options import front_settings
from slotwise.host.local_backend import LocalBackend
from slotwise.host.model_versions import LOADING_S, ModelVersions

log = logging.getLogger("slotwise.host")

END, REPLACED, MOVED = b"end", b"replaced", b"moved"
LONGEST = 1 << 17
MOST_SOCKETS = 8
LOOK_S = 0.2
MOVE_S = 60.0  # a gateway that is not up by then will not be
NOT_UP = ("the gateway did not come up", "the server's log says why")
LEAVE_S = 2.0  # for clients to leave at an answer, when the host ends


def address(tmp_dir: Path) -> str:
    """Where a host with this folder for temporary files listens for gateways."""
    return str(tmp_dir / "gateways.sock")


class OpenedFronts:
    """The gateways that are open in this process. backend(): makes what answers in one of them."""

    def __init__(self, name: str, versions: ModelVersions, backend: Callable[[], LocalBackend]) -> None:
        self.name, self.versions, self.backend = name, versions, backend
        self._open: dict[asyncio.Task[None], PreparedFront | None] = {}

    @asynccontextmanager
    async def offered(self, tmp_dir: Path) -> AsyncIterator[None]:
        """Within, gateways may be opened; at the end they answer what they have, and the sockets stay their link's."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(address(tmp_dir))
            listening.listen()
            listening.setblocking(False)
            loop = asyncio.get_running_loop()
            loop.add_reader(listening, self._accept, listening)
            try:
                yield
            finally:
                loop.remove_reader(listening)
                for task in [task for task, front in self._open.items() if front is None]:
                    task.cancel()  # nobody could ask it yet
                fronts = {task: front for task, front in self._open.items() if front}
                for front in fronts.values():
                    front.server.replaced()
                if fronts:  # a connection that is closed at once may be so just when a request comes
                    await asyncio.wait(fronts, timeout=LEAVE_S)
                for front in fronts.values():
                    front.server.should_exit = True
                await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            link = listening.accept()[0]
            link.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._serve(link))
            self._open[task] = None
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._open[task]
        if not task.cancelled() and (error := task.exception()):
            log.error("a gateway ended with an error", exc_info=error)

    async def _serve(self, link: socket.socket) -> None:
        """One gateway, from its first message to its end."""
        sockets: list[socket.socket] = []
        try:
            await _readable(link)
            message, numbers, _, _ = socket.recv_fds(link, LONGEST, MOST_SOCKETS)
            sockets = [socket.socket(fileno=number) for number in numbers]
            if message:
                await self._run(link, json.loads(message), sockets)
        finally:
            for one in (link, *sockets):
                one.close()

    async def _run(self, link: socket.socket, message: dict[str, Any], sockets: list[socket.socket]) -> None:
        up = asyncio.Event()
        name = message.get("name", self.name)  # a link of before does not say it
        try:
            settings = front_settings(message["options"], message["restarts"], message.get("own", ""))
            front = PreparedFront(name, self.backend(), settings, sockets, up.set)
        except SlotwiseError as error:
            link.send(json.dumps({"error": error.message, "hint": error.hint}).encode())
            return
        running = asyncio.current_task()
        assert running is not None
        if not await self._loaded_for(link, message["models"]):
            return
        self._open[running] = front
        serving = asyncio.ensure_future(front.server.serve(sockets=sockets))
        waiting = asyncio.ensure_future(up.wait())
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not up.is_set():
            why = serving.exception()
            said = (why.message, why.hint) if isinstance(why, SlotwiseError) else NOT_UP
            link.send(json.dumps(dict(zip(("error", "hint"), said, strict=True))).encode())
        else:
            about = {key: getattr(front, key) for key in ("url", "own", "certificate", "grpc", "warning")}
            with contextlib.suppress(OSError):  # it has gone just now, which is heard below
                link.send(json.dumps({**about, "drain_s": settings.drain_s}).encode())
            beside = [asyncio.ensure_future(task) for task in (self._hear(link, front, name), self._tell_models(link))]
            await asyncio.wait((serving,))
            for task in beside:
                task.cancel()
        await serving

    async def _loaded_for(self, link: socket.socket, models: Sequence[str]) -> bool:
        """Wait until these models answer; False where the link goes first, or says anything: it wants no gateway any more."""
        loading = asyncio.ensure_future(self._loaded(models))
        heard = asyncio.ensure_future(_readable(link))
        try:
            await asyncio.wait((loading, heard), return_when=asyncio.FIRST_COMPLETED)
            return not heard.done()
        finally:
            loading.cancel()
            heard.cancel()
            await asyncio.wait((loading, heard))

    async def _loaded(self, models: Sequence[str]) -> None:
        """Wait until these models answer, but for none whose workers do not start, or that nobody is to register."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOADING_S):
                while any(self.versions.waits_for(model) for model in models):
                    await asyncio.sleep(LOOK_S)
        self.versions.expect(set(models) - self.versions.by_name.keys())  # somebody may, all the same

    async def _tell_models(self, link: socket.socket) -> None:
        told: list[str] | None = None
        while True:
            models = list(self.versions.by_name)
            if models != told:
                with contextlib.suppress(OSError):
                    link.send(json.dumps({"models": models}).encode())
                told = models
            await asyncio.sleep(LOOK_S)

    async def _hear(self, link: socket.socket, front: PreparedFront, name: str = "") -> None:
        """Do what the link says; where it is gone, the gateway ends with its last connection. name: the gateway's."""
        loop, ending = asyncio.get_running_loop(), False
        while True:
            try:
                word = await loop.sock_recv(link, LONGEST)
            except OSError:
                word = b""
            if word == END:
                front.server.end()
                ending = True
            elif word == MOVED and not ending:
                await _another_is_up(name)
                front.server.replaced()
            elif word == REPLACED or not ending:
                front.server.replaced()  # its sockets stay open: its keeper starts another link, or has
            if not word:
                return


async def _readable(link: socket.socket) -> None:
    """Wait until there is something to read, which may be the end."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(link, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(link)


async def _another_is_up(name: str) -> None:
    """Wait until the gateway of that name is another process."""
    before = GatewayRecord.load(name)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(MOVE_S):
            while before is not None and (now := GatewayRecord.load(name)) is not None and now.pid == before.pid:
                await asyncio.sleep(LOOK_S)
