"""What one hostile client does: each attack goes on until it is told to stop, and counts what it was answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import grpc
import grpc.aio

from slotwise.frontend.grpc.open_inference_messages import SERVICE
from tests.campaign.hostile_bodies import bomb, fields, large_instances, parts
from tests.frontend.smuggling import FAMILIES, LAST, Case, tried

SOURCE = "127.0.0.66"  # an address of its own
PATIENCE_S = 5.0  # for an answer
HELD = 64  # connections or calls that are held
STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d) ")
PATHS = ("/predictions/killers", "/v1/models/killers:predict", "/v2/models/killers/infer")


@contextlib.contextmanager
def connected(address: tuple[str, int]) -> Iterator[socket.socket]:
    """A connection from the hostile client's own address. What the server does to it raises nothing."""
    with contextlib.suppress(OSError), socket.socket() as connection:
        connection.settimeout(PATIENCE_S)
        connection.bind((SOURCE, 0))
        connection.connect(address)
        yield connection


@dataclass(frozen=True)
class Aim:
    """The server, and what the hostile client shows of itself: a header in small letters, and its value.

    path: of a POST that the server reads. grpc: where `method` is. message: a good one for it.
    """

    address: tuple[str, int]
    credential: tuple[str, str]
    path: str = PATHS[0]
    grpc: str = ""
    method: str = f"/{SERVICE}/ModelInfer"
    message: bytes = b""

    def head(self, first: str, *lines: str) -> bytes:
        """The head of a request, without its end."""
        own = [f"Host: {self.address[0]}:{self.address[1]}", ": ".join(self.credential)]
        return "\r\n".join([f"{first} HTTP/1.1", *own, *lines]).encode() + b"\r\n"

    def post(self, path: str, body: bytes, *lines: str) -> bytes:
        """A whole request."""
        return self.head(f"POST {path}", *lines, f"Content-Length: {len(body)}") + b"\r\n" + body

    def connected(self) -> AbstractContextManager[socket.socket]:
        """A connection. What the gateway does to it raises nothing."""
        return connected(self.address)


Seen = Counter[str]
Attack = Callable[[Aim, threading.Event, Seen], None]


def received(connection: socket.socket, seen: Seen, answers: int = 1) -> bytes:
    """Read so many answers, or until nothing comes any more, and count their statuses."""
    data, ended = b"", "silent"
    with contextlib.suppress(TimeoutError):
        try:
            while len(STATUS.findall(data)) < answers:
                read = connection.recv(2**18)
                if not read:
                    ended = "closed"
                    break
                data += read
        except ConnectionError:
            ended = "closed"
    statuses = [status.decode() for status in STATUS.findall(data)]
    seen.update(statuses or [ended])
    return data


def ask(aim: Aim, seen: Seen, data: bytes) -> None:
    """One request on a connection of its own."""
    with aim.connected() as connection:
        with contextlib.suppress(OSError):  # refused before all of it was sent
            connection.sendall(data)
        received(connection, seen)


def flood_of_headers(aim: Aim, stop: threading.Event, seen: Seen) -> None:
    """64 MiB of header lines."""
    piece = (b"x-flood: " + b"a" * 1000 + b"\r\n") * 64
    while not stop.wait(0.1):
        with aim.connected() as connection:
            with contextlib.suppress(OSError):
                connection.sendall(aim.head("GET /healthz"))
                for _ in range(1024):
                    if stop.is_set():
                        break
                    connection.sendall(piece)
            received(connection, seen)


def pipelined(aim: Aim, stop: threading.Event, seen: Seen) -> None:
    """256 KiB of GETs at once."""
    one = aim.head("GET /nothing") + b"\r\n"
    count = 2**18 // len(one)
    while not stop.wait(0.1):
        with aim.connected() as connection:
            with contextlib.suppress(OSError):
                connection.sendall(one * count)
            received(connection, seen, count)


def held(first: Callable[[Aim], bytes], drip: bytes) -> Attack:
    """Many connections that say a little, and then a byte a second."""

    def attack(aim: Aim, stop: threading.Event, seen: Seen) -> None:
        with contextlib.ExitStack() as stack:
            open_now: list[socket.socket] = []
            while not stop.wait(1.0):
                for _ in range(HELD - len(open_now)):
                    with contextlib.suppress(OSError):
                        one = stack.enter_context(socket.create_connection(aim.address, PATIENCE_S, (SOURCE, 0)))
                        one.sendall(first(aim))
                        open_now.append(one)
                for one in list(open_now):
                    try:
                        one.sendall(drip)
                    except OSError:
                        seen["closed"] += 1
                        one.close()
                        open_now.remove(one)
            seen["held"] += len(open_now)

    return attack


def bodies(make: Callable[[Aim], list[bytes]], every_s: float) -> Attack:
    """These requests in turn, each on a connection of its own."""

    def attack(aim: Aim, stop: threading.Event, seen: Seen) -> None:
        wait_s = 0.0
        requests = make(aim)
        while not stop.wait(wait_s):
            ask(aim, seen, requests[seen.total() % len(requests)])
            wait_s = every_s

    return attack


URLENCODED = "Content-Type: application/x-www-form-urlencoded"
MULTIPART = "Content-Type: multipart/form-data; boundary=b"


def long_to_read(aim: Aim) -> list[bytes]:
    """Small requests, or good ones, that a reader who tries every way of reading takes seconds for."""
    part = b"--b\r\nContent-Type: multipart/mixed\r\n\r\nx\r\n"
    chunks = b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n"
    return [
        f"GET http://{'a' * 65_000} HTTP/1.2\r\nHost: x\r\n\r\n".encode(),
        aim.post(aim.path, b"", f"Content-Type: multipart/form-data{' ' * 60_000}x"),
        aim.post(aim.path, part * 900 + bytes(2**23) + b"--b--\r\n", MULTIPART),
        aim.head(f"POST {aim.path}", "Transfer-Encoding: chunked") + b"\r\n" + chunks,
    ]


