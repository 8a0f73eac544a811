"""Bodies that are dear to read; each is made once."""

from __future__ import annotations

import gzip
import json
import random
from functools import cache


@cache
def large_instances() -> bytes:
    """1,024 records of 768 floats: 14 MiB of JSON."""
    row = [round(random.Random(1).random(), 15)] * 768
    return json.dumps({"instances": [row] * 1024}).encode()


@cache
def fields(count: int) -> bytes:
    """A form of so many fields."""
    return b"&".join(b"a%d=1" % i for i in range(count))


@cache
def parts(count: int) -> bytes:
    """A form of so many parts, as multipart."""
    return b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * count + b"--b--\r\n"


@cache
def bomb() -> bytes:
    """256 MiB of zeros, packed."""
    return gzip.compress(bytes(2**28), 1)
