"""Many requests on one call of gRPC: read one after the other, and answered up to so many side by side."""

from __future__ import annotations

import asyncio

from slotwise.backends.exchange import CLIENT_GONE
from slotwise.backends.interface import Refused
from slotwise.frontend.admission.limits import ClientGone
from slotwise.frontend.grpc.call import Call
from slotwise.frontend.grpc.call_messages import CallMessages
from slotwise.frontend.grpc.service import CallEnd, GrpcService, Messages

LEAVES = "this server ends: ask again on another stream"


class RequestOfStream:
    """One request of such a call. read: set when it has been taken apart, or refused."""

    def __init__(self, stream: RequestStream, call: Call, data: bytes) -> None:
        self.stream, self.call, self.service, self.messages, self.data = stream, call, stream.service, stream.messages, data
        self.read = asyncio.Event()

    async def answer(self) -> None:
        """Answer it, whatever becomes of it."""
        observer, status = self.service.gateway.observer, 0
        if observer is not None:
            self.call.begin(observer, f"/{self.stream.of}/{self.stream.method}")
        try:
            status = await self.answered()
        except ClientGone:
            pass
        except Exception as error:
            end = self.service.failed(self.stream.method, self.call, error)
            if end.status != CLIENT_GONE:
                self.messages.put(self.error(end))
        finally:
            self.read.set()
            self.release()
            if observer is not None:
                observer.end(self.call.scope(""), status)
        await self.messages.taken()  # so that what it is answered is bounded, too

    def let_in(self) -> bytes:
        """Its message, which is nowhere else from now on. Raises Refused: its key may have ended since the call began."""
        self.service.let_in(self.stream.method, self.call)
        data, self.data = self.data, b""
        return data

    # What methods do differently.

    async def answered(self) -> int:
        """Have it answered. Returns HTTP's status. Raises what it fails with."""
        raise NotImplementedError

    def error(self, end: CallEnd) -> bytes:
        """The answer that tells how it failed."""
        raise NotImplementedError

    def leave(self) -> None:
        """Nobody waits for its answer any more."""
        raise NotImplementedError

    def release(self) -> None:
        """It is over."""


class RequestStream:
    """One call of a method, of the service `of`. messages: what its client gets.

    most_at_once: its requests; the next one is read when one of them has ended.
    """

    of = method = ""
    most_at_once = 1

    def __init__(self, service: GrpcService, call: Call, given: Messages) -> None:
        self.service, self.call = service, call
        self.given, self.messages = aiter(given), CallMessages()
        self.requests: dict[asyncio.Task[None], RequestOfStream] = {}
        self.stopped = False
        self._reading: asyncio.Task[bytes | None] | None = None

    def request(self, call: Call, data: bytes) -> RequestOfStream:
        """What is asked by this message. call: its own."""
        raise NotImplementedError

    async def answered(self) -> None:
        """Answer all of its requests, and send what they are answered. Raises Refused."""
        with self.service.told_of_end(self.stop):
            await self.service.to_its_end(self.call, self.answer(), lambda: self.messages.write_to(self.call))

    def stop(self) -> None:
        """Take no further request, and end when those that were taken are answered."""
        self.stopped = True
        if self._reading is not None:
            self._reading.cancel()

    async def answer(self) -> None:
        """Answer its requests, until there are no more. Raises Refused (503) where no more are taken."""
        self.call.left = self._hung_up
        end: Refused | None = None
        try:
            await self._take()
        except Refused as refused:
            end = refused
        finally:
            if end is not None and self.requests and not self.service.may_linger():
                self._leave()
            elif self.requests:
                with self.service.lingering(end is not None):
                    await asyncio.wait(self.requests)
            self.messages.close()
        if end is not None:
            raise end

    async def _take(self) -> None:
        count = 0
        while True:
            while len(self.requests) >= self.most_at_once:
                await asyncio.wait(self.requests, return_when=asyncio.FIRST_COMPLETED)
            data = await self._next()
            if data is None:
                return
            one = self.request(self.call.part(count, self.service.gateway.options.timeout_s), data)
            del data
            task = self.service.start(one.answer())
            self.requests[task] = one
            task.add_done_callback(self.requests.pop)
            count += 1
            await one.read.wait()  # one after the other, so that they are asked in their order

    async def _next(self) -> bytes | None:
        """The next request; None where there are no more. Raises Refused (503)."""
        if self.call.gone.is_set():
            return None
        if not self.stopped:
            self._reading = asyncio.create_task(self.service.read_next(self.given, self.call))
            await asyncio.wait([self._reading])
            reading, self._reading = self._reading, None
            if not reading.cancelled():
                return reading.result()
        if self.call.gone.is_set():
            return None
        raise Refused(503, LEAVES, retry_after_s=1)

    def _hung_up(self) -> None:
        """Its client has gone, or is cut off."""
        self._leave()
        self.messages.cut()

    def _leave(self) -> None:
        """Nobody waits any more for what it has asked."""
        self.call.gone.set()
        if self._reading is not None:
            self._reading.cancel()
        for one in self.requests.values():
            one.leave()
