"""Write a model's folder that builds and serves as it is, to be changed step by step into your own: `slotwise new NAME`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from slotwise.archive.archive_info import check_name
from slotwise.archive.scaffold.pictures import Form, write_picture, write_pipeline
from slotwise.archive.scaffold.tables import write_sklearn, write_tabular, write_tensors
from slotwise.archive.scaffold.words import write_stream
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.files.disk import whole_folder

Kind = Literal["picture", "text", "tabular", "sklearn", "onnx", "pipeline", "stream"]
TEXT = "moods"  # the given model that `text` begins with


def new(name: str, form: Form | None = None, kind: Kind = "picture") -> list[Path]:
    """Write the folder NAME (or PATH/NAME) and return its files.

    kind: what it answers. picture: a network of pictures. text: a Hugging Face classifier, trained at the first build.
    tabular: rows of a table, by an ONNX graph. sklearn: the same by scikit-learn itself. onnx: named tensors. pipeline: two
    models in one archive. stream: an answer that comes piece by piece. form: of a picture's weights; None is torch where that
    is installed, onnx elsewhere.

    Raises SlotwiseError where the folder exists already, or torch is wanted and not installed.
    """
    folder = Path(name)
    check_name(folder.name)
    if not name.isprintable():  # model.toml begins with the commands to type
        raise SlotwiseError(f"{name!a} cannot be written into a text", "choose another folder")
    if folder.exists():
        raise SlotwiseError(f"{folder} exists already", "choose another name, or delete it first")
    with whole_folder(folder):
        if kind == "picture":
            write_picture(folder, form)
        else:
            WRITERS[kind](folder)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def write_text(folder: Path) -> None:
    """The given model `moods` under another name."""
    shutil.copytree(project.model_folder(TEXT), folder, ignore=shutil.ignore_patterns("__pycache__"))
    toml = folder / "model.toml"
    described = re.sub(r'^name = ".*"', f'name = "{folder.name}"', toml.read_text("utf-8"), count=1, flags=re.MULTILINE)
    head = f"# Build:  slotwise build {folder}  (runs make.py; put what your save_pretrained wrote into model/ in its place)\n"
    tried = f"# Serve:  slotwise serve {folder}\n# Try:    slotwise predict {folder.name} {folder}/examples/good.txt\n"
    toml.write_text(head + tried + described, "utf-8")


WRITERS: dict[str, Callable[[Path], None]] = {
    "text": write_text,
    "tabular": write_tabular,
    "sklearn": write_sklearn,
    "onnx": write_tensors,
    "pipeline": write_pipeline,
    "stream": write_stream,
}
