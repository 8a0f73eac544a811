"""The demonstration model's drawings, as bodies."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from typing import Any

from slotwise.files.project import model_folder

_spec = importlib.util.spec_from_file_location("captions_drawing", model_folder("captions") / "drawing.py")
assert _spec is not None
assert _spec.loader is not None
_module: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
draw, caption, everything = _module.draw, _module.caption, _module.everything


def picture(shapes: Sequence[tuple[str, str]], *, seed: int, side: int = 128, kind: str = "png") -> bytes:
    """The shapes as a picture file."""
    sink = io.BytesIO()
    draw(shapes, side, seed).save(sink, kind)
    return sink.getvalue()
