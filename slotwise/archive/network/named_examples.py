"""The examples that model.toml names, read as a handler reads bodies."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from slotwise.errors import SlotwiseError
from slotwise.model_spec import ModelSpec
from slotwise.worker.request import Headers
from slotwise.worker.slot_errors import SlotError

Item = TypeVar("Item")


def named_examples(
    spec: ModelSpec, sources: list[Path], read: Callable[[bytes, Headers], Sequence[Item | SlotError]], part: str
) -> Iterator[Item]:
    """All that is in them; a missing file is passed over. Raises SlotwiseError for one that is refused.

    sources: where the files may be, the first ones first. part: of model.toml, which may be what is wrong.
    """
    for name in spec.examples:
        file = next((path for folder in sources if (path := folder / name).is_file()), None)
        if file is None:
            continue  # packing names what is missing
        headers = Headers({"content-type": mimetypes.guess_type(name)[0] or ""})
        try:
            found = read(file.read_bytes(), headers)
        except SlotError as error:
            found = [error]
        for one in found:
            if isinstance(one, SlotError):
                raise SlotwiseError(f"{name}: {one.message}", f"correct the example, or {part}")
            yield one
