"""Write a Triton model repository from an archive: `slotwise export triton`.

REPO/NAME/config.pbtxt       from the profile
REPO/NAME/1/model.py         what Triton's python backend runs (model.py beside this file)
REPO/NAME/1/model.mar        the archive, as it was built
REPO/NAME/warmup/example     a body that Triton sends through the model when it loads it
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slotwise.archive.archive_info import check_name
from slotwise.archive.guarding.foreign import need_worker
from slotwise.errors import SlotwiseError
from slotwise.profiles.triton_config import WRITTEN, config_pbtxt
from slotwise.worker.environment.digests import file_sha256

if TYPE_CHECKING:
    from slotwise.archive.archive_info import ArchiveInfo
    from slotwise.profiles.profile import Profile

MODEL = Path(__file__).with_name("model.py")
HOST = "hosts/triton.py"  # an archive whose worker has it runs in Triton


def export(
    info: ArchiveInfo,
    profile: Profile,
    repository: Path,
    *,
    name: str | None = None,
    gpu: bool | None = None,
    overrides: Collection[str] = (),
) -> Path:
    """Write the model into the repository, whose folder is made; its earlier export is replaced. Returns the model's folder.

    profile: as the model wants it. gpu: whether its instances are for GPUs; None: as the profile says.
    overrides: the keys that `--set` and the environment set. Raises SlotwiseError where the archive cannot run there.
    """
    need_worker(info, "Triton", HOST)
    name = name or info.name
    with replaced(repository, name) as partial:
        shutil.copyfile(MODEL, partial / "1" / "model.py")
        _copy(info, partial / "1" / "model.mar")
        if warm_up := example(info):
            (partial / "warmup").mkdir()
            (partial / "warmup" / "example").write_bytes(warm_up)
        write_config(info, profile, partial, name=name, gpu=gpu, overrides=overrides)
    return repository / name


@contextmanager
def replaced(repository: Path, name: str) -> Iterator[Path]:
    """A folder with an empty `1`, which takes the place of an earlier export of that name at the end. Raises SlotwiseError."""
    check_name(name, "--name gives it another:")  # a folder of that name is replaced
    folder = repository / name
    partial, old = (repository / f".{name}.{os.getpid()}.{what}" for what in ("partial", "old"))
    _check_ours(folder)
    for left in (partial, old):
        shutil.rmtree(left, ignore_errors=True)
    try:
        (partial / "1").mkdir(parents=True)
        yield partial
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        for left in (partial, old):
            shutil.rmtree(left, ignore_errors=True)


def _check_ours(folder: Path) -> None:
    """Raise SlotwiseError where something is there that no export wrote: a model's own folder, a Triton model of a person's."""
    if not folder.exists() and not folder.is_symlink():
        return
    config = folder / "config.pbtxt"
    written = not folder.is_symlink() and config.is_file() and config.read_bytes().startswith(WRITTEN.encode())
    if not written or (folder / "model.toml").exists():
        hint = "name another folder with --out, or another model with --name"
        raise SlotwiseError(f"{folder} is there already, and no export wrote it", hint)


def write_config(
    info: ArchiveInfo,
    profile: Profile,
    folder: Path,
    *,
    name: str,
    gpu: bool | None = None,
    overrides: Collection[str] = (),
) -> None:
    """Write config.pbtxt into a model's folder; the arguments are those of `export`."""
    warm_up = folder / "warmup" / "example"
    size = warm_up.stat().st_size if warm_up.exists() else 0
    on_gpu = profile.device == "cuda" if gpu is None else gpu
    config = config_pbtxt(name, profile, info.sha256, gpu=on_gpu, overrides=overrides, warm_up_bytes=size)
    (folder / "config.pbtxt").write_text(config, "utf-8")


def example(info: ArchiveInfo) -> bytes:
    """The first of the bodies that the archive carries as examples; empty where it carries none."""
    names = [entry.name for entry in info.entries if entry.name.startswith("examples/") and entry.size_bytes]
    if not names:
        return b""
    with zipfile.ZipFile(info.path) as source:
        return source.read(min(names))


def _copy(info: ArchiveInfo, target: Path) -> None:
    """Copy the archive: what is written over it later changes no export. Raises SlotwiseError where that happens now."""
    shutil.copyfile(info.path, target)
    if file_sha256(target) != info.sha256:
        raise SlotwiseError(f"{info.path.name} was written while it was exported", "export it again")
