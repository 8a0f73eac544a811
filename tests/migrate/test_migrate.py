"""`slotwise migrate`: what it says of twenty deployments, what it writes, and what hostile folders do to it."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
import zipfile
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from slotwise.archive.inspection import inspect
from slotwise.drop_in.configuration import read_properties
from slotwise.errors import SlotwiseError
from slotwise.files.tarball import unpack
from slotwise.migrate.around import Around
from slotwise.migrate.deployment import migrate
from slotwise.migrate.findings import worst
from slotwise.migrate.sagemaker import export_sagemaker, is_sagemaker, migrate_sagemaker
from slotwise.model_spec import load_spec
from tests.drop_in.stores import archive
from tests.migrate.twenty import OWN_FUNCTIONS, TWENTY, command, made

pytest.importorskip("model_archiver")

IMAGE = "slotwise-torchserve"
KEYS = ["keystore=a.p12", "keystore_pass = secret", "metrics_mode=prometheus", "nobody_knows=1"]
BOTH = b"def model_fn(d): pass\ndef transform_fn(): pass\ndef input_fn(): pass"


@pytest.mark.parametrize("name", TWENTY)
def test_what_is_said_of_the_twenty(name: str, tmp_path: Path) -> None:
    if "torch's" in name or "TorchScript" in name:
        pytest.importorskip("torch")
    folder, out, told = made(tmp_path, name), tmp_path / "out", TWENTY[name]
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    findings = migrate_sagemaker(folder, out, "echo") if is_sagemaker(folder) else migrate(folder, out, IMAGE)[0]
    assert worst(findings) == told.verdict, findings
    for words in told.about:
        assert any(words in finding.about for finding in findings), findings
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    for guarded in out.rglob("*.mar"):
        assert "_slotwise_guard/__init__.py" in zipfile.ZipFile(guarded).namelist()
        inspect(guarded)


def test_only_the_words_change_that_have_to(tmp_path: Path) -> None:
    changes = {
        ("a Dockerfile", "Dockerfile"): {"FROM pytorch/torchserve:0.12.0-cpu": "FROM registry.example/ours:1"},
        ("a compose file", "compose.yaml"): {"image: pytorch/torchserve:0.12.0-cpu ": "image: registry.example/ours:1 "},
        ("Helm's values", "values.yaml"): {"pytorch/torchserve:latest-gpu": "registry.example/ours:1"},
        ("KServe", "service.yaml"): {"      runtimeVersion: 0.9.0\n": ""},
        ("a start script", "start.sh"): {"torchserve --st": "slotwise torchserve --st"},
    }
    for (name, file), change in changes.items():
        folder = made(tmp_path, name)
        migrate(folder, tmp_path / f"new {name}", "registry.example/ours:1")
        expected = (folder / file).read_text()
        for before, after in change.items():
            assert before in expected
            expected = expected.replace(before, after)
        assert (tmp_path / f"new {name}" / file).read_text() == expected
    assert os.access(tmp_path / "new a start script" / "start.sh", os.X_OK) == os.access(folder / "start.sh", os.X_OK)


VERSION = "      runtimeVersion: 1.5.0\n"
SKLEARN = f"kind: InferenceService\nspec:\n  predictor:\n    model:\n      modelFormat: {{name: sklearn}}\n{VERSION}"
TORCH = SKLEARN.replace("sklearn", "pytorch") + f"  explainer:\n    art:\n{VERSION}"


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("Dockerfile", "FROM pytorch/torchserve@sha256:0123", "FROM ours:1", "FROM ours:1"),
        ("Dockerfile", "FROM pytorch/torchserve:0.9@sha256:0123 AS a", "FROM ours:1 AS a", "FROM ours:1"),
        ("Dockerfile", "ARG T=1\nFROM pytorch/torchserve:${T}-cpu", "ARG T=1\nFROM ours:1", "FROM ours:1"),
        ("Dockerfile", "ARG B=pytorch/torchserve:0.11\nFROM ${B}", "ARG B=ours:1\nFROM ${B}", "FROM ours:1"),
        ("Dockerfile", "ARG B=pytorch/torchserve:0.11\nFROM $B-x", None, "pytorch/torchserve:0.11 is not changed"),
        ("Dockerfile", "FROM corp.example:5000/pytorch/torchserve:1", None, "corp.example:5000/pytorch/torchserve:1 is not"),
        ("Containerfile", "FROM pytorch/torchserve", "FROM ours:1", "FROM ours:1"),
        ("Dockerfile", "FROM pytorch/torchserve-mine:1", None, "pytorch/torchserve-mine:1 is not changed"),
        ("c.yml", "image: pytorch/torchserve@sha256:01\n", "image: ours:1\n", "image ours:1"),
        ("c.yml", "image: pytorch/torchserve:${TAG:-1}\n", "image: ours:1\n", "image ours:1"),
        ("c.yml", "a: pytorch/torchserve\nb: x.y/pytorch/torchserve:1\n", "a: ours:1\nb: x.y/pytorch/torchserve:1\n", "x.y/py"),
        ("chart.yaml", "image: {{ .x }} pytorch/torchserve:1\n", None, "is not changed"),
        (".env", "IMAGE=pytorch/torchserve:1\n", None, "is not changed"),
        ("v.yaml", "i:\n  name: pytorch/torchserve\n  tag: 0.9\n", "i:\n  name: ours:1\n  tag: 0.9\n", "change it, too"),
        ("iris.yaml", SKLEARN, None, ""),
        ("two.yaml", f"{SKLEARN}---\n{TORCH}", f"{SKLEARN}---\n{TORCH.replace(VERSION, '', 1)}", "is gone"),
        ("flow.yaml", "{kind: InferenceService, spec: {predictor: {pytorch: {runtimeVersion: 1}}}}\n", None, "take it out"),
        ("odd.yaml", "kind: InferenceService\nspec: text\n", None, ""),
        ("odd.yaml", "a: !!timestamp x\n", None, ""),
    ],
)  # fmt: skip
def test_every_image_is_changed_or_said(name: str, before: str, after: str | None, said: str) -> None:
    """A digest was kept, a mirror's image was changed, an ARG was not seen; and sklearn's service lost its runtimeVersion."""
    found, changed = Around("ours:1").read(name, before)
    assert changed == (before if after is None else after)
    assert any(said in about for _, about in found) if said else not found


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("a.sh", "torchserve \\\n  --start \\\n  --workflow-store w\n", "", "has no meaning"),
        ("a.sh", "exec torchserve --foreground --start 2>&1\n", "exec slotwise torchserve --foreground --start 2>&1\n", None),
        ("a.sh", "torchserve --stop; torchserve -v\n", "slotwise torchserve --stop; slotwise torchserve -v\n", None),
        ("a.sh", "torchserve --model-store=m --start; torchserve --start --nobody\n", "", "its command line"),
        ("a.sh", "x\nexec torchserve $WORDS\n# torchserve\n", None, "line 2: says torchserve still"),
        ("a.sh", "/opt/bin/torchserve --start\npip install torchserve --upgrade\n", None, "line 1, 2: says torchserve still"),
        ("a.sh", "cat torchserve.log my-torchserve; slotwise torchserve --start\n", None, ""),
        ("Makefile", "run:\n\ttorchserve --start\n", None, "line 2: says torchserve still"),
        ("README.md", "Say torchserve --start\n", None, ""),
    ],
)  # fmt: skip
def test_every_command_is_changed_or_said(name: str, before: str, after: str | None, said: str | None) -> None:
    """`torchserve` with its options on other lines, or --foreground first, was left, with "works"."""
    found, changed = Around("ours:1").read(name, before)
    after = before.replace("torchserve", "slotwise torchserve") if after == "" else after
    assert changed == (before if after is None else after)
    assert (after is not None) == (("works", "says `slotwise torchserve`") in found)
    rest = [about for verdict, about in found if verdict != "works"]
    assert any(said in about for about in rest) if said else not rest


def test_a_key_that_is_refused_is_a_comment_in_the_copy(tmp_path: Path) -> None:
    folder = made(tmp_path, "a store alone")
    (folder / "config.properties").write_text("\n".join(KEYS))
    findings, start = migrate(folder, tmp_path / "out", "x")
    said = {finding.what: finding.verdict for finding in findings}
    assert said["config.properties: keystore"] == said["config.properties: keystore_pass"] == "cannot"
    assert (said["config.properties"], said["config.properties: nobody_knows"]) == ("works", "note")
    assert not any("secret" in str(finding) for finding in findings)
    lines = (tmp_path / "out" / "config.properties").read_text().splitlines()
    assert lines == [*(f"# not here: {line}" for line in KEYS[:2]), *KEYS[2:]]
    assert start.endswith("slotwise torchserve --start --ts-config config.properties --model-store model-store --models all")


def test_a_key_that_is_refused_is_gone_however_it_is_written(tmp_path: Path) -> None:
    """A blank line before it, a tab as separator, a line that goes on or an escape kept it alive."""
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "config.properties").write_bytes(
        b"model_store=s\r\n\r\nkeystore=a.p12\n\n\tkeystore_pass\tsecret\n"
        b"keystore_type = \\\n  PKCS12\rkey\\u0073tore:b\nmetrics_mode=log"
    )
    migrate(folder, tmp_path / "out", IMAGE)
    copied = tmp_path / "out" / "config.properties"
    assert read_properties(copied) == {"model_store": "s", "metrics_mode": "log"}
    assert copied.read_bytes().startswith(b"model_store=s\r\n\r\n# not here: keystore=a.p12\n\n# not here: \tkeystore_pass")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("model_store=model-store\nload_models=shop=echo.mar", ""),
        ("model_store=./model-store\n", " --models all"),
        ("model_store=/home/model-server/model-store\nmodel_snapshot={}", " --model-store model-store"),
        ("model_store={folder}/model-store\nload_models=none", " --model-store model-store"),
        ("load_models=a.mar", " --model-store archive-old"),
        ("model_store=../elsewhere", " --model-store archive-old --models all"),
    ],
)
def test_the_line_serves_what_the_deployment_served(lines: str, words: str, tmp_path: Path) -> None:
    """It named the first folder with an archive, and every model, whatever the configuration said."""
    folder = made(tmp_path, "a store alone")
    archive(folder / "archive-old", "echo", "echo", version="0.9")
    (folder / "config.properties").write_text("metrics_mode=prometheus\n" + lines.replace("{folder}", str(folder)))
    findings, start = migrate(folder, None, IMAGE)
    assert start.endswith(f"--start --ts-config config.properties{words}"), start
    served, other = ("archive-old", "model-store") if "old" in words else ("model-store", "archive-old")
    notes = [(one.what, one.about) for one in findings if one.verdict == "note"]
    assert notes == [(other, f"the line serves the archives of {served}, not these")]


def test_the_line_names_config_properties_and_says_what_it_leaves(tmp_path: Path) -> None:
    folder = made(tmp_path, "a store alone")
    (folder / "empty").mkdir()
    for name in ("config-old.properties", "config.properties"):
        (folder / name).write_text("model_store=empty\n")
    findings, start = migrate(folder, None, IMAGE)
    assert start.endswith("--ts-config config.properties --models all")
    assert [(one.what, one.about) for one in findings if one.verdict == "note"] == [
        ("config-old.properties", "the line starts with config.properties, not with this one"),
        ("model-store", "the line serves the archives of empty, not these"),
    ]


def test_what_a_snapshot_kept_is_said(tmp_path: Path) -> None:
    """Models that were registered while it ran were left out without a word."""
    folder = tmp_path / "d"
    (folder / "logs" / "config").mkdir(parents=True)
    (folder / "config.properties").write_text("metrics_mode=prometheus\n")
    one = {"defaultVersion": True, "marName": "a-1.mar", "minWorkers": 2, "maxWorkers": 4, "batchSize": 8, "maxBatchDelay": 50}
    models = json.dumps({"models": {"shop": {"1.0": one, "2.0": {"marName": "a-2.mar"}}}})
    for name, text in (("20250101000000000-startup", "no snapshot"), ("20260101000000000-snapshot", models)):
        (folder / "logs" / "config" / f"{name}.cfg").write_text(f"model_snapshot={text}\n")
    findings, _ = migrate(folder, tmp_path / "out", IMAGE)
    (said,) = [one for one in findings if one.what.startswith("logs/")]
    assert (said.what, said.verdict) == ("logs/config/20260101000000000-snapshot.cfg", "note")
    assert "shop 1.0 (a-1.mar, the default, minWorkers 2, maxWorkers 4, batchSize 8, maxBatchDelay 50), shop 2.0" in said.about
    (folder / "logs" / "config" / "20270101000000000-x.cfg").write_text("model_snapshot=[\n")
    findings, _ = migrate(folder, None, IMAGE)
    assert [one.verdict for one in findings if "cannot be read" in one.about] == ["note"]


def test_a_links_content_in_an_archive_that_is_a_folder_is_not_copied(tmp_path: Path) -> None:
    folder = made(tmp_path, "an archive as a folder")
    (tmp_path / "secret").write_text("nobody's business")
    (folder / "model-store" / "echo" / "link").symlink_to(tmp_path / "secret")
    migrate(folder, tmp_path / "out", IMAGE)
    copied = tmp_path / "out" / "model-store" / "echo"
    assert (copied / "echo.py").is_file()
    assert (copied / "link").is_symlink()


def test_a_configuration_is_javas_latin_1(tmp_path: Path) -> None:
    folder = made(tmp_path, "a store alone")
    (folder / "config.properties").write_bytes("# fran\xe7ais\nkeystore=a.p12\nmetrics_mode=prometheus\n".encode("latin-1"))
    migrate(folder, tmp_path / "a folder", IMAGE)
    lines = (tmp_path / "a folder" / "config.properties").read_bytes().split(b"\n")
    assert lines[:2] == [b"# fran\xe7ais", b"# not here: keystore=a.p12"]


def test_the_command_tells_people_and_programs(tmp_path: Path) -> None:
    folder = made(tmp_path, "a workflow")
    done = command("migrate", str(folder), "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["verdict"], answer["written"]) == (1, "cannot", None)
    assert {"what": "wf/two.war", "verdict": "cannot"}.items() <= next(
        one for one in answer["findings"] if one["what"].endswith(".war")
    ).items()
    done = command("migrate", str(folder), "--out", str(tmp_path / "out"))
    assert f"cd {tmp_path / 'out'} && slotwise torchserve --start" in done.stdout
    for words, error in (
        (("migrate", str(tmp_path / "nothing")), "there is no"),
        (("migrate", str(folder), "--out", str(tmp_path / "out")), "is there already"),
        (("migrate", str(folder), "--out", str(folder / "inside")), "is inside"),
    ):
        done = command(*words)
        assert (done.returncode, done.stderr.count("error: ")) == (1, 1)
        assert error in done.stderr


def test_the_command_says_of_a_sagemaker_model_what_was_written_and_how_it_starts(tmp_path: Path) -> None:
    out = tmp_path / "my models"
    lacks = packed(tmp_path / "lacks.tar.gz", **{"code/inference.py": b"x = 1\n"})
    done = command("migrate", str(lacks), "--out", str(out), "--name", "mine", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["verdict"], answer["written"], answer.get("start")) == (1, "cannot", None, None)
    whole = packed(tmp_path / "whole.tar.gz", **{"code/inference.py": OWN_FUNCTIONS.encode()})
    done = command("migrate", str(whole), "--out", str(out), "--name", "mine", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["written"]) == (0, str(out))
    assert answer["start"] == f"slotwise serve '{out}' --server slotwise"


def test_a_folder_with_nothing_of_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "values.yaml").write_text("a: 1\n")
    (tmp_path / "d" / "Dockerfile").write_text("FROM python:3.11\n")
    with pytest.raises(SlotwiseError, match="nothing of TorchServe's"):
        migrate(tmp_path / "d", None, "x")


def test_hostile_folders_cost_one_finding_each(tmp_path: Path) -> None:
    folder = made(tmp_path, "a store alone")
    secret = tmp_path / "secret"
    secret.write_text("nobody's business")
    (folder / "link").symlink_to(secret)
    (folder / "logs").mkdir()
    (folder / "logs" / "access_log.log").write_text("10.0.0.1 said so")
    (folder / "key_file.json").write_text('{"management": {"key": "k"}}')
    (folder / "junk.mar").write_bytes(b"no zip at all")
    (folder / "bomb.yaml").write_text("a: &a [1,1]\nb: &b [*a,*a]\n" + "".join(f"c{i}: *b\n" for i in range(50)))
    (folder / "broken.yaml").write_text("kind: [InferenceService\n")
    (folder / "deep.yaml").write_text("[" * 5000)
    (folder / "config.properties").write_bytes(b"inference_address=\xff\xfe\\uZZZZ\n")
    (folder / "Dockerfile").write_text('FROM pytorch/torchserve\nCMD ["torchserve", "--start", "--nobody"]\nCMD torchserve "\n')
    findings, _ = migrate(folder, tmp_path / "out", "x")
    said = {(finding.what, finding.verdict) for finding in findings}
    assert {("junk.mar", "cannot"), ("Dockerfile", "works"), ("Dockerfile", "cannot"), ("link", "note")} <= said
    copied = {file.relative_to(tmp_path / "out").as_posix() for file in (tmp_path / "out").rglob("*")}
    assert not copied & {"link", "logs", "key_file.json"}
    assert not any(b"nobody's business" in file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file())


def test_links_to_folders_are_kept_and_those_that_lead_out_are_said(tmp_path: Path) -> None:
    """`model-store -> releases/v2` was left out, as was a link to archives elsewhere, and the verdict was "works"."""
    folder, elsewhere = made(tmp_path, "a store alone"), tmp_path / "elsewhere"
    (folder / "config.properties").write_text("model_store=current\nworkflow_store=named\n")
    (folder / "empty").mkdir()
    for place in ("deep", "docs", "named"):
        (elsewhere / place).mkdir(parents=True)
    (elsewhere / "deep" / "x.mar").write_bytes(b"x")
    (elsewhere / "docs" / "a.txt").write_text("a")
    links = {
        "current": folder / "model-store",
        "relative": Path("model-store"),
        "nothing in it": Path("empty"),
        "self": Path(),
        "extra": elsewhere,
        "docs": elsewhere / "docs",
        "named": elsewhere / "named",
        "one.mar": elsewhere / "nowhere.mar",
        "loop": Path("loop"),
    }
    for name, target in links.items():
        (folder / name).symlink_to(target)
    findings, _ = migrate(folder, tmp_path / "out", IMAGE)
    said = {one.what: one.verdict for one in findings if "link" in one.about}
    assert said == {"extra": "cannot", "docs": "note", "named": "cannot", "one.mar": "cannot", "loop": "note"}
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir() if path.is_symlink()} == {"current", "relative", "nothing in it", "self"}
    assert (out / "current" / "echo.mar").samefile(out / "model-store" / "echo.mar")
    assert not any(Path(os.readlink(path)).is_absolute() for path in out.iterdir() if path.is_symlink())


def test_folders_keep_their_modes_and_a_pipe_is_only_said(tmp_path: Path) -> None:
    """A pipe ended the copy half-way, keys were open to all in it, and an empty model_store was left out."""
    folder, out = made(tmp_path, "an archive as a folder"), tmp_path / "out"
    (folder / "config.properties").write_text("model_store=empty\n")
    for name, mode in {"empty": 0o755, "secrets": 0o700, "secrets/closed": 0o555}.items():
        (folder / name).mkdir()
        (folder / name / "key.pem").touch()
        (folder / name).chmod(mode)
    (folder / "empty" / "key.pem").unlink()
    for pipe in ("pipe.mar", "pipe", "model-store/echo/pipe"):
        os.mkfifo(folder / pipe)
    findings, start = migrate(folder, out, IMAGE)
    assert {one.what for one in findings if one.about.startswith("neither a file")} == {"pipe", "pipe.mar"}
    assert [(out / name).stat().st_mode & 0o777 for name in ("empty", "secrets", "secrets/closed")] == [0o755, 0o700, 0o555]
    assert (out / "secrets" / "closed" / "key.pem").is_file()
    assert start.endswith("--ts-config config.properties --models all")
    assert not list(out.rglob("pipe*"))


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path, "KServe")

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("shutil.copy2", full)
        with pytest.raises(SlotwiseError, match="cannot be written"):
            migrate(folder, tmp_path / "out", IMAGE)
    assert not (tmp_path / "out").exists()
    migrate(folder, tmp_path / "out", IMAGE)


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
def test_a_copy_that_ends_in_the_middle_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    tarball = packed(tmp_path / "model.tar.gz", **{"code/inference.py": OWN_FUNCTIONS.encode(), "factor.json": b"3"})
    folder = made(tmp_path, "KServe")

    def ends(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("shutil.copy2", ends)
        for write in (
            partial(migrate_sagemaker, tarball, tmp_path / "out", "mine"),
            partial(migrate, folder, tmp_path / "out", IMAGE),
        ):
            with pytest.raises((SlotwiseError, KeyboardInterrupt)):
                write()
            assert not (tmp_path / "out").exists()


def test_an_archive_of_ours_stays_as_it_is_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(made(tmp_path, "a store alone"), tmp_path / "ours", IMAGE)
    monkeypatch.chdir(tmp_path)
    for folder in (Path("ours"), tmp_path / "ours"):
        findings, _ = migrate(folder, None, IMAGE)
        assert [one.about for one in findings if one.what.endswith("echo.mar")] == ["is one of ours"]


def packed(path: Path, mode: Literal["w", "w:gz", "w:bz2", "w:xz"] = "w:gz", **files: bytes) -> Path:
    """A tarball. `__` stands for a slash, `___` for ..'s slash."""
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def test_a_model_tar_gz_becomes_a_models_folder(tmp_path: Path) -> None:
    program = OWN_FUNCTIONS + "\nimport sagemaker_inference\n"
    tarball = packed(tmp_path / "model.tar.gz", **{"code/serve.py": program.encode(), "factor.json": b"3", "._junk": b"mac"})
    findings = migrate_sagemaker(tarball, tmp_path / "mine", "mine")
    assert worst(findings) == "note"
    spec = load_spec(tmp_path / "mine")
    assert (spec.name, spec.handler, spec.options) == ("mine", "sagemaker", {"program": "serve.py"})
    assert spec.files == ["code", "factor.json"]
    assert (tmp_path / "mine" / "code" / "serve.py").read_text() == program