def many_records(aim: Aim, stop: threading.Event, seen: Seen) -> None:
    """Eight requests of 1,024 good records at a time; every fourth hangs up at once."""
    body = json.dumps({"instances": list(range(1024))}).encode()
    data = aim.post(PATHS[1], body)

    def client() -> None:
        for i in range(10**9):
            if stop.wait(0.05):
                break
            if i % 4:
                ask(aim, seen, data)
            else:
                with aim.connected() as connection:
                    connection.sendall(data)
                    time.sleep(0.05)
                    seen["hung up"] += 1

    clients = [threading.Thread(target=client) for _ in range(8)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()


def upgrades(aim: Aim, stop: threading.Event, seen: Seen) -> None:
    """An Upgrade whose body is a request: there must be one answer."""
    hidden = aim.post(aim.path, b"3")
    data = aim.post(aim.path, hidden, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    while not stop.wait(0.1):
        with aim.connected() as connection:
            connection.sendall(data)
            connection.settimeout(1.0)
            if len(STATUS.findall(received(connection, seen, 2))) > 1:
                seen["smuggled"] += 1


def smuggling(aim: Aim, stop: threading.Event, seen: Seen) -> None:
    """The published requests: one answer each and one for what comes behind it, or a refusal."""
    own = "Host: {}:{}\r\n{}: {}".format(*aim.address, *aim.credential).encode()

    class Keyed(Case):
        def sent(self, aim: str) -> bytes:
            return super().sent(aim).replace(b"Host: x", own, 1)  # the hidden one keeps its length

    cases = [case for family in FAMILIES.values() for case in family(f"POST {aim.path}")]
    for i in range(10**9):
        if stop.wait(0.05):
            break
        case = cases[i % len(cases)]
        keyed = Keyed(case.name, case.head, case.body, case.bodies, case.first_line)
        found = tried(aim.address, keyed, f"POST {aim.path}", 2.0, 0.0, LAST.replace(b"Host: x", own))
        seen.update(map(str, found.statuses or ["closed" if found.ended else "silent"]))
        if len(found.statuses) - found.last > 1:
            seen["smuggled"] += 1


def over_grpc(call: Callable[[grpc.aio.Channel, Aim, Seen], AsyncIterator[None]]) -> Attack:
    """Calls in a loop of their own."""

    async def calls(aim: Aim, stop: threading.Event, seen: Seen) -> None:
        async with grpc.aio.insecure_channel(aim.grpc, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            async for _ in call(channel, aim, seen):
                if stop.is_set():
                    break

    return lambda aim, stop, seen: asyncio.run(calls(aim, stop, seen))


async def cancelled_calls(channel: grpc.aio.Channel, aim: Aim, seen: Seen) -> AsyncIterator[None]:
    """25 calls at a time that are cancelled within 10 ms, or have a deadline of 5 ms."""
    while True:
        asked = []
        for i in range(25):
            timeout = 60 if i % 5 else 0.005
            asked.append(channel.unary_unary(aim.method)(aim.message, timeout=timeout, metadata=(aim.credential,)))
            await asyncio.sleep(random.uniform(0, 0.01))
            asked[-1].cancel()
        await asyncio.gather(*(one.code() for one in asked))
        seen["cancelled"] += len(asked)
        await asyncio.sleep(0.1)
        yield


async def idle_calls(channel: grpc.aio.Channel, aim: Aim, seen: Seen) -> AsyncIterator[None]:
    """Many calls that never send their message."""

    async def never() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    asked: list[grpc.aio.StreamUnaryCall] = []
    try:
        while True:
            for one in [one for one in asked if one.done()]:
                asked.remove(one)
                seen[(await one.code()).name] += 1
            method = channel.stream_unary(aim.method)
            asked += [method(never(), timeout=60, metadata=(aim.credential,)) for _ in range(HELD - len(asked))]
            await asyncio.sleep(0.5)
            yield
    finally:
        for one in asked:
            one.cancel()


ATTACKS: dict[str, Attack] = {
    "64 MiB of header lines": flood_of_headers,
    "256 KiB of GETs at once": pipelined,
    "connections that say nothing": held(lambda aim: b"", b""),
    "slow heads": held(lambda aim: aim.head(f"POST {aim.path}"), b"x"),
    "slow bodies": held(lambda aim: aim.head(f"POST {aim.path}", "Content-Length: 100000") + b"\r\n", b"x"),
    "V1 bodies of 14 MiB, answers of 20": bodies(lambda aim: [aim.post("/v1/models/wide:predict", large_instances())], 1.0),
    "V1 requests of 1,024 records, some hang up": many_records,
    "forms of 200,000 fields": bodies(
        lambda aim: [aim.post(PATHS[0], fields(200_000), URLENCODED), aim.post(PATHS[0], parts(270_000), MULTIPART)], 1.0
    ),
    "forms of 1,500,000 fields": bodies(lambda aim: [aim.post(PATHS[0], fields(1_500_000), URLENCODED)], 1.0),
    "requests that are long to read": bodies(long_to_read, 0.2),
    "gzip bombs": bodies(lambda aim: [aim.post(path, bomb(), "Content-Encoding: gzip") for path in PATHS], 0.5),
    "request smuggling": smuggling,
    "Upgrade: h2c": upgrades,
    "cancelled gRPC calls": over_grpc(cancelled_calls),
    "idle gRPC calls": over_grpc(idle_calls),
}
