"""MMS's front end, as its bytecode says: where a piece of a response may end, and where it may not."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.worker.hosts.mms_frames import BLANKS, PIECE_BYTES, Frame, pieces

READS = [*range(16, 512, 16), *(512 << i for i in range(8))]  # netty's AdaptiveRecvByteBufAllocator
SMALLEST, LARGEST = READS.index(64), READS.index(65_536)


def text(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


def frame(bodies: list[int], headers: int, blanks: str = BLANKS) -> Frame:
    """A response as mms.protocol.otf_message_handler encodes it."""
    made = struct.pack("!i", 200) + text(b"Prediction success" + blanks.encode())
    for i, size in enumerate(bodies):
        made += text(f"{i:036}".encode()) + text(b"application/json") + struct.pack("!i", 200) + text(b"OK")
        made += struct.pack("!i", headers)
        for h in range(headers):
            made += text(f"x-header-{h}".encode()) + text(b"a value of some length")
        made += text(b"b" * size)
    return Frame(made + struct.pack("!i", -1))


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
    assert front_end([bytes(made)], index, False) == 36


def test_without_frames_a_full_batch_after_small_ones_breaks_the_front_end() -> None:
    broken = 0
    for index in range(SMALLEST, LARGEST + 1):
        try:
            front_end([bytes(frame([200] * 8, 4, blanks=""))], index, False)
        except IndexError:
            broken += 1
    assert broken > 10