def test_a_sagemaker_model_is_never_copied_into_itself(tmp_path: Path) -> None:
    folder = tmp_path / "sgm"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "inference.py").write_text("def model_fn(d): pass")
    (tmp_path / "link").symlink_to(folder)
    for out in (folder / "code" / "new", folder / "new", tmp_path / "link" / "new"):
        with pytest.raises(SlotwiseError, match="is inside"):
            migrate_sagemaker(folder, out, "new")
    assert sorted(path.name for path in folder.rglob("*")) == ["code", "inference.py"]


def test_every_name_of_a_file_is_written_or_said(tmp_path: Path) -> None:
    """A file `w😀.bin` gave a model.toml that nobody could read, and .cache was left out without a word."""
    program = b"def model_fn(d): pass"
    files = {"code/inferencé.py": program, "w😀.bin": b"", 'a "b" n.bin': b"", ".cache/vocab": b"", "logs/x": b""}
    findings = migrate_sagemaker(packed(tmp_path / "model.tar.gz", **files), tmp_path / "mine", "mine")
    assert {(one.what, one.verdict) for one in findings} == {("code/inferencé.py", "works"), (".cache, logs", "note")}
    spec = load_spec(tmp_path / "mine")
    assert spec.files == sorted(["code", "w😀.bin", 'a "b" n.bin'])
    assert spec.options == {"program": "inferencé.py"}
    for i, name in enumerate(("a,b.bin", "a\x7f.bin", os.fsdecode(b"\xff.bin"))):
        (folder := tmp_path / str(i) / "code").mkdir(parents=True)
        (folder / "inference.py").write_bytes(program)
        (folder.parent / name).write_bytes(b"")
        for out in (None, tmp_path / f"out{i}"):
            findings = migrate_sagemaker(folder.parent, out, "x")
            assert worst(findings) == "cannot", findings
        assert not out or not out.exists()


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"saved_model.pb": b""}, "a TensorFlow SavedModel"),
        ({"weights.bin": b""}, "no model_fn"),
        ({"code/inference.py": b"def input_fn(a, b): pass"}, "no model_fn"),
        (
            {"code/inference.py": BOTH},
            "transform_fn stands for",
        ),
        ({"code/inference.py": b"def model_fn(d): pass", "model.toml": b""}, "a file of its own"),
        ({"code/inference.py": b"def model_fn(d: pass"}, "no model_fn"),
    ],
)
def test_what_cannot_be_taken_says_why_and_writes_nothing(files: dict[str, bytes], why: str, tmp_path: Path) -> None:
    (finding,) = migrate_sagemaker(packed(tmp_path / "model.tar.gz", **files), tmp_path / "out", "x")
    assert (finding.verdict, why in finding.about) == ("cannot", True)
    assert not (tmp_path / "out").exists()


