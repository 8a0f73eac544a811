"""Archives: the same inputs give the same bytes, the same work is not done twice, and nothing changed passes for built."""

from __future__ import annotations

import copy
import errno
import hashlib
import io
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.archive.build import build
from slotwise.archive.inspection import extract, inspect, opened
from slotwise.archive.store import archive_file
from slotwise.archive.zip_safety import check_entries
from slotwise.bench.bodies import RequestBody, examples
from slotwise.check.real_worker import RealWorker
from slotwise.commands import archive as commands
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.worker.environment.digests import file_sha256
from tests.support.archives import unproven

pytestmark = pytest.mark.usefixtures("own_home")

DIGESTS = "MAR-INF/DIGESTS.json"
HANDLER = """
import slotwise.worker
def handle(data, context):
    return data and [{"from": slotwise.worker.__file__}] * len(data)
"""
MAKE = """
from pathlib import Path
import helper
def make(out, weights, progress):
    (out / "net.bin").write_text(f"{helper.SIZE} {weights}")
    with (Path(__file__).parent / "made.log").open("a") as log:
        log.write("made\\n")
    return {"accuracy": 0.98}
"""


def folder(place: Path, **extra: str) -> Path:
    """A model's folder with a handler, one data file and a nested one."""
    (place / "words").mkdir(parents=True)
    spec = 'name = "toy"\nhandler = "serve_toy.py"\nfiles = ["data.txt", "words"]\nexamples = ["one.txt"]\n'
    files = {"model.toml": spec, "serve_toy.py": HANDLER, "data.txt": "data", "words/list.txt": "a b", "one.txt": "1"}
    for name, text in {**files, **extra}.items():
        (place / name).write_text(text)
    return place


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small archive, built once; nobody changes it."""
    place = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTWISE_HOME", str(place / "home"))
        return build(folder(place / "toy"), place / "store")


@pytest.fixture
def built(made: Path, tmp_path: Path) -> Path:
    """A copy of the small archive, to be changed."""
    (tmp_path / "store").mkdir()
    return Path(shutil.copy(made, tmp_path / "store"))


def names(path: Path) -> list[str]:
    """What is in an archive, in order."""
    with zipfile.ZipFile(path) as source:
        return source.namelist()


def test_an_archive_carries_handler_files_worker_settings_and_digests(built: Path) -> None:
    found = names(built)
    assert {"serve_toy.py", "data.txt", "words/list.txt", "examples/one.txt", "slotwise.json"} <= set(found)
    assert {"slotwise/__init__.py", "slotwise/worker/handler.py", "slotwise/worker/engines/__init__.py"} <= set(found)
    assert not [name for name in found if "__pycache__" in name or name.startswith("slotwise/c")]
    info = inspect(built)
    assert (info.name, info.version, info.handler) == ("toy", "1.0", "serve_toy.py")
    assert {"modelName", "modelVersion", "handler"} <= info.manifest["model"].keys()
    assert {"runtime", "archiverVersion", "createdOn"} <= info.manifest.keys()
    assert info.model["files"] == ["data.txt", "words"]
    assert set(info.profiles) == set(project.profiles())
    with zipfile.ZipFile(built) as source:
        assert set(json.loads(source.read(DIGESTS))["files"]) == set(found) - {DIGESTS}


def test_two_builds_of_the_same_inputs_are_identical(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = built.read_bytes()
    elsewhere = folder(tmp_path / "elsewhere")
    for file in elsewhere.rglob("*"):
        os.utime(file, (1, 1))
    (elsewhere / "data.txt").chmod(0o600)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert build(elsewhere, tmp_path / "second").read_bytes() == first
    report = json.loads((tmp_path / "second" / "toy.report.json").read_text())
    assert report["sha256"] == file_sha256(built)


def test_an_archive_and_its_report_are_both_replaced_or_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, store = folder(tmp_path / "toy"), tmp_path / "store"
    build(mine, store, prove=unproven)
    before = {file.name: file.read_bytes() for file in store.iterdir()}
    (mine / "data.txt").write_text("other")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr("slotwise.archive.build.file_sha256", full)  # once it is packed, and before its report
        with pytest.raises(OSError, match="no space left"):
            build(mine, store, prove=unproven)
    assert {file.name: file.read_bytes() for file in store.iterdir()} == before


def test_building_leaves_other_peoples_temporary_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    mine = folder(tmp_path / "toy")  # torch-model-archiver deletes $TMPDIR/MODEL_NAME before it starts
    build(mine, tmp_path / "store")
    assert (mine / "data.txt").read_text() == "data"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["store", "toy"]


def test_make_runs_once_for_the_same_inputs(tmp_path: Path) -> None:
    spec = 'name = "toy"\nhandler = "serve_toy.py"\nfiles = ["net.bin"]\n'
    place = folder(tmp_path / "toy", **{"model.toml": spec, "make.py": MAKE, "helper.py": "SIZE = 3\n"})

    def made() -> int:
        return len((place / "made.log").read_text().splitlines())

    path = build(place, tmp_path / "store", prove=unproven)
    assert json.loads((tmp_path / "store" / "toy.report.json").read_text())["measured"] == {"accuracy": 0.98}
    first = path.read_bytes()
    assert build(place, tmp_path / "store", prove=unproven).read_bytes() == first
    (place / "model.toml").write_text(spec + "[profiles.cpu]\nbatch_size = 4\n")  # serving differently is not training anew
    build(place, tmp_path / "store", prove=unproven)
    assert made() == 1
    build(place, tmp_path / "store", weights="none", prove=unproven)
    assert made() == 2
    (place / "helper.py").write_text("SIZE = 4\n")
    build(place, tmp_path / "store", prove=unproven)
    assert made() == 3
    assert "helper" not in sys.modules


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"make.py": "def make(out, weights, progress):\n    1 / 0\n"}, r"make.py failed at line 2: ZeroDivisionError"),
        ({"make.py": "import sys\n\ndef make(out, weights, progress):\n    sys.exit(0)\n"}, r"failed at line 4: SystemExit: 0"),
        ({"make.py": "raise ValueError('one\\n  two')\n"}, r"make.py failed at line 1: ValueError: one two"),
        ({"make.py": "import no_such_thing\n"}, r"make.py needs the Python package no_such_thing"),
        ({"model.toml": 'name = "toy"\nhandler = "serve_toy.py"\nfiles = ["gone.txt"]\n'}, r"gone.txt is named in model.toml"),
        ({"model.toml": 'name = "toy"\nhandler = "serve_toy.py"\n[profiles.cpu]\nbatchsize = 1\n'}, r"toy: .*cpu.*'batchsize'"),
        ({"model.toml": 'name = "toy"\nhandler = "serve_toy.py"\n[profiles.gpu]\n'}, r"\[profiles.gpu\] is not a profile"),
        ({"model.toml": 'name = "toy"\nhandler = "nothing"\n'}, r"there is no handler 'nothing'"),
        ({"model.toml": 'name = "toy"\nhandler = "serve_toy.py"\nfiles = ["slotwise"]\n'}, r"cannot be called slotwise"),
    ],
)
def test_what_cannot_be_built_is_one_line(tmp_path: Path, files: dict[str, str], message: str) -> None:
    (tmp_path / "toy" / "slotwise").mkdir(parents=True)
    for name, text in {"model.toml": 'name = "toy"\nhandler = "serve_toy.py"\n', "serve_toy.py": HANDLER, **files}.items():
        (tmp_path / "toy" / name).write_text(text)
    with pytest.raises(SlotwiseError, match=message) as raised:
        build(tmp_path / "toy", tmp_path / "store")
    assert "\n" not in raised.value.message
    assert raised.value.hint
    assert not list((tmp_path / "store").glob("*.mar*")) if (tmp_path / "store").exists() else True


def test_what_a_make_script_prints_is_no_part_of_the_commands_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = 'import subprocess\nprint("own")\ndef make(out, weights, progress):\n    subprocess.run(["echo", "a child"])\n'
    spec = 'name = "toy"\nhandler = "serve_toy.py"\n'
    place = folder(tmp_path / "toy", **{"model.toml": spec, "make.py": script})
    build(place, tmp_path / "store", prove=unproven)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert {"own", "a child"} <= set(printed.err.splitlines())


@pytest.mark.parametrize("kind", ["torchserve", "mms"])
def test_the_archives_own_worker_code_wins_over_an_installed_slotwise(built: Path, tmp_path: Path, kind: str) -> None:
    model_dir = extract(built, tmp_path / "model")
    environ = {**os.environ, "PYTHONPATH": f"{model_dir}{os.pathsep}{tmp_path}"}  # as both servers set it
    with RealWorker(kind, model_dir, tmp_path / "run", 30.0, environ) as worker:
        worker.load("toy", "serve_toy.py", 2)
        answers = worker.predict([RequestBody(b"1"), RequestBody(b"2")])
    assert [Path(answer.value()["from"]).is_relative_to(model_dir) for answer in answers] == [True, True]


# What inspect refuses ------------------------------------------------------------------------------------------------


def rewritten(path: Path, change: Callable[[dict[str, bytes]], Iterable[tuple[zipfile.ZipInfo | str, bytes]] | None]) -> Path:
    """The archive with its files changed; `change` may return entries to add as they are."""
    with zipfile.ZipFile(path) as source:
        files = {name: source.read(name) for name in source.namelist()}
    more = list(change(files) or [])
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as target:
        warnings.simplefilter("ignore")
        for name, data in [*files.items(), *more]:
            target.writestr(name, data)
    return path


def special(name: str, mode: int = 0o100644, **fields: int) -> zipfile.ZipInfo:
    """An entry that no honest tool writes."""
    entry = zipfile.ZipInfo(name)
    entry.external_attr = mode << 16
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry


def tampered(files: dict[str, bytes]) -> None:
    """The handler does something else."""
    files["serve_toy.py"] += b"\nprint('hello')\n"


FAULTS: dict[str, tuple[Callable[[dict[str, bytes]], object], str]] = {
    "tampered": (tampered, "serve_toy.py is not the file that was built"),
    "missing": (lambda files: files.pop("data.txt") and None, "lacks data.txt"),
    "extra": (lambda files: [("numpy.py", b"")], "carries numpy.py, which its digests do not list"),
    "no digests": (lambda files: files.pop(DIGESTS) and None, "carries no MAR-INF/DIGESTS.json"),
    "no manifest": (lambda files: files.pop("MAR-INF/MANIFEST.json") and None, "has no MAR-INF/MANIFEST.json"),
    "empty manifest": (lambda files: files.update({"MAR-INF/MANIFEST.json": b"{}"}), "names no model and handler"),
    "digests not JSON": (lambda files: files.update({DIGESTS: b"\xff"}), "is not JSON"),
    "digests a list": (lambda files: files.update({DIGESTS: b"[]"}), "is not a JSON object"),
    "traversal": (lambda files: [("../evil.py", b"")], "'../evil.py' would be unpacked outside"),
    "nested traversal": (lambda files: [("words/../../evil.py", b"")], "would be unpacked outside"),
    "absolute": (lambda files: [(special("/etc/evil"), b"")], "would be unpacked outside"),
    "backslash": (lambda files: [(special("..\\evil.py"), b"")], "would be unpacked outside"),
    "duplicate": (lambda files: [("serve_toy.py", b"")], "'serve_toy.py' is in it twice"),
    "same name in capitals": (lambda files: [("SERVE_TOY.py", b"")], "is in it twice"),
    "control character": (lambda files: [("a\x1b[2J.py", b"")], "cannot be printed"),
    "symlink": (lambda files: [(special("link", stat.S_IFLNK | 0o777), b"/etc/passwd")], "is a link or a device"),
    "bomb": (lambda files: [(special("bomb", compress_type=zipfile.ZIP_DEFLATED), bytes(4 << 20))], "would grow"),
    "odd compression": (lambda files: [(special("x", compress_type=zipfile.ZIP_LZMA), b"x")], "the servers do not read"),
    "too many": (lambda files: [(f"f{i}", b"") for i in range(10_001)], "more than 10000"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_inspect_refuses(built: Path, fault: str) -> None:
    change, message = FAULTS[fault]
    with pytest.raises(SlotwiseError, match=message):
        inspect(rewritten(built, change))  # type: ignore[arg-type]
    if fault not in ("empty manifest", "no manifest"):
        with pytest.raises(SlotwiseError):
            extract(built, built.parent / "out")
    assert not (built.parent / "out").exists()
    assert not (built.parent / "evil.py").exists()


def test_inspect_refuses_an_archive_cut_short_or_flipped_anywhere(built: Path) -> None:
    whole = built.read_bytes()
    for cut in [0, 1, 30, *range(100, len(whole), len(whole) // 9), len(whole) - 1]:
        built.write_bytes(whole[:cut])
        with pytest.raises(SlotwiseError, match="truncated or damaged"):
            inspect(built)
    for at in range(0, len(whole), len(whole) // 60):
        built.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            inspect(built)
        except SlotwiseError:
            continue
        with zipfile.ZipFile(built) as source:  # a bit that means nothing (a date, say) may differ; no file's byte may
            assert {name: source.read(name) for name in source.namelist()} == _files(whole, built)


def _files(whole: bytes, path: Path) -> dict[str, bytes]:
    path.write_bytes(whole)
    with zipfile.ZipFile(path) as source:
        return {name: source.read(name) for name in source.namelist()}


def test_inspect_refuses_what_the_directory_does_not_list(built: Path) -> None:
    """Java reads the file front to back and would unpack such an entry; Python reads the directory and would not see it."""
    whole, files = built.read_bytes(), _files(built.read_bytes(), built)
    with zipfile.ZipFile(built, "w") as target:
        for name, data in [("evil.py", b"hidden"), *files.items()]:
            target.writestr(name, data)
        target.filelist.pop(0)
    with pytest.raises(SlotwiseError, match="something unlisted lies before"):
        inspect(built)
    built.write_bytes(b"#!/bin/sh\n" + whole)
    with pytest.raises(SlotwiseError, match="something unlisted lies before"):
        inspect(built)
    with zipfile.ZipFile(built, "w") as target:
        for name, data in [*files.items(), ("evil.py", b"hidden")]:
            target.writestr(name, data)
        target.filelist.pop()
    with pytest.raises(SlotwiseError, match="something unlisted lies behind"):
        inspect(built)


def test_inspect_refuses_a_damaged_deflated_archive(built: Path) -> None:
    with zipfile.ZipFile(built, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("words", bytes(range(256)) * 9)
    whole = bytearray(built.read_bytes())
    whole[30 + len("words")] = 0xFF
    built.write_bytes(whole)
    with pytest.raises(SlotwiseError, match="truncated or damaged"):
        inspect(built)


def test_what_cannot_be_written_is_no_damage(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(SlotwiseError, match=r"toy\.mar cannot be unpacked to .*File exists"):
        extract(built, tmp_path)
    with pytest.raises(OSError, match="No space left"), opened(built):
        full()  # what is written of it
    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    with pytest.raises(SlotwiseError, match="No space left"):
        extract(built, tmp_path / "out")


def zipped(*entries: tuple[zipfile.ZipInfo | str, bytes], method: int = zipfile.ZIP_STORED, stream: bool = False) -> io.BytesIO:
    """A zip file by Python; stream: written to what cannot seek, so that the sizes follow the data."""
    file = io.BytesIO()
    with zipfile.ZipFile(SimpleNamespace(write=file.write, flush=file.flush) if stream else file, "w", method) as target:
        for name, data in entries:
            target.writestr(name, data)
    return file


def judged(file: io.BytesIO) -> None:
    with zipfile.ZipFile(file) as source:
        assert source.testzip() is None  # Python sees nothing wrong
        check_entries(Path("toy.mar"), source)


HIDDEN = zipped(("serve_toy.py", b"evil")).getvalue()[: 30 + len("serve_toy.py") + len("evil")]
ABC = zlib.compress(b"abc", wbits=-15)
SHORT = {"compress_size": 3, "file_size": 3}
STREAMED: dict[str, Any] = {"compress_type": zipfile.ZIP_DEFLATED, "flag_bits": 8}


def test_an_entry_has_one_name() -> None:
    """Java takes the name before the data, Python the directory's, or one beside it."""
    data = zipped(("aa.py", b"1")).getvalue()
    for name in (b"bb.py", b"../..", b"aa\xffpy"):
        other = io.BytesIO(data.replace(b"aa.py", name, 1))
        with zipfile.ZipFile(other) as source, pytest.raises(SlotwiseError, match="not as its directory says"):
            check_entries(Path("toy.mar"), source)
    with zipfile.ZipFile(io.BytesIO(data)) as source:
        source.infolist()[0].filename = "../evil.py"  # as a Python does that reads Info-ZIP's Unicode Path
        with pytest.raises(SlotwiseError, match="a second name"):
            check_entries(Path("toy.mar"), source)


