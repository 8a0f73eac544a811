"""The frames between our own host and a worker: whatever the pieces they come in, they are the same, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.worker.hosts import frames
from slotwise.worker.hosts.frames import BrokenFrame, Frame, FrameReader

HEADER = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=20)
FRAMES = st.builds(
    Frame, st.sampled_from(list(frames.FROM_FRONT)), st.integers(0, 2**64 - 1), st.binary(max_size=50), st.binary(max_size=300),
    st.integers(0, 255),
)  # fmt: skip


def sent(frame: Frame) -> bytes:
    return frame.head + frame.text + frame.body


@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_frames_come_as_they_were_sent_in_pieces_of_any_size(some: list[Frame], sizes: list[int]) -> None:
    data, reader, received, turn = b"".join(map(sent, some)), FrameReader(frames.FROM_FRONT), list[Frame](), 0
    while data:
        size = sizes[turn % len(sizes)]
        received += reader.frames(data[:size])
        data, turn = data[size:], turn + 1
    assert received == some
    assert reader.between_frames


@given(st.lists(FRAMES, min_size=1, max_size=3), st.data())
def test_half_a_frame_is_seen(some: list[Frame], data: st.DataObject) -> None:
    whole = b"".join(map(sent, some))
    cut = data.draw(st.integers(len(whole) - len(sent(some[-1])) + 1, len(whole) - 1))
    reader = FrameReader(frames.FROM_FRONT)
    assert list(reader.frames(whole[:cut])) == some[:-1]
    assert not reader.between_frames


@given(st.binary(min_size=frames.HEAD.size, max_size=100))
def test_what_is_no_frame_is_refused_or_read_and_never_anything_else(junk: bytes) -> None:
    try:
        for frame in FrameReader(frames.FROM_WORKER).frames(junk):
            assert frame.kind in frames.FROM_WORKER
    except BrokenFrame:
        pass


@pytest.mark.parametrize("kind", [0, 99, *frames.FROM_FRONT])
def test_a_frame_of_the_other_side_is_refused(kind: int) -> None:
    with pytest.raises(BrokenFrame):
        list(FrameReader(frames.FROM_WORKER).frames(Frame(kind).head))


def test_a_frame_that_says_it_is_huge_is_refused_before_it_is_collected() -> None:
    for text, body in ((frames.LONGEST_TEXT + 1, 0), (0, frames.LARGEST_BODY + 1)):
        with pytest.raises(BrokenFrame):
            list(FrameReader(frames.FROM_WORKER).frames(frames.HEAD.pack(frames.ANSWER, 0, 0, text, body, 1)))


@given(st.dictionaries(HEADER, HEADER, max_size=5), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_headers_and_query_come_as_they_were_sent(headers: dict[str, str], query: str) -> None:
    assert frames.request_about(frames.request_text(headers, query)) == (headers, query)


@pytest.mark.parametrize("value", ["a\nb", "a\0b"])
def test_a_header_that_would_begin_another_one_is_refused(value: str) -> None:
    for headers in ({"x-a": value}, {value: "x"}):
        with pytest.raises(ValueError, match="header"):
            frames.request_text(headers, "")


def test_an_answer_has_status_and_headers_or_is_refused() -> None:
    text = frames.answer_text(404, "text/plain", {"X-Batch-Slot": "3"})
    assert frames.answer_about(text) == (404, [(b"content-type", b"text/plain"), (b"x-batch-slot", b"3")])
    assert frames.answer_about(b"200\n") == (200, [])
    for junk in (b"", b"200", b"abc\ntext/plain", b"99\n", b"700\n", b"600\n", b"1" * 5000 + b"\n", b"200\na\nb"):
        with pytest.raises(BrokenFrame):
            frames.answer_about(junk)


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"7", b"\xff", b"[" * 100_000])
def test_a_text_that_is_no_object_is_no_frame(text: bytes) -> None:
    with pytest.raises(BrokenFrame, match="no object"):
        Frame(frames.START, text=text).json()
