"""Decode a JPEG small enough for the item, in eighths of its size; with simplejpeg where it is installed, in less time.

Both decode with libjpeg-turbo. simplejpeg hands it the whole body at once and takes RGB from it; pillow hands it pieces and
widens RGB to four bytes a pixel. The pixels are the same. So an item, and an archive that is calibrated with such items, is the
same on a machine without simplejpeg.

Whatever libjpeg-turbo warns of (a truncated file, damage, bytes between the segments) is left to pillow, whose verdict holds.
"""

from __future__ import annotations

from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from slotwise.worker.inputs.picture_header import PictureHeader

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

COLOURS = ("Gray", "YCbCr", "RGB")  # CMYK is pillow's
MAX_SCANS = 16  # nothing stops this decoder: with more, a picture could take seconds; real ones have about ten
MIN_SIDE = 16  # of smaller pictures several scales are the same size, and simplejpeg is told a size
ONE_THIRD = 3  # pillow asks libjpeg for one part in so many, and libjpeg takes 3/8 for a third: the next size that it has


def decode_jpeg(body: bytes, header: PictureHeader, mode: str, eighths: int) -> Image.Image | None:
    """The picture in mode "RGB" or "L", eighths / 8 of its size, not yet turned; None where pillow has to decide."""
    if simplejpeg is None or header.format != "JPEG" or header.coding == "arithmetic" or header.scans > MAX_SCANS:
        return None
    if min(header.width, header.height) < MIN_SIDE:
        return None
    width, height = scaled(header.width, header.height, eighths)
    least = {} if eighths == 8 else {"min_width": width, "min_height": height}
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


def draft(picture: JpegImageFile, mode: str, eighths: int) -> None:
    """Have pillow decode the picture in the same size. Its own draft knows 1/2, 1/4 and 1/8."""
    width, height = picture.size
    mode = mode if picture.mode in ("L", "RGB") else picture.mode
    picture.draft(mode, (max(1, width * eighths // 8), max(1, height * eighths // 8)))
    if eighths == 3:
        decoder, _, offset, colours = picture.tile[0]
        picture._size = scaled(width, height, eighths)
        picture.tile = [ImageFile._Tile(decoder, (0, 0, *picture._size), offset, colours)]
        picture.decoderconfig = (ONE_THIRD, 0)


def scaled(width: int, height: int, eighths: int) -> tuple[int, int]:
    """Width and height of the decoded picture."""
    return -(-width * eighths // 8), -(-height * eighths // 8)
