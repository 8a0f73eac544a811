"""The wheel, installed elsewhere, builds a given model and a new one from an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(out), str(ROOT)], check=True)
    return next(out.glob("slotwise-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `slotwise` command of a fresh environment, which borrows the dependencies that are installed here."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    packages = next((place / "lib").glob("python*/site-packages"))
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return place / "bin" / "slotwise"


def run(command: Path, *arguments: str, cwd: Path) -> str:
    """What the installed command prints."""
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environ["SLOTWISE_HOME"] = str(ROOT / ".slotwise")  # the same make.py, so what it trained for other tests will do
    done = subprocess.run([str(command), *arguments], cwd=cwd, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_carries_handlers_models_and_profiles_and_no_litter(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as source:
        names = source.namelist()
    for kind in ("handlers", "models", "profiles"):
        here = {f"slotwise/_data/{kind}/{file.relative_to(ROOT / kind)}" for file in (ROOT / kind).rglob("*") if file.is_file()}
        assert {name for name in here if "__pycache__" not in name} <= set(names)
    assert "slotwise/worker/handler.py" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests/")]


def test_a_given_model_is_built_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    built = json.loads(run(installed, "build", "digits", "--json", cwd=tmp_path))
    assert Path(built["archive"]) == tmp_path / "model_store" / "digits.mar"
    info = json.loads(run(installed, "inspect", built["archive"], "--json", cwd=tmp_path))
    assert set(info["profiles"]) == {"cpu", "cuda", "deterministic", "ei"}
    assert "slotwise/worker/handler.py" in info["entries"]


def test_a_new_model_is_built_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    run(installed, "new", "mine", cwd=tmp_path)
    run(installed, "build", "mine", cwd=tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine", "model_store"]
    run(installed, "inspect", "model_store/mine.mar", cwd=tmp_path)
