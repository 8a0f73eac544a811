"""Make torchvision importable beside a torch build that its compiled library does not fit (PyPI's beside a CPU torch).

Without the library `import torchvision` dies with "operator torchvision::nms does not exist". Models and transforms need
only that the operators' names exist; image decoding and the box operators stay unavailable.
"""

from __future__ import annotations

import sys
from typing import Any

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[Any] = []  # a torch.library.Library takes its definitions with it when it is collected


def ensure_importable() -> bool:
    """Import torchvision, after defining the missing operators' names where needed. Returns False where it is not installed."""
    try:
        import torchvision  # noqa: PLC0415  heavy, optional
    except ModuleNotFoundError:
        return False
    except RuntimeError as error:
        if "torchvision::nms" not in str(error) or _libraries:
            raise
        import torch  # noqa: PLC0415  heavy

        _libraries.append(torch.library.Library("torchvision", "DEF"))
        for schema in _SCHEMAS:
            _libraries[0].define(schema)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        import torchvision  # noqa: F401, PLC0415  heavy, optional
    return True
