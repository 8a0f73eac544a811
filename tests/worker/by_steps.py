"""Archives whose answers are decoded step by step: the weights of another archive, under another name."""

from __future__ import annotations

import shutil
from pathlib import Path

from slotwise.archive.build import build
from slotwise.archive.inspection import extract
from slotwise.files import project


def built_by_steps(archive: Path, work: Path, store: Path, decoding: str = "steps") -> Path:
    """Build MODEL-steps of the archive of MODEL."""
    name = f"{archive.stem}-steps"
    made = extract(archive, work / name)
    for carried in ("slotwise", "MAR-INF"):
        shutil.rmtree(made / carried)
    shutil.copytree(made / "examples", made, dirs_exist_ok=True)
    described = (project.model_folder(archive.stem) / "model.toml").read_text("utf-8")
    described = described.replace(f'name = "{archive.stem}"', f'name = "{name}"', 1)
    (made / "model.toml").write_text(described.replace('"closed"', f'"{decoding}"', 1), "utf-8")
    return build(made, store)
