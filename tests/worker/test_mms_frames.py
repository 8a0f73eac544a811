"""MMS's front end, as its bytecode says: where a piece of a response may end, and where it may not."""

from __future__ import annotations

import contextlib
import importlib
import socket
import struct
import threading
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.worker.hosts.java import mms_frames
from slotwise.worker.hosts.java.codec_check import SWITCH, text
from slotwise.worker.hosts.java.mms_frames import BLANKS, PIECE_BYTES, pieces

READS = [*range(16, 512, 16), *(512 << i for i in range(8))]  # netty's AdaptiveRecvByteBufAllocator
PROTOCOL = ("protocol.otf_message_handler",)
SMALLEST, LARGEST = READS.index(64), READS.index(65_536)


def frame(bodies: list[int], headers: int, blanks: str = BLANKS) -> bytes:
    """A response as mms.protocol.otf_message_handler encodes it."""
    made = struct.pack("!i", 200) + text(b"Prediction success" + blanks.encode())
    for i, size in enumerate(bodies):
        made += text(f"{i:036}".encode()) + text(b"application/json") + struct.pack("!i", 200) + text(b"OK")
        made += struct.pack("!i", headers)
        for h in range(headers):
            made += text(f"x-header-{h}".encode()) + text(b"a value of some length")
        made += text(b"b" * size)
    return made + struct.pack("!i", -1)


class Missing(Exception):
    """The decoder saw that something is missing and will start over."""


def decode(data: bytes) -> int:
    """ModelResponseDecoder and CodecUtils.readMap: the number of slots; Missing, or an IndexError where it breaks."""
    at = 0

    def readable() -> int:
        return len(data) - at

    def read_int() -> int:
        nonlocal at
        if readable() < 4:
            raise IndexError("readInt")
        at += 4
        return int(struct.unpack_from("!i", data, at - 4)[0])

    def skip(limit: int | None = None) -> int:
        nonlocal at
        if readable() < 4:
            raise Missing if limit is None else IndexError("-3")
        length = read_int()
        if limit is not None and (length > limit - 4 or length > readable()):
            raise IndexError("Message size exceed limit")
        if length > readable():
            raise Missing
        if length != -1:
            at += length
        return length

    if readable() < 9:
        raise Missing
    read_int()
    skip()
    slots = 0
    while skip() != -1:  # request id
        skip()  # content type
        read_int()  # status: not guarded
        skip()  # phrase
        if readable() < 4:
            raise Missing
        count = read_int()
        if count > readable():
            raise Missing
        for _ in range(2 * count):
            skip(readable())  # not guarded
        skip()  # body
        slots += 1
    return slots


def front_end(sent: list[bytes], index: int, decrease: bool) -> int:
    """Read the pieces as netty does, decoding after each read; `index`, `decrease`: what earlier responses left behind."""
    seen, slots = b"", 0
    for piece in sent:
        rest, total = piece, 0
        while rest:
            size = READS[index]
            read, rest = rest[:size], rest[size:]
            total, seen = total + len(read), seen + read
            if len(read) == size:
                index, decrease = record(len(read), index, decrease)
            try:
                slots = decode(seen)
            except Missing:
                continue
        index, decrease = record(total, index, decrease)
    return slots


def record(read: int, index: int, decrease: bool) -> tuple[int, bool]:
    """HandleImpl.record."""
    if read <= READS[max(0, index - 1)]:
        return (max(index - 1, SMALLEST), False) if decrease else (index, True)
    return (min(index + 4, LARGEST), False) if read >= READS[index] else (index, decrease)


sizes = st.one_of(st.integers(0, 300), st.integers(0, 5_000), st.integers(0, 200_000))


@given(st.lists(sizes, min_size=1, max_size=16), st.integers(0, 8), st.integers(SMALLEST, LARGEST), st.booleans())
def test_every_response_is_read_whatever_came_before(bodies: list[int], headers: int, index: int, decrease: bool) -> None:
    made = frame(bodies, headers)
    sent = [bytes(piece) for piece in pieces(made)]
    assert b"".join(sent) == made
    assert all(len(piece) <= PIECE_BYTES for piece in sent)
    assert front_end(sent, index, decrease) == len(bodies)


