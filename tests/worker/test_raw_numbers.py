"""Bodies that are the input's own numbers, read without an author's code: what is read is what `decode` would have made."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.files.project import handler_file
from slotwise.worker import BatchHandler, Headers, Pipeline, Request, Settings
from slotwise.worker.labels import RAW_NUMBERS
from slotwise.worker.tensors.raw_numbers import MOST_BYTES, RawNumbers

SPEC = importlib.util.spec_from_file_location("tensor_classifier", handler_file("tensor_classifier"))
assert SPEC is not None
assert SPEC.loader is not None
GIVEN = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(GIVEN)
DTYPES = ("float32", "float64", "float16", "int32", "uint8")
KINDS = ("", "application/octet-stream", "Application/Octet-Stream", RAW_NUMBERS, "text/csv", "application/json", "image/png")
BODY = np.array([0.5, 1, 2], "<f4").tobytes()


class Summed(BatchHandler):
    """Answers the sum of three numbers."""

    raw_numbers = True

    def load(self, model_dir: Any, settings: Settings) -> Any:
        return lambda x: x.sum(axis=1, keepdims=True)

    def decode(self, body: bytes, headers: Headers) -> list[Any]:
        return [np.frombuffer(body, "<f4")]


def settings(dtype: str = "float32", shape: tuple[int, ...] = (3,)) -> Settings:
    return Settings(model={"input": {"dtype": dtype, "shape": list(shape)}, "labels": list("abc")}, batch_size=4)


def raw_of(handler: BatchHandler, dtype: str = "float32", shape: tuple[int, ...] = (3,)) -> RawNumbers | None:
    handler.settings = settings(dtype, shape)
    return RawNumbers.of(handler)


@given(st.data(), st.sampled_from(DTYPES), st.sampled_from(KINDS))
def test_what_is_read_at_once_is_what_decode_makes_of_it(data: st.DataObject, dtype: str, kind: str) -> None:
    handler = GIVEN.TensorClassifier()
    raw = raw_of(handler, dtype)
    assert raw is not None
    texts = st.text("[ ]0123456789.,\n", min_size=raw.bytes, max_size=raw.bytes).map(str.encode)
    body = data.draw(st.one_of(st.binary(min_size=raw.bytes, max_size=raw.bytes), texts, st.binary(max_size=2 * raw.bytes)))
    request = Request(body, Headers({"content-type": kind} if kind else {}))
    handler.shape, handler.dtype, handler.raw, handler.expected = (3,), np.dtype(dtype), raw, "numbers"
    read = raw.read(request)
    if read is not None:
        (made,), (item,) = handler.decode(body, request.headers), read
        assert isinstance(item, np.ndarray)
        assert (item.dtype, item.shape) == (made.dtype, made.shape)
        assert item.tobytes() == made.tobytes() == body
        assert not item.flags.writeable


def test_such_a_body_comes_to_no_other_thread_and_every_other_does() -> None:
    pipeline = Pipeline.start(Summed(), None, settings())  # type: ignore[arg-type]
    headers = Headers({"content-type": "application/octet-stream"})
    answers = pipeline.answer([Request(BODY, headers), Request(BODY, headers)])
    assert [answer.body for answer in answers] == [b"[3.5]", b"[3.5]"]
    assert pipeline.decoders.running == []
    other = Headers({"content-type": "image/png"})
    assert [answer.status for answer in pipeline.answer([Request(BODY, headers), Request(BODY, other)])] == [200, 200]
    assert len(pipeline.decoders.running) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"body": BODY + b"\0"},
        {"body": np.array([1, np.nan, 2], "<f4").tobytes()},
        {"body": b"[1,2,    3.]"},
        {"body": b"0.5,1.25,2.0"},
        {"headers": Headers({"content-encoding": "gzip"})},
        {"headers": Headers({"content-type": "application/json"})},
        {"more": [BODY]},
        {"fields": {"body": [BODY]}},
        {"deadline_s": time.time() - 1},
    ],
)
def test_what_may_be_meant_otherwise_is_not_read(changes: dict[str, Any]) -> None:
    raw = raw_of(Summed())
    assert raw is not None
    assert raw.read(Request(BODY)) is not None
    assert raw.read(replace(Request(BODY), **changes)) is None


def test_who_has_another_decode_is_asked() -> None:
    class Scaled(Summed):
        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            return [np.frombuffer(body, "<f4") * 2]

    class ByHelper(Summed):
        """Whose `decode` may call what it overrides."""

    class Reads(Summed):
        raw_numbers = True
        decode = Summed.decode

        def read(self, request: Request) -> list[Any]:
            return [np.zeros(3, "f4")]

    patched = Summed()
    patched.decode = lambda body, headers: [np.ones(3, "f4")]  # type: ignore[method-assign]
    kept = Summed()
    kept._read_one_at_a_time()
    for handler in (Scaled(), ByHelper(), Reads(), patched, kept):
        assert raw_of(handler) is None
    assert raw_of(Summed(), shape=(MOST_BYTES,)) is None


def test_numbers_of_no_shape_are_an_error_at_the_start() -> None:
    handler = Summed()
    handler.settings = Settings(model={})
    with pytest.raises(ValueError, match=r"says no \[input\] with a shape"):
        RawNumbers.of(handler)


def test_a_handler_that_leaves_something_for_later_decodes_each_body_itself() -> None:
    class Leaves(Summed):
        raw_numbers = True

        def decode(self, body: bytes, headers: Headers) -> list[Any]:
            self.size = len(body)
            return [np.frombuffer(body, "<f4")]

        def encode(self, output: Any, item: Any) -> Any:
            return self.size

    pipeline = Pipeline.start(Leaves(), None, settings())  # type: ignore[arg-type]
    assert [answer.body for answer in pipeline.answer([Request(BODY), Request(BODY)])] == [b"12", b"12"]
