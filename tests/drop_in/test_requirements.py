"""Archives that name packages which pip is to install for them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.drop_in.own_host import _install
from tests.drop_in.stores import archive
from tests.support.deployments import OURS, deployed
from tests.support.waiting import until

HANDLER = """
import tiny_package

def handle(data, context):
    return data and [tiny_package.VALUE] * len(data)
"""


def wheel(folder: Path, name: str = "tiny_package", version: str = "1.0") -> None:
    """A wheel of one module."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "VALUE = 'from a wheel'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    folder.mkdir()
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as packed:
        for file, text in files.items():
            packed.writestr(file, text)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name, line in (("needs", "tiny_package>=1.0"), ("lacks", "tiny_package==9.9")):
        (tmp_path / f"for-{name}").mkdir()
        (tmp_path / f"for-{name}" / "requirements.txt").write_text(line)
        (tmp_path / f"{name}.py").write_text(HANDLER)
        requirements = {"requirements_file": tmp_path / f"for-{name}" / "requirements.txt"}
        (tmp_path / "config.yaml").write_text("useVenv: true\n")
        archive(tmp_path / "store", name, str(tmp_path / f"{name}.py"), config_file=tmp_path / "config.yaml", **requirements)
    return tmp_path / "store"


def test_they_are_installed_for_its_workers_alone_or_the_model_is_refused(tmp_path: Path, store: Path) -> None:
    wheel(tmp_path / "wheels")
    environ = {"PIP_FIND_LINKS": str(tmp_path / "wheels"), "PIP_NO_INDEX": "1"}
    lines = ("install_py_dep_per_model=true", "default_workers_per_model=1", "enable_model_api=true")
    with deployed(OURS, tmp_path / "d", store, lines, ("--ncs", "--models", "all"), environ) as deployment:
        deployment.wait_ready("needs")
        url = f"{deployment.inference}/predictions/needs"
        answer = deployment.asked("POST", url, headers=deployment.headers("inference"), content=b"x")
        assert (answer.status_code, answer.text) == (200, "from a wheel")
        until(lambda: "Model server started." in deployment.printed(), "it does not start")
        log = (deployment.folder / "logs" / "ts_log.log").read_text("utf-8")
        assert "needs 1.0, requirements.txt: Successfully installed tiny_package-1.0" in log.replace(
            "tiny-package", "tiny_package"
        )
        failure = "Custom pip package installation failed for model lacks: "
        assert f"Failed to load model: lacks.mar: {failure}" in log
        refused = deployment.call("POST", "/models", url="lacks.mar", initial_workers="0")
        assert (refused.status_code, refused.json()["type"]) == (400, "ModelException")
        assert refused.json()["message"].startswith(failure)
        assert "tiny_package==9.9" in refused.json()["message"]
        assert [one["modelName"] for one in deployment.call("GET", "/models").json()["models"]] == ["needs"]
        (packages,) = (deployment.folder / "tmp").glob("slotwise-torchserve-*/models/*@packages")
        assert deployment.call("DELETE", "/models/needs").status_code == 200
        assert not packages.exists()


def test_nothing_is_installed_where_nobody_asked_for_it(tmp_path: Path, store: Path) -> None:
    with deployed(OURS, tmp_path / "d", store, ("default_workers_per_model=1",), ("--ncs", "--models", "needs.mar")) as one:
        until(lambda: "No module named 'tiny_package'" in one.printed(), "no word of what it lacks")
        assert not list((one.folder / "tmp").glob("*/models/*@packages"))
        model_log = one.folder / "logs" / "model_log.log"
        (described,) = one.call("GET", "/models/needs").json()
        assert described["workers"][0]["status"] != "READY"
        assert "Successfully installed" not in model_log.read_text("utf-8")


def test_requirements_may_name_other_files_of_the_archive_and_none_of_them_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheel(tmp_path / "wheels")
    (built,) = (tmp_path / "wheels").iterdir()
    with zipfile.ZipFile(tmp_path / "m.mar", "w") as packed:
        packed.writestr("requirements.txt", "-r extra.txt\n")
        packed.writestr("extra.txt", f"./{built.name}\n")
        packed.write(built, built.name)
        packed.writestr("pip.py", "raise SystemExit('it ran')")
    info = SimpleNamespace(path=tmp_path / "m.mar", requirements="requirements.txt")
    model: Any = SimpleNamespace(info=info, name="m", version="1.0")
    _install(model, tmp_path / "models" / "m@packages")
    assert (tmp_path / "models" / "m@packages" / "tiny_package.py").is_file()
    assert [file.name for file in (tmp_path / "models").iterdir()] == ["m@packages"]
