"""A user's own model: a folder with model.toml and weights in any form, no Python written."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slotwise.archive.build import build
from slotwise.archive.inspection import extract
from slotwise.archive.scaffold import new as scaffold
from slotwise.check.conformance import check
from slotwise.deploy.deploy import obtain
from slotwise.errors import SlotwiseError
from slotwise.worker.engines import load_engine
from slotwise.worker.environment.settings import Settings
from tests.archive.foreign_archives import FUNCTION, legacy_archive, torch_archive
from tests.support.archives import unproven

torch = pytest.importorskip("torch")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `slotwise new mine` writes."""
    monkeypatch.chdir(tmp_path)
    scaffold.new("mine")
    return tmp_path / "mine"


def network(mine: Path) -> torch.nn.Module:
    """The folder's own network with its weights."""
    from slotwise.worker.engines.torch import build_module

    net = build_module(mine / "net.py", "Net")
    net.load_state_dict(torch.load(mine / "weights.pt", weights_only=True))
    return net.eval()


def test_an_archive_that_is_older_than_its_model_is_served_with_a_word(mine: Path) -> None:
    heard: list[str] = []

    def obtained() -> list[str]:
        heard.clear()
        obtain("mine", mine.parent / "store", say=heard.append)
        return heard

    assert obtained() == ["building mine.mar"]
    assert obtained() == []
    described = (mine / "model.toml").read_text("utf-8")
    (mine / "model.toml").write_text(f"{described}\n[profiles.cpu]\nbatch_size = 3\n", "utf-8")
    assert obtained() == ["mine.mar was built before model.toml was changed: `slotwise build mine` takes the change over"]
    (mine / "model.toml").write_text(described, "utf-8")
    assert obtained() == []
    with (mine / "weights.pt").open("ab") as weights:
        weights.write(b" ")
    assert "before weights.pt was changed" in obtained()[0]


HANDLER = """
from slotwise.worker import BatchHandler
handle = BatchHandler
"""


def small(folder: Path, name: str, version: str) -> Path:
    """A model that is built without a proof."""
    folder.mkdir(exist_ok=True)
    (folder / "h.py").write_text(HANDLER)
    (folder / "model.toml").write_text(f'name = "{name}"\nversion = "{version}"\nhandler = "h.py"\n')
    return folder


def test_an_archive_that_is_older_than_its_model_is_checked_with_a_word(tmp_path: Path) -> None:
    def checked(*names: str) -> str:
        command = [sys.executable, "-m", "slotwise.cli", "check", *names]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stderr  # it ends for want of an example

    build(small(tmp_path / "mine", "mine", "1.0"), tmp_path / "model_store", prove=unproven)
    assert "was changed" not in checked("mine")
    (tmp_path / "mine" / "h.py").write_text(f"{HANDLER}# otherwise\n")
    note = "mine.mar was built before h.py was changed: `slotwise build mine` takes the change over"
    assert note in " ".join(checked("mine").split())
    assert "was changed" not in checked("model_store/mine.mar")


def test_another_models_archive_is_no_target(tmp_path: Path) -> None:
    store = tmp_path / "store"

    def made(name: str, version: str) -> str:
        return build(small(tmp_path / name, name, version), store, prove=lambda laid_out, spec: None).name

    assert [made("yolo", "7"), made("yolo-8", "1.0")] == ["yolo.mar", "yolo-8.mar"]
    before = (store / "yolo-8.mar").read_bytes()
    with pytest.raises(SlotwiseError, match=r"yolo-8\.mar is the archive of another model, 'yolo-8'"):
        made("yolo", "8")
    with pytest.raises(SlotwiseError, match="of another model"):
        obtain(str(tmp_path / "yolo"), store)
    assert (store / "yolo-8.mar").read_bytes() == before
    (store / "yolo-8.mar").unlink()
    assert [made("yolo", "8"), made("yolo", "8"), made("yolo", "7")] == ["yolo-8.mar", "yolo-8.mar", "yolo.mar"]
    with pytest.raises(SlotwiseError, match="of another model, 'yolo'"):
        made("yolo-8", "1.0")