def descriptor(packed: bytes) -> bytes:
    return struct.pack("<4sLLL", b"PK\x07\x08", zlib.crc32(b"abc"), len(packed), 3)


def carrier(
    packed: bytes, data: bytes = b"abc", own: dict[str, Any] | None = None, after: bytes = b"", **fields: int
) -> io.BytesIO:
    """A zip with one entry made by hand: `fields` and sizes as the directory lists them, `own` as its own header says."""
    entry = special("carrier", header_offset=0, CRC=zlib.crc32(data), file_size=len(data), compress_size=len(packed), **fields)
    header = copy.copy(entry)
    for field, value in (own or {}).items():
        setattr(header, field, value)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as target:
        file.write(header.FileHeader(zip64=False) + packed + after)
        target.filelist.append(entry)
        target.start_dir, target._didModify = file.tell(), True  # type: ignore[attr-defined]
    return file


@pytest.mark.parametrize(
    "file",
    [
        carrier(b"abc" + HIDDEN, own=SHORT),
        carrier(b"abc" + HIDDEN, b"abc" + HIDDEN, own=SHORT),
        carrier(b"abc" + HIDDEN, b"abc" + HIDDEN, own={"extra": struct.pack("<HHQQ", 1, 16, 3, 3)}),
        carrier(ABC, ABC, own={"compress_type": zipfile.ZIP_DEFLATED}),
        carrier(ABC, compress_type=zipfile.ZIP_DEFLATED, own={"flag_bits": 8}),
        carrier(ABC + descriptor(ABC) + HIDDEN, after=descriptor(ABC + descriptor(ABC) + HIDDEN), **STREAMED),
        carrier(ABC, after=bytes(24), **STREAMED),
        carrier(b"abc", after=descriptor(b"abc"), flag_bits=8),
        carrier(zlib.compress(b"abc" + bytes(99), wbits=-15), compress_type=zipfile.ZIP_DEFLATED),
    ],
    ids=["stored", "sizes", "zip64", "method", "flag", "deflated", "descriptor", "stored stream", "more than listed"],
)
def test_inspect_refuses_what_java_would_read_otherwise(file: io.BytesIO) -> None:
    """Java goes from header to header: what its directory says of an entry must be what the entry's own header says."""
    with pytest.raises(SlotwiseError, match=r"without a size of its own|not as its directory|fill its place|behind its last"):
        judged(file)