def test_a_tarball_writes_nothing_outside(tmp_path: Path) -> None:
    with pytest.raises(SlotwiseError, match="no tarball that can be unpacked"):
        migrate_sagemaker(packed(tmp_path / "model.tar.gz", **{"../outside": b"x"}), tmp_path / "out", "x")
    assert sorted(os.listdir(tmp_path)) == ["model.tar.gz"]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_no_damaged_tarball_becomes_a_model(tmp_path: Path, mode: Literal["w", "w:gz", "w:bz2", "w:xz"]) -> None:
    """Neither other weights, nor a part of the files: gzip's checksum is behind the end, and tarfile stops at a bad header."""
    content = {"code/inference.py": OWN_FUNCTIONS.encode(), "factor.json": random.Random(1).randbytes(50_000), "last": b"x"}
    whole = packed(tmp_path / "whole.tar.gz", mode, **content)
    unpack(whole, tmp_path / "whole")
    data = whole.read_bytes()
    assert (tmp_path / "whole" / "factor.json").read_bytes() == content["factor.json"]
    last = data.rindex(b"last\0") if mode == "w" else len(data) // 2  # of a plain one nobody notices but in a header
    for number, place in enumerate([last, *([] if mode == "w" else [len(data) - 6])]):
        damaged = tmp_path / f"{number}.tar.gz"
        damaged.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(SlotwiseError, match="no tarball that can be unpacked"):
            unpack(damaged, tmp_path / f"{number}")
        assert not (tmp_path / f"{number}").exists()


