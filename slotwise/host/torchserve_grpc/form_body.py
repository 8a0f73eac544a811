"""Named inputs of a call as the body of a request: what the handler finds under these names is what was sent under them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from slotwise.frontend.protocols.records import ProtocolFault

RAW = "body"  # what servers call the body of a request that is no form
LONGEST_NAME = 128
_NAME = re.compile(r"[!#-\[\]-~](?:[ !#-\[\]-~]*[!#-\[\]-~])?").fullmatch  # what needs no quoting in a form


def body_of(inputs: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Content type ("": none) and body. Raises ProtocolFault where a name cannot be that of a form's field.

    The same inputs give the same body, in any order: so one that ends workers is known again.
    """
    if not inputs:
        return "", b""
    if len(inputs) == 1 and RAW in inputs:
        return "", inputs[RAW]
    fields = sorted(inputs.items())
    boundary = _boundary(fields)
    pieces: list[bytes] = []
    for name, value in fields:
        if len(name) > LONGEST_NAME or not _NAME(name):
            raise ProtocolFault("an input's name is printable ASCII without quotes and backslashes, and not longer than 128")
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        pieces += [head.encode("ascii"), value, b"\r\n"]
    return f"multipart/form-data; boundary={boundary}", b"".join([*pieces, f"--{boundary}--\r\n".encode("ascii")])


def _boundary(fields: list[tuple[str, bytes]]) -> str:
    """A text that stands in no value: who could write one that holds its own digest?"""
    digest = hashlib.sha256()
    for name, value in fields:
        digest.update(f"{len(name)} {len(value)} {name}".encode("utf-8", "surrogatepass"))
        digest.update(value)
    return f"slotwise{digest.hexdigest()[:48]}"