@given(
    st.dictionaries(st.sampled_from("abcd"), st.binary(max_size=99) | st.just(bytes(range(256)) * 300)),
    st.sampled_from([(zipfile.ZIP_STORED, False), (zipfile.ZIP_DEFLATED, False), (zipfile.ZIP_DEFLATED, True)]),
)
def test_what_honest_tools_write_is_sound(files: dict[str, bytes], how: tuple[int, bool]) -> None:
    judged(zipped(*files.items(), method=how[0], stream=how[1]))


def test_large_entries_and_folders_are_sound() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("words/", b"")
        with target.open("large", "w", force_zip64=True) as entry:
            entry.write(b"weights")
    judged(file)


def test_the_command_line_says_it_in_one_line(built: Path, tmp_path: Path) -> None:
    slotwise = [sys.executable, "-m", "slotwise.cli"]
    shown = subprocess.run([*slotwise, "inspect", str(built), "--json"], capture_output=True, text=True, cwd=tmp_path)
    assert json.loads(shown.stdout)["entries"]["data.txt"]["size_bytes"] == 4
    rewritten(built, tampered)
    for path, said in ((built, "serve_toy.py is not the file"), (tmp_path / "none.mar", "there is no archive")):
        refused = subprocess.run([*slotwise, "inspect", str(path)], capture_output=True, text=True, cwd=tmp_path)
        assert refused.returncode == 1
        assert said in refused.stderr
        assert "hint:" in refused.stderr
        assert len(refused.stderr.splitlines()) == 2


