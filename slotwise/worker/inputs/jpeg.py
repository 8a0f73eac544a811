"""Decode an ordinary JPEG with simplejpeg where it is installed: the pixels that pillow gives, in less time.

Both decode with libjpeg-turbo. simplejpeg hands it the whole body at once and takes RGB from it; pillow hands it pieces and
widens RGB to four bytes a pixel. The size is the one that pillow's draft chooses, 1/2, 1/4 or 1/8. So an item, and an archive
that is calibrated with such items, is the same on a machine without simplejpeg.

Whatever libjpeg-turbo warns of (a truncated file, damage, bytes between the segments) is left to pillow, whose verdict holds.
"""

from __future__ import annotations

from PIL import Image

from slotwise.worker.inputs.picture_header import PictureHeader

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

COLOURS = ("Gray", "YCbCr", "RGB")  # CMYK is pillow's
MAX_SCANS = 16  # nothing stops this decoder: with more, a picture could take seconds; real ones have about ten
MIN_SIDE = 16  # below it, scales in eighths are the same size, and simplejpeg is told a size


def decode_jpeg(body: bytes, header: PictureHeader, mode: str, scale: int) -> Image.Image | None:
    """The picture in mode "RGB" or "L", 1 / `scale` of its size, not yet turned; None where pillow has to decide."""
    if simplejpeg is None or header.format != "JPEG" or header.coding == "arithmetic" or header.scans > MAX_SCANS:
        return None
    if min(header.width, header.height) < MIN_SIDE:
        return None
    width, height = -(-header.width // scale), -(-header.height // scale)
    least = {} if scale == 1 else {"min_width": width, "min_height": height}
    try:
        *size, colours, _ = simplejpeg.decode_jpeg_header(body)
        if size != [header.height, header.width] or colours not in COLOURS:
            return None
        pixels = simplejpeg.decode_jpeg(body, "GRAY" if mode == "L" else "RGB", **least)
    except ValueError:
        return None
    if pixels.shape[:2] != (height, width):
        return None
    return Image.fromarray(pixels[..., 0] if mode == "L" else pixels)
