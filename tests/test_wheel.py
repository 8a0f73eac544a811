"""The wheel and the sdist carry what git tracks; the wheel, installed elsewhere, builds models from an empty folder."""

from __future__ import annotations

import email
import email.policy
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
CARRIED = ("handlers", "models", "profiles")
LITTER = (
    "models/ants_bees/weights.pt",  # ignored by git: trained on somebody's pictures
    "models/mine/model.toml",  # not ignored, and not tracked either
    "models/digits/examples/their #1 [draft]!.png",
    "slotwise/draft.py",
    "slotwise/__pycache__/cli.cpython-311.pyc",
    "notes.txt",
)


def git(*arguments: str, cwd: Path) -> str:
    """What git prints."""
    return subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git tracks of this checkout, and beside it what lies in a checkout that is worked in."""
    place = tmp_path_factory.mktemp("checkout")
    for name in git("ls-files", "-z", cwd=ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    git("init", "--quiet", cwd=place)
    git("add", "--all", cwd=place)
    for name in LITTER:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("nobody else's business")
    return place


@pytest.fixture(scope="module")
def built(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkout's sdist, its wheel, and in `again` the wheel that the unpacked sdist gives."""
    out = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check"]
    subprocess.run([*command, "--sdist", "--wheel", "--outdir", str(out), str(checkout)], check=True, stdout=subprocess.DEVNULL)
    with tarfile.open(next(out.glob("*.tar.gz"))) as source:
        source.extractall(out, filter="data")
    unpacked = next(path for path in out.iterdir() if path.is_dir())
    subprocess.run([*command, "--wheel", "--outdir", str(out / "again"), str(unpacked)], check=True, stdout=subprocess.DEVNULL)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The wheel of this checkout."""
    return next(built.glob("slotwise-*.whl"))


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


def test_the_wheel_carries_what_git_tracks_and_nothing_else(checkout: Path, wheel: Path) -> None:
    tracked = [name for name in git("ls-files", cwd=checkout).splitlines() if name.split("/")[0] in ("slotwise", *CARRIED)]
    with zipfile.ZipFile(wheel) as source:
        names = [name for name in source.namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(f"slotwise/_data/{name}" if name.split("/")[0] in CARRIED else name for name in tracked)
    assert "slotwise/worker/handler.py" in names


def test_the_sdist_carries_what_git_tracks_and_builds_the_same_wheel(checkout: Path, built: Path, wheel: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as source:
        names = [member.name.partition("/")[2] for member in source.getmembers() if member.isfile()]
    assert sorted(names) == sorted([*git("ls-files", cwd=checkout).splitlines(), "PKG-INFO"])
    assert next((built / "again").glob("*.whl")).read_bytes() == wheel.read_bytes()


def test_an_editable_install_has_no_copy_beside_it(checkout: Path, tmp_path: Path) -> None:
    code = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=checkout, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as source:
        names = [name for name in source.namelist() if ".dist-info/" not in name]
        assert names == ["_slotwise.pth"]
        assert source.read("_slotwise.pth").decode() == str(checkout)


def test_what_an_index_shows_has_no_broken_link(built: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as source:
        text = source.read(next(name for name in source.namelist() if name.endswith(".dist-info/METADATA"))).decode()
    metadata = email.message_from_string(text, policy=email.policy.default.clone(utf8=True))
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = MarkdownIt().enable("table").parse(metadata.get_payload())
    inline = [token for block in page for token in block.children or []]
    targets = [
        str(token.attrs.get("href") or token.attrs.get("src")) for token in inline if token.type in ("link_open", "image")
    ]
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert [token.content for token in inline if "](" in token.content] == []
    readme = (ROOT / "README.md").read_text("utf-8")
    blocks = [[token.content for token in MarkdownIt().parse(shown) if token.type == "fence"] for shown in (readme, text)]
    assert blocks[0] == blocks[1] != []  # code stays as it is


def test_the_metadata_names_no_host_of_this_machine(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as source:
        text = source.read(next(name for name in source.namelist() if name.endswith(".dist-info/METADATA"))).decode()
    head = text.partition("\n\n")[0]
    assert re.findall(r"https?://\S+|\S+@\S+", head) == []
    assert "License-Expression: Apache-2.0" in head
    assert {f"Classifier: Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)} <= set(head.splitlines())


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