def test_an_archive_becomes_the_same_model_tar_gz_twice(tmp_path: Path) -> None:
    migrate(made(tmp_path, "a store alone"), tmp_path / "out", "x")
    info = inspect(tmp_path / "out" / "model-store" / "echo.mar")
    (tmp_path / "link.mar").symlink_to(info.path)
    for name, one in {"a": info, "b": info, "link": inspect(tmp_path / "link.mar")}.items():
        export_sagemaker(one, tmp_path / f"{name}.tar.gz")
    with tarfile.open(tmp_path / "link.tar.gz") as first:
        (member,) = first.getmembers()
        assert (member.name, member.size) == ("echo.mar", info.size_bytes)
        content = first.extractfile(member)
        assert content is not None
        assert content.read() == info.path.read_bytes()


def test_an_export_replaces_no_file_but_its_own(tmp_path: Path) -> None:
    """By default it wrote model.tar.gz, over the one that had been migrated."""
    migrate(made(tmp_path, "a store alone"), tmp_path / "out", "x")
    archive = tmp_path / "out" / "model-store" / "echo.mar"
    for name, files in {"theirs.tar.gz": {"code/inference.py": b"x"}, "two.tar.gz": {"echo.mar": b"x", "more": b"y"}}.items():
        original = packed(tmp_path / name, **files).read_bytes()
        with pytest.raises(SlotwiseError, match="is there already"):
            export_sagemaker(inspect(archive), tmp_path / name)
        assert (tmp_path / name).read_bytes() == original
    (tmp_path / "text").write_text("precious")
    with pytest.raises(SlotwiseError, match="is there already"):
        export_sagemaker(inspect(archive), tmp_path / "text")
    (tmp_path / "own").mkdir()
    for _ in range(2):
        done = command("export", "sagemaker", str(archive), cwd=tmp_path / "own")
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "own" / "echo.tar.gz").is_file()
    assert not (tmp_path / "own" / "model.tar.gz").exists()


def test_the_page_says_the_same_of_the_twenty() -> None:
    page = (Path(__file__).parents[2] / "docs" / "leaving-torchserve.md").read_text("utf-8")
    words = {"works": "works", "note": "works, with a note", "cannot": "cannot"}
    assert "\n".join(f"| {name} | {words[told.verdict]} |" for name, told in TWENTY.items()) in page