@pytest.mark.parametrize("index", range(SMALLEST, LARGEST + 1))
def test_the_largest_frame_of_one_piece_is_read_whatever_came_before(index: int) -> None:
    made = frame([100] * 36, 4)
    assert len(list(pieces(made))) == 1
    assert len(made) > PIECE_BYTES - 2_000
    assert front_end([made], index, False) == 36


def test_without_frames_a_full_batch_after_small_ones_breaks_the_front_end() -> None:
    broken = 0
    for index in range(SMALLEST, LARGEST + 1):
        try:
            front_end([frame([200] * 8, 4, blanks="")], index, False)
        except IndexError:
            broken += 1
    assert broken > 10


# In the server's own worker -------------------------------------------------------------------------------------------


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """MMS's own worker, serving one connection; yields the front end's side of it. A body `N` is answered with N bytes."""
    modules: list[Any] = [importlib.import_module(f"mms.{name}") for name in ("model_service_worker", "service", *PROTOCOL)]
    worker, service, protocol = modules
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(protocol, "_retrieve_inference_msg", protocol._retrieve_inference_msg)  # put back at the end
    monkeypatch.setattr(service, "create_predict_response", service.create_predict_response)
    assert mms_frames.install()
    serving = object.__new__(worker.MXNetModelServiceWorker)
    serving.service = service.Service("m", ".", {}, lambda data, context: [b"b" * int(row["body"]) for row in data], None, 4)
    front, back = socket.socketpair()
    thread = threading.Thread(target=serve, args=(serving, back))
    thread.start()
    try:
        yield front
    finally:
        front.close()
        thread.join(10)
        assert not thread.is_alive()


def serve(worker: Any, connection: socket.socket) -> None:
    with connection, contextlib.suppress(ValueError, OSError):  # "Frontend disconnected"
        worker.handle_connection(connection)


def request(sizes: list[int]) -> bytes:
    end, made = struct.pack("!i", -1), b"I"
    for i, size in enumerate(sizes):
        made += text(f"{i:036}".encode()) + end + text(b"body") + text(b"") + text(str(size).encode()) + end
    return made + end


@pytest.mark.parametrize("sizes", [[1], [100] * 4, [200_000, 0, 70_000], [0] * 1500])
def test_the_servers_own_worker_sends_the_pieces_on_its_connection(worker: socket.socket, sizes: list[int]) -> None:
    for _ in range(2):
        worker.sendall(request(sizes))
        received, whole = [], b""
        while not whole.endswith(struct.pack("!i", -1)):
            received.append(worker.recv(1 << 20))  # the next piece is sent when this one has been read
            whole += received[-1]
        ends = accumulate(len(piece) for piece in pieces(whole))
        assert set(ends) <= set(accumulate(map(len, received)))  # a large piece may be read in several parts
        assert front_end(received, SMALLEST, True) == len(sizes)


def test_other_sockets_of_the_process_are_left_alone(worker: socket.socket) -> None:
    assert "send" not in vars(socket.socket)
    left, right = socket.socketpair()
    with left, right:
        assert type(left) is socket.socket
        assert left.send(frame([100], 1)) == len(frame([100], 1))


def test_an_error_of_the_whole_batch_is_sent_in_its_own_words(worker: socket.socket) -> None:
    worker.sendall(request([1]).replace(text(b"1"), text(b"no number")))
    received = worker.recv(1 << 20)
    assert received.startswith(struct.pack("!i", 503) + text(b"Prediction failed"))


def test_a_response_that_cannot_be_cut_is_sent_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    left, right = socket.socketpair()
    with left, right:
        odd = struct.pack("!ii", 200, 1 << 30) + b"x" * PIECE_BYTES
        assert mms_frames.send_all_but_last(left, odd) is odd
        right.setblocking(False)
        with pytest.raises(BlockingIOError):
            right.recv(1)
    assert "could not be cut" in caplog.text


def test_a_front_end_that_is_gone_ends_the_worker_as_before() -> None:
    left, right = socket.socketpair()
    right.close()
    with left, pytest.raises(OSError):
        mms_frames.send_all_but_last(left, frame([100_000], 1))
