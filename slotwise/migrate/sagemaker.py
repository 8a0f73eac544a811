"""A SageMaker model becomes a model's folder here, and an archive becomes what SageMaker takes.

model.tar.gz holds the model's files and code/ with inference.py; they stay as they are, beside a model.toml for the handler
`sagemaker` (handlers/sagemaker.py), which calls its functions for one request at a time.
"""

from __future__ import annotations

import ast
import json
import shutil
import tarfile
import tempfile
import tomllib
import zlib
from pathlib import Path

from slotwise.archive.archive_info import ArchiveInfo, check_name
from slotwise.errors import SlotwiseError
from slotwise.files.disk import whole_folder, written_whole
from slotwise.files.tarball import unpack
from slotwise.migrate.findings import Finding, need_new
from slotwise.model_spec import ModelSpec, parse
from slotwise.worker.familiar.sagemaker_program import defined, parsed

FUNCTIONS = {"model_fn", "input_fn", "predict_fn", "output_fn", "transform_fn"}
OURS = {"model.toml", "slotwise", "slotwise.json", "MAR-INF", "sagemaker.py", "examples"}
TOOLKIT = ("sagemaker_inference", "sagemaker_pytorch_serving_container", "sagemaker_containers")
NO_PYTHON = {"saved_model.pb": "a TensorFlow SavedModel", "xgboost-model": "the XGBoost container's own form"}
TOML = """\
# A SageMaker model, as it was. Build: slotwise build FOLDER   Serve: slotwise serve FOLDER
name = {name}
version = "1.0"
handler = "sagemaker"            # calls {functions} for one request at a time
files = {files}
{options}"""


def is_sagemaker(path: Path) -> bool:
    """Whether this is a SageMaker model: a tarball, or what is in one, code/ with its functions or TorchScript alone."""
    if path.is_file():
        return path.name.endswith((".tar.gz", ".tgz"))
    return bool(_program(path)) or {file.suffix for file in path.iterdir()} in ({".pt"}, {".pth"})


def migrate_sagemaker(path: Path, out: Path | None, name: str) -> list[Finding]:
    """What becomes of a SageMaker model; its folder is written to `out`, where one is named. Raises SlotwiseError."""
    need_new(out, path)
    check_name(name, "name it with --name:")
    with tempfile.TemporaryDirectory(prefix="slotwise-migrate-") as work:
        folder = path
        if path.is_file():
            folder = Path(work) / "model"
            unpack(path, folder)
        names = sorted(file.name for file in folder.iterdir())
        files = [file for file in names if not file.startswith(".") and file != "logs"]
        findings, options = _found(folder, files)
        if left := [file for file in names if file not in files]:
            why = "left out, as hidden files and logs are: where the model reads it, give it another name"
            findings.append(Finding(", ".join(left), "note", why))
        functions = ", ".join(sorted(_functions(folder))) or "the PyTorch toolkit's functions"
        text = TOML.format(name=_quoted(name), files=_quoted(files), options=options, functions=functions)
        if fault := _fault(text):
            findings.append(Finding("model.toml", "cannot", fault))
        if out and not any(finding.verdict == "cannot" for finding in findings):
            with whole_folder(out):
                out.mkdir(parents=True, exist_ok=True)
                for file in files:
                    if (folder / file).is_dir():
                        shutil.copytree(folder / file, out / file, symlinks=True)
                    else:
                        shutil.copy2(folder / file, out / file)
                (out / "model.toml").write_text(text, "utf-8")
    return findings


def export_sagemaker(info: ArchiveInfo, out: Path) -> None:
    """Write the model.tar.gz that a container of ours takes on SageMaker: the archive, and nothing else.

    Raises SlotwiseError where `out` is there already, unless it is this model's earlier export.
    """
    check_name(info.name, "build it under another one:")
    if out.exists() and not _is_export(out, info.name):
        raise SlotwiseError(f"{out} is there already, and is no export of {info.name}", "name another file with --out")
    with written_whole(out) as unfinished, tarfile.open(unfinished, "w:gz", compresslevel=1) as packed:
        packed.add(info.path.resolve(), f"{info.name}.mar", filter=_nobodys)


def _is_export(file: Path, name: str) -> bool:
    """Whether `export_sagemaker` wrote this file, for a model of this name."""
    try:
        with tarfile.open(file, "r:gz") as packed:
            first = packed.next()
            if first is None or first.name != f"{name}.mar" or first.mtime or first.uname:
                return False
            return packed.next() is None
    except (OSError, EOFError, zlib.error, tarfile.TarError):
        return False


def _quoted(value: str | list[str]) -> str:
    """As TOML has it, which takes no halves of a character, as JSON does."""
    return json.dumps(value, ensure_ascii=False)


def _fault(text: str) -> str:
    """Why this cannot be a model.toml, "" where it can."""
    try:
        text.encode()
        parse(ModelSpec, tomllib.loads(text), Path("model.toml"))
    except SlotwiseError as error:
        return error.message.removeprefix("model.toml: ")
    except ValueError:
        return "a file's name in it is no text: rename the file"
    return ""


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without who made it, and when: the same archive gives the same bytes."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def _found(folder: Path, files: list[str]) -> tuple[list[Finding], str]:
    """The findings, and the lines of [options]."""
    for name, what in NO_PYTHON.items():
        if any(folder.rglob(name)):
            return [Finding(name, "cannot", f"{what}: there is no inference.py that loads it")], ""
    if taken := sorted(OURS & set(files)):
        return [Finding(taken[0], "cannot", "an archive has a file of its own with this name: rename it")], ""
    program = _program(folder)
    functions = _functions(folder)
    scripts = [file for file in files if file.endswith((".pt", ".pth"))]
    if "model_fn" not in functions and len(scripts) != 1 and "model.pt" not in scripts:
        return [Finding("code/inference.py", "cannot", "there is no model_fn, nor one .pt or .pth of TorchScript to load")], ""
    if "transform_fn" in functions and functions & {"input_fn", "predict_fn", "output_fn"}:
        return [Finding(program, "cannot", "transform_fn stands for input_fn, predict_fn and output_fn: have it, or them")], ""
    findings = [Finding(program or scripts[0], "works", "each request runs alone, so nobody gets another's error")]
    if "model_fn" not in functions:
        findings.append(Finding("model_fn", "works", "the toolkit's own: TorchScript from the one .pt or .pth"))
    imported = {name for file in (folder / "code").rglob("*.py") for name in _imported(file)}
    if imported & set(TOOLKIT):
        findings.append(
            Finding(program, "note", "it imports SageMaker's toolkit: pip install sagemaker-inference where it is served")
        )
    for requirements in (folder / "code" / "requirements.txt", folder / "requirements.txt"):
        if requirements.is_file():
            name = requirements.relative_to(folder).as_posix()
            findings.append(Finding(name, "note", "nothing is installed at the start: install it where it is served"))
    options = "" if program in ("", "code/inference.py") else f"\n[options]\nprogram = {_quoted(Path(program).name)}\n"
    return findings, options


def _program(folder: Path) -> str:
    """The file with the functions, "" where there is none."""
    files = [folder / "code" / "inference.py", *sorted((folder / "code").glob("*.py"))]
    return next((f"code/{file.name}" for file in files if file.is_file() and defined(file) & FUNCTIONS), "")


def _functions(folder: Path) -> set[str]:
    program = _program(folder)
    return defined(folder / program) & FUNCTIONS if program else set()


def _imported(file: Path) -> set[str]:
    nodes = list(ast.walk(parsed(file)))
    direct = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    direct |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.split(".")[0] for name in direct}