def test_the_script_builds_what_it_is_given_and_says_what_it_could_not(tmp_path: Path) -> None:
    script = [sys.executable, str(Path(__file__).parents[2] / "scripts" / "build_archives.py"), "--out", "store"]
    command = [*script, str(folder(tmp_path / "toy")), "no_such_model"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "toy.mar" in done.stdout
    assert "there is no model 'no_such_model'" in done.stderr
    assert (tmp_path / "store" / "toy.mar").is_file()


# What `tests/campaign archives` found --------------------------------------------------------------------------


def digested(files: dict[str, bytes]) -> None:
    """The right digests: as somebody writes them who knows the format."""
    listed = {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != DIGESTS}
    files[DIGESTS] = json.dumps({"algorithm": "sha256", "files": listed}).encode()


def with_json(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, bytes]], None]:
    """One file's JSON changed, and the right digests."""

    def changed(files: dict[str, bytes]) -> None:
        content = json.loads(files[name])
        change(content)
        files[name] = json.dumps(content).encode()
        digested(files)

    return changed


def nested(depth: int) -> list[Any]:
    return [] if depth == 0 else [nested(depth - 1)]


MANIFEST = "MAR-INF/MANIFEST.json"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_json("slotwise.json", lambda all: all.update(model=5)), "does not describe a model"),
        (with_json("slotwise.json", lambda all: all.update(profiles=[1])), "does not describe a model"),
        (with_json("slotwise.json", lambda all: all["model"].update(options={"onnx": [1]})), "does not describe a model"),
        (with_json("slotwise.json", lambda all: all["model"].update(profiles={"cpu": 1})), "does not describe a model"),
        (with_json("slotwise.json", lambda all: all["profiles"].update({"\x1b[2J": {}})), "does not describe a model"),
        (with_json("slotwise.json", lambda all: all.update(worker="2")), "does not describe a model"),
        (with_json("slotwise.json", lambda all: all.update(deep=nested(400))), "nested too deeply"),
        (with_json(MANIFEST, lambda all: all["model"].update(modelVersion="\x1b[2J")), "versions cannot be printed"),
        (lambda files: [("./data.txt", b"other")], "a name for which there is a shorter one"),
        (lambda files: [("words/./list.txt", b"other")], "a name for which there is a shorter one"),
    ],
)
def test_inspect_refuses_nonsense_with_the_right_digests(built: Path, change: Any, message: str) -> None:
    with pytest.raises(SlotwiseError, match=message):
        inspect(rewritten(built, change))


