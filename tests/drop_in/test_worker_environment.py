"""What a worker of `slotwise torchserve` has in its environment."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotwise.backends.local.prints import FilePrints
from slotwise.backends.local.worker_link import WorkerCommand
from slotwise.drop_in import own_host
from slotwise.drop_in.configuration import Configuration

PROBE = "import beside, shared\nprint(beside.VALUE, shared.VALUE)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A deployment's modules in `outside`, an archive's in `archive`; `shared` is in both."""
    for place, modules in (("outside", ("beside", "shared")), ("archive", ("shared",))):
        (tmp_path / place).mkdir()
        for module in modules:
            (tmp_path / place / f"{module}.py").write_text(f"VALUE = {place!r}\n")
    (tmp_path / "archive" / "probe.py").write_text(PROBE)
    return tmp_path


def environment_of(keys: dict[str, str], folder: Path) -> dict[str, str]:
    """Of a worker of a model that is registered as `here`."""
    host: Any = object.__new__(own_host.DropInHost)
    host.environ, host.folder = own_host._environ(Configuration(keys)), folder
    host.record = SimpleNamespace(shares={}, overrides=())
    registered = SimpleNamespace(environment=lambda overrides: {})
    profile = SimpleNamespace(workers_by_load="off")
    return dict(host._environ(SimpleNamespace(id="m_1.0", name="here", profile=profile, as_registered=registered)))


def test_modules_are_found_where_pythonpath_names_them_and_the_archives_own_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", "outside")  # from the deployment's folder, not from the worker's
    environ = environment_of({}, folder)
    command = WorkerCommand(
        module="probe", model_dir=folder / "archive", environ=environ, prints=FilePrints(folder / "log"), batch_size=1
    )
    output = os.open(folder / "said", os.O_WRONLY | os.O_CREAT)
    try:
        command.start(output, output).wait(60)
    finally:
        os.close(output)
    assert (folder / "said").read_text() == "outside archive\n"


def test_without_a_pythonpath_there_are_the_archives_modules_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert "SLOTWISE_PACKAGES" not in environment_of({}, folder)


@pytest.mark.parametrize(("keys", "told"), [({}, "true"), ({"decode_input_request": "false"}, "false")])
def test_it_says_whether_bodies_are_decoded(keys: dict[str, str], told: str, tmp_path: Path) -> None:
    assert environment_of(keys, tmp_path)["TS_DECODE_INPUT_REQUEST"] == told


def test_it_says_what_its_model_is_registered_as(tmp_path: Path) -> None:
    assert environment_of({}, tmp_path)["SLOTWISE_REGISTERED_AS"] == "here"
