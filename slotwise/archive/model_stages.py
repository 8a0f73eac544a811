"""The stages of a model: each is a model of its own, built first, and carried in the archive as stages/NAME/."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from slotwise.archive.input_digests import stage_folder
from slotwise.archive.inspection import extract, inspect
from slotwise.errors import SlotwiseError
from slotwise.model_spec import ModelSpec
from slotwise.worker.stages.stage_chain import FOLDER

HANDLER = "stages"
LEFT_OUT = ("slotwise", "MAR-INF")  # the outer archive has them


def with_stages(
    spec: ModelSpec, folder: Path, place: Path, build: Callable[[Path, Path], Path]
) -> tuple[ModelSpec, list[Path]]:
    """The description with what the worker reads of its stages, and `place`, in which they are laid out.

    place: an empty folder of this build alone. build(folder, out): builds a stage's archive. Raises SlotwiseError for stages
    that are not for one process.
    """
    if (spec.handler == HANDLER) != bool(spec.stages):
        raise SlotwiseError(
            f'{spec.name}: handler = "{HANDLER}" and [[stages]] belong together',
            'write [[stages]] and below it name = "find", model = "FOLDER", once for each',
        )
    if not spec.stages:
        return spec, []
    names = [stage.name for stage in spec.stages]
    if len(names) < 2 or len(set(names)) < len(names):
        raise SlotwiseError(f"{spec.name}: [[stages]] are two or more, of different names", "one model alone needs no stages")
    about: list[dict[str, str]] = []
    modules: dict[str, str] = {}
    for stage in spec.stages:
        with tempfile.TemporaryDirectory(prefix="slotwise-stage-") as name:
            archive = build(stage_folder(folder, stage.model), Path(name))
            handler = inspect(archive).handler.partition(":")[0]
            laid_out = extract(archive, place / FOLDER / stage.name)
        for part in LEFT_OUT:
            shutil.rmtree(laid_out / part)
        for module in _modules(laid_out, handler):
            if modules.setdefault(module, stage.name) != stage.name:
                raise SlotwiseError(
                    f"{spec.name}: the stages {modules[module]} and {stage.name} both bring {module}",
                    "call one of them otherwise",
                )
        about.append({"name": stage.name, "handler": handler})
    told = {**spec.options, FOLDER: about}
    return spec.model_copy(update={"options": told, "files": [*spec.files, FOLDER]}), [place]


def _modules(folder: Path, handler: str) -> list[str]:
    """The names under which Python would import what a stage brings, its handler left out: that one has a name of its own."""
    files = {file.relative_to(folder) for kind in ("*.py", "*.so") for file in folder.rglob(kind)} - {Path(handler)}
    return sorted({file.parts[0].partition(".")[0] for file in files})
