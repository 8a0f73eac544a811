"""Say what a body looks like that is no picture, so that its sender knows what to change."""

from __future__ import annotations

import binascii
import re

from slotwise.worker.slot_errors import BadRequest, SlotError, UnsupportedMedia

ADVICE = "send a JPEG, PNG, WebP, GIF, BMP or TIFF"
OTHER_KINDS = {
    b"%PDF": "a PDF",
    b"<svg": "an SVG drawing",
    b"<?xml": "XML",
    b"<!doc": "an HTML page",
    b"<html": "an HTML page",
    b"PK\x03\x04": "a zip archive",
    b"8BPS": "a Photoshop file",
    b"\x00\x00\x01\x00": "an icon",
}
BRANDS = {b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIC", b"avif": "AVIF"}
WRAPPED = {  # the picture may be in it, but not as it has to be sent
    re.compile(rb"\x1f\x8b"): "gzip: send it with the header Content-Encoding: gzip, or unpacked",
    re.compile(rb"data:[\w/+.-]*;base64,"): 'a data: URL: send the file\'s own bytes, or JSON, {"data": "data:..."}',
    re.compile(rb'\s*+(\{|\[\s*[\[{"0-9]|")'): 'JSON without a picture: send the file\'s own bytes, or {"data": "BASE64"}',
    re.compile(rb"--[^\r\n]{1,70}\r\nContent-Disposition:", re.IGNORECASE): "a form: send it as multipart/form-data",
}
BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{64}[A-Za-z0-9+/_\s-]*+={0,2}\s*+")
LOOKED_AT_BYTES = 1 << 12


def refusal(body: bytes) -> SlotError:
    """The error for a body that is no picture; it names the kind of file, or what the picture was wrapped in."""
    start = body[:64].lstrip()
    kind = next((kind for magic, kind in OTHER_KINDS.items() if start[: len(magic)].lower() == magic.lower()), None)
    if body[4:8] == b"ftyp":
        kind = BRANDS.get(body[8:12], "a video")
    if kind:
        return UnsupportedMedia(f"this is {kind}: {ADVICE}")
    wrapped = next((what for pattern, what in WRAPPED.items() if pattern.match(body)), None)
    if wrapped is None and _is_base64(body):
        wrapped = 'base64: send the file\'s own bytes, or JSON, {"data": "BASE64"}'
    return BadRequest(f"the body looks like {wrapped}" if wrapped else f"the body is not a picture: {ADVICE}")


def _is_base64(body: bytes) -> bool:
    """Whether the body is base64 of something that is not text, as far as its beginning tells."""
    start = body[:LOOKED_AT_BYTES]
    if BASE64.fullmatch(start) is None:
        return False
    packed = b"".join(start.split()).rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    try:
        return not binascii.a2b_base64(packed[: len(packed) // 4 * 4]).isascii()
    except ValueError:
        return False
