"""Read a body that is the input's own numbers, one after the other, without any code of its author.

A change of threads, which an author's `decode` needs (decoders.py), takes longer than that: on some machines as long as all
that is left of a small tensor's request. So such a body is read in the batch's own thread. Nothing can hold that up: it is a
look at a few bytes, whatever they are. Every other body goes to `decode`, and so does one that may be meant otherwise.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from slotwise.worker.handler import BatchHandler
from slotwise.worker.labels import RAW_NUMBERS
from slotwise.worker.request import Request

PLAIN_TYPES = ("", "application/octet-stream")
MOST_BYTES = 64 * 1024  # of a body that is read at once
ELSE = (b"\x93NUMPY", b"[", b" ", b"\t", b"\r", b"\n", b"\v", b"\f")  # how .npy and lists in JSON begin
BINARY = re.compile(rb"[^\t\r\n -~]").search  # what no text of letters, digits and signs has


class RawNumbers:
    """What such a body is: little-endian numbers of one row.

    dtype: of each. shape: of the row, without the batch.
    """

    def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = np.dtype(dtype).newbyteorder("<"), shape
        self.bytes = int(np.prod(shape)) * self.dtype.itemsize

    @classmethod
    def of(cls, handler: BatchHandler) -> RawNumbers | None:
        """What the handler's `raw_numbers` says; None where it is not said beside the `decode` that holds.

        Raises ValueError where nothing says how many numbers an input has.
        """
        own = vars(type(handler))
        if own.get("raw_numbers") is not True or "decode" not in own or {"decode", "read"} & {*vars(handler)}:
            return None
        if handler._reads_alone or type(handler).read is not BatchHandler.read:
            return None
        spec = handler.model.get("input", {})
        if "shape" not in spec:
            raise ValueError("raw_numbers is True, but model.toml says no [input] with a shape")
        raw = cls(spec.get("dtype", "float32"), tuple(spec["shape"]))
        return raw if 0 < raw.bytes <= MOST_BYTES and raw.dtype.kind in "iuf" else None

    def read(self, request: Request) -> list[object] | None:
        """The one item of such a body, an array of `shape`; None where it is another, or its numbers are not all finite."""
        body, headers = request.body, request.headers
        if type(body) is not bytes or len(body) != self.bytes or headers.encoding or request.is_late:
            return None
        if request.more or request.fields or request.unclear:
            return None
        kind = headers.get("content-type", "")
        if kind != RAW_NUMBERS and (kind.lower() not in PLAIN_TYPES or body.startswith(ELSE) or not BINARY(body)):
            return None
        array = self.shown(body)
        return [array] if np.isfinite(array).all() else None

    def shown(self, body: bytes) -> Any:
        """The array that a body of so many bytes is."""
        return np.frombuffer(body, self.dtype).reshape(self.shape)
