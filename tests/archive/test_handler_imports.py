"""A build imports the handler in a process of its own, and names what is wrong with it: the file, the line, the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwise.archive.build import build
from slotwise.errors import SlotwiseError

pytestmark = pytest.mark.usefixtures("own_home")

HANDLER = """from slotwise.worker import BatchHandler


class Mine(BatchHandler):
    def load(self, model_dir, settings):
        return lambda x: x


handle = Mine.entry_point()
"""


def folder(tmp_path: Path, handler: str, **files: str) -> Path:
    """A model's folder with this own handler and these further modules."""
    mine = tmp_path / "mine"
    mine.mkdir()
    names = [f"{name}.py" for name in files]
    (mine / "model.toml").write_text(f'name = "mine"\nhandler = "gbm.py"\nfiles = {names}\n', "utf-8")
    for name, text in {"gbm": handler, **files}.items():
        (mine / f"{name}.py").write_text(text, "utf-8")
    return mine


@pytest.mark.parametrize(
    ("handler", "files", "message", "hint"),
    [
        (f"{HANDLER}def broken(:\n", {}, r"gbm\.py, line 10: SyntaxError: ", "that line"),
        (f"import no_such_package.trees\n{HANDLER}", {}, r"gbm\.py, line 1: .*'no_such_package'", "brings no_such_package"),
        (f"import parts\n{HANDLER}", {"parts": "x = 1\nx.y\n"}, r"parts\.py, line 2: AttributeError: ", "that line"),
        (f"import parts\n{HANDLER}", {"parts": "x = (\n"}, r"parts\.py, line 1: SyntaxError: ", "that line"),
    ],
    ids=["syntax", "package", "module", "syntax in a module"],
)
def test_a_handler_that_cannot_be_imported_is_refused(
    tmp_path: Path, handler: str, files: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(SlotwiseError, match=message) as refused:
        build(folder(tmp_path, handler, **files), tmp_path / "store")
    assert hint in refused.value.hint
    assert not list((tmp_path / "store").glob("*"))


def test_one_that_can_is_built(tmp_path: Path) -> None:
    assert build(folder(tmp_path, HANDLER), tmp_path / "store").is_file()


def test_where_one_fails_to_load_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(folder(tmp_path, HANDLER.replace("return lambda x: x", "import no_such_package")), tmp_path / "store")
    assert "gbm.py, line 6: ModuleNotFoundError: No module named 'no_such_package'" in " ".join(capsys.readouterr().err.split())