@pytest.mark.parametrize("name", ["x" * 60_000, "a\x1b[2Jb", "a\nb"], ids=range(3))
def test_a_name_in_the_digests_is_shown_in_one_line(built: Path, name: str) -> None:
    def change(files: dict[str, bytes]) -> None:
        files[DIGESTS] = json.dumps(
            {"algorithm": "sha256", "files": {**json.loads(files[DIGESTS])["files"], name: ""}}
        ).encode()

    with pytest.raises(SlotwiseError, match="which its digests list") as raised:
        inspect(rewritten(built, change))
    assert raised.value.message.isprintable()
    assert len(raised.value.message) < 400


def test_what_an_archive_says_of_its_graph_is_shown_in_one_line(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = {"batch": "any", "opset": 17, "input": "\x1b[2J\n"}
    commands.inspect(
        str(rewritten(built, with_json("slotwise.json", lambda all: all["model"].update(options={"onnx": graph}))))
    )
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("onnx graph")]
    assert line == r"onnx graph: batch any, opset 17, input '\x1b[2J\n'..."


@pytest.mark.parametrize("fault", ["deflated", "encrypted", "nested"])
def test_a_damaged_archive_of_that_name_has_no_version_and_no_examples(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "toy.mar"
    manifest = b"[" * 100_000 if fault == "nested" else b'{"model": {"modelVersion": "1.0"}}' * 9
    whole = bytearray(zipped((MANIFEST, manifest), ("examples/x", b"x" * 99), method=zipfile.ZIP_DEFLATED).getvalue())
    for at in (0, whole.find(b"PK\x03\x04", 4)):
        whole[at + 30 + len(MANIFEST if at == 0 else "examples/x")] ^= 0xFF if fault == "deflated" else 0
    at = 0
    while fault == "encrypted" and (at := whole.find(b"PK\x01\x02", at + 1)) > 0:
        whole[at + 8] |= 1
    path.write_bytes(whole)
    with pytest.raises(SlotwiseError, match="cannot be read: it is damaged, or no archive, and no report"):
        archive_file(tmp_path, "toy", "2.0")
    (tmp_path / "toy.report.json").write_text('{"archive": "toy.mar"}')
    assert archive_file(tmp_path, "toy", "2.0") == path
    if fault == "nested":
        assert examples(str(path))[0].data == b"x" * 99
    else:
        with pytest.raises(SlotwiseError, match="cannot be read"):
            examples(str(path))


def test_a_build_does_not_take_the_place_of_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "toy.report.json").write_text('{"archive": "toy.mar"}')
    assert archive_file(tmp_path, "toy", "1.0") == tmp_path / "toy.mar"
    (tmp_path / "toy.mar").mkdir()  # root reads everything else
    with pytest.raises(SlotwiseError, match="cannot be read: Is a directory"):
        archive_file(tmp_path, "toy", "1.0")


def test_a_name_that_java_reads_otherwise_is_refused() -> None:
    entry = zipped(("é.py", b"")).getvalue()
    with pytest.raises(SlotwiseError, match="a name that each tool reads otherwise"):
        judged(io.BytesIO(entry.replace(struct.pack("<HH", 20, 0x800), struct.pack("<HH", 20, 0))))
    judged(io.BytesIO(entry))