def test_another_tools_archive_is_no_target(tmp_path: Path) -> None:
    for theirs in (torch_archive(tmp_path, FUNCTION), legacy_archive(tmp_path / "legacy.mar")):
        before = theirs.read_bytes()
        with pytest.raises(SlotwiseError, match=f"{theirs.name} is an archive of another tool"):
            build(small(tmp_path / "own", theirs.stem, "1.0"), tmp_path, prove=lambda laid_out, spec: None)
        assert theirs.read_bytes() == before
        assert not theirs.with_name(f"{theirs.stem}.report.json").exists()


def test_an_archive_does_not_replace_another_of_its_name(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, here = mine.parent / "store", mine.parent / "here"
    path = build("mine", here)
    assert obtain(str(path), store).path == obtain(str(path), store).path == store / "mine.mar"
    first = (store / "mine.mar").read_bytes()
    (mine / "model.toml").write_text((mine / "model.toml").read_text("utf-8") + "\n[profiles.cpu]\nbatch_size = 3\n", "utf-8")
    build("mine", here)
    with pytest.raises(SlotwiseError, match=r"mine\.mar is there already, with another content") as refused:
        obtain(str(path), store)
    assert refused.value.hint.startswith(f"`cp {path} {store / 'mine.mar'}` replaces it")
    assert (store / "mine.mar").read_bytes() == first

    def full(source: Path, target: Path) -> None:
        target.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        obtain(str(path), mine.parent / "other")
    assert not list((mine.parent / "other").iterdir())


def weights_section(mine: Path, lines: str) -> None:
    """Replace [weights] in the folder's model.toml."""
    text = (mine / "model.toml").read_text()
    (mine / "model.toml").write_text(text.split("[weights]")[0] + f"[weights]\n{lines}\n")


def write_weights(form: str, mine: Path) -> None:
    """The same weights in another form."""
    net, example = network(mine), torch.zeros(2, 3, 32, 32)
    batch = torch.export.Dim("batch", min=1, max=64)
    if form == "legacy .pt":
        torch.save(net.state_dict(), mine / "weights.pt", _use_new_zipfile_serialization=False)
    elif form == "torchscript":
        torch.jit.save(torch.jit.script(net), mine / "model.pt")
        weights_section(mine, 'torchscript = "model.pt"')
    elif form == "export":
        torch.export.save(torch.export.export(net, (example,), dynamic_shapes=({0: batch},)), mine / "model.pt2")
        weights_section(mine, 'export = "model.pt2"')
    elif form == "onnx":
        torch.onnx.export(
            net, (example,), mine / "model.onnx", dynamic_shapes=({0: batch},), external_data=False, verbose=False
        )
        weights_section(mine, 'onnx = "model.onnx"')


@pytest.mark.parametrize("form", ["state_dict", "legacy .pt", "torchscript", "export", "onnx"])
def test_every_form_of_weights_gives_the_networks_own_outputs(mine: Path, tmp_path: Path, form: str) -> None:
    write_weights(form, mine)
    model_dir = extract(build(mine), tmp_path / "extracted")
    engine = load_engine(model_dir, Settings.load(model_dir, {}).but(batch_size=4))
    inputs = np.random.default_rng(0).standard_normal((4, 3, 32, 32)).astype(np.float32)
    expected = network(mine)(torch.from_numpy(inputs)).detach().numpy()
    np.testing.assert_allclose(np.asarray(engine(inputs)), expected, atol=0.05)


def test_a_new_model_keeps_every_promise_on_both_servers(mine: Path) -> None:
    report = check(build("mine"), batch_size=4)
    assert all(verdict.holds for verdicts in report.verdicts.values() for verdict in verdicts), report


def test_a_pickle_is_refused_at_build_and_nothing_in_it_runs(mine: Path) -> None:
    torch.save(network(mine), mine / "weights.pt")  # the module itself, not its tensors
    with pytest.raises(SlotwiseError, match=r"weights\.pt is not a state_dict"):
        build("mine")


def test_tensors_that_do_not_fit_are_named_at_build(mine: Path) -> None:
    torch.save({"head.weight": torch.zeros(3, 3)}, mine / "weights.pt")
    with pytest.raises(SlotwiseError, match=r"does not fit net\.py: .*Missing key.* \"head.bias\""):
        build("mine")


def test_new_refuses_an_existing_folder_and_an_odd_name(mine: Path) -> None:
    with pytest.raises(SlotwiseError, match="mine exists already"):
        scaffold.new("mine")
    with pytest.raises(SlotwiseError, match="cannot be a model's name"):
        scaffold.new("a b")
