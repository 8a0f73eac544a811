"""The servers and archives of a measurement, with all their state in its own folder."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.archive.build import build
from slotwise.archive.inspection import extract, inspect
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.deploy.deploy import deploy, registration
from slotwise.frontend import process as gateway_process
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server.lifecycle import Kind, ServerRecord, start, stop


@contextmanager
def server(
    work: Path, kind: Kind = "torchserve", name: str = "default", *, of: str = "cpu", **changes: str
) -> Iterator[ServerRecord]:
    """A server of its own, with the settings of the profile `of` and these changes; its state is below `work`."""
    os.environ["SLOTWISE_HOME"] = str(work)
    (work / "store").mkdir(exist_ok=True)
    profile = load_profile(of, changes, environ={})
    record = start(name, kind, profile, model_store=work / "store", ports=Ports.free(), models={})
    try:
        yield record
    finally:
        gateway_process.stop()
        stop(record)


def built(model: str, work: Path, weights: str | None = None) -> ArchiveInfo:
    """The model's archive in the server's store."""
    say(f"building {model}")
    return inspect(build(model, work / "store", weights))


def built_handler(name: str, work: Path) -> ArchiveInfo:
    """An archive of nothing but the handler benchmarks/measuring/NAME.py."""
    return built(str(handler_folder(name, work)), work)


def handler_folder(name: str, work: Path) -> Path:
    """The folder that such an archive is built from."""
    made = work / name
    made.mkdir()
    (work / "store").mkdir(exist_ok=True)
    shutil.copy(Path(__file__).with_name(f"{name}.py"), made)
    (made / "model.toml").write_text(f'name = "{name}"\nhandler = "{name}.py"\n', "utf-8")
    return made


def unpacked(info: ArchiveInfo, folder: Path) -> Path:
    """The archive's model as a folder to build another one of; its model.toml is not there."""
    made = extract(info.path, folder, trusted=True)
    for carried in ("slotwise", "MAR-INF"):
        shutil.rmtree(made / carried)
    shutil.copytree(made / "examples", made, dirs_exist_ok=True)
    return made


def deployed(record: ServerRecord, info: ArchiveInfo) -> gateway_process.GatewayRecord:
    """The model, registered as the profile says, and a gateway in front of it that is ready; `server` stops both."""
    with ManagementClient(record) as client:
        deploy(client, info, registration(info, load_profile("cpu", environ={}), {}))
    front = gateway_process.start_detached("default", ["--port", "0", "--translation-port", "-1"])
    while not front.status()["ready"]:
        time.sleep(0.2)
    return front
