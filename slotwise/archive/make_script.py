"""Run a model's make.py once and keep what it wrote, so that a second build of the same inputs trains and exports nothing.

A make.py has one function, and may have a second one:

    def make(out: Path, weights: str | None, progress: rich.progress.Progress) -> dict[str, Any]
    def measure(out: Path, progress: rich.progress.Progress) -> dict[str, Any]

`make` writes the files that model.toml names into `out` and returns what it measured (accuracy, agreement, speed; any JSON).
`weights` is the build's --weights: a path, an id, "none" (make up small ones), or None (the model's default).
`measure` measures what depends on the versions of the engines. It is called after `make`, and on what was kept where Python or
an engine has changed since. Networks that slotwise.zoo exports need none: their engines are compared again one by one.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise import console
from slotwise.archive.input_digests import input_digests, made_key
from slotwise.archive.made_beside import left_beside, noting_what_is_left
from slotwise.errors import SlotwiseError, missing_package
from slotwise.files import project
from slotwise.files.disk import locked
from slotwise.interrupts import held, let_through
from slotwise.model_spec import ModelSpec

if TYPE_CHECKING:
    from rich.progress import Progress

MEASURED = "measured.json"
UNKEPT = "unkept"  # what was made of inputs that changed meanwhile; no key is like that
MEASURES = re.compile(r"^def measure\(", re.MULTILINE)
ENGINES = ("torch", "onnxruntime", "openvino", "transformers", "ctranslate2")


def run_make_script(folder: Path, spec: ModelSpec, weights: str | None, progress: Progress) -> tuple[Path, dict[str, Any]]:
    """Run make.py, or take its result from the cache. Returns the folder that it wrote, and what it measured.

    What was kept is completed: with int8 weights, where nncf was not installed, and with verdicts on the engines as they are
    now. It is made anew where it does not hold on them.
    """
    shelf = project.cache_dir() / spec.name
    shelf.mkdir(parents=True, exist_ok=True)
    script = folder / "make.py"
    with locked(shelf / "make"):  # two builds of one model do not train it twice
        out = shelf / made_key(folder, spec, weights, left_beside(script, shelf))
        if (out / MEASURED).is_file():
            try:
                measured = _completed(out, script, spec, progress)
                console.say(f"{spec.name}: its inputs are what they were: what its make.py made earlier is taken")
                return out, measured
            except SlotwiseError as error:
                console.say(f"{spec.name}: what was made earlier does not hold here, it is made anew: {error.message}")
        before = input_digests(folder, spec)
        with partial_folder(shelf / f"{out.name}.partial") as partial:
            console.say(f"{spec.name}: running its make.py (once; the result is kept)")
            _write(partial, _call(script, "make", partial, weights, progress))
            measured = _completed(partial, script, spec, progress)
            left = left_beside(script, shelf)
            _check_unchanged(before, folder, spec, left)
            if made_key(folder, spec, weights, left) != out.name:
                console.say(f"{spec.name}: files of its folder were changed while its make.py ran: the result is not kept")
                out = shelf / UNKEPT
            shutil.rmtree(out, ignore_errors=True)
            partial.rename(out)
    return out, measured


def _check_unchanged(before: Mapping[str, str], folder: Path, spec: ModelSpec, left: Mapping[str, str]) -> None:
    """Raise SlotwiseError where an input that the archive will name is another by now. left: by make.py itself."""
    now = input_digests(folder, spec)
    if changed := sorted(name for name, sha256 in before.items() if now.get(name) not in (sha256, left.get(name, sha256))):
        raise SlotwiseError(f"{spec.name}: {changed[0]} was changed while its make.py ran", "build it again")


def _completed(out: Path, script: Path, spec: ModelSpec, progress: Progress) -> dict[str, Any]:
    """What make.py measured, about the engines that are installed now, and no others."""
    from slotwise.zoo import agreement, int8_weights  # noqa: PLC0415  brings numpy and the engines

    kept: dict[str, Any] = json.loads((out / MEASURED).read_text("utf-8"))
    if int8_weights.complete(out, spec):
        console.say(f"{spec.name}: int8 weights were made, now that nncf is here")
    weights = {form: name for form, name in spec.weights.model_dump(exclude_none=True).items() if (out / name).exists()}
    measured = agreement.complete(out, weights, kept)
    versions = installed_versions()
    if kept.get("with") != versions and MEASURES.search(script.read_text("utf-8")):
        _write(out, {key: value for key, value in kept.items() if key != "with"})  # until it is measured anew
        measured |= {**_call(script, "measure", out, progress), "with": versions}
    if measured != kept:
        _write(out, measured)
    return measured


def installed_versions() -> dict[str, str]:
    """The versions of Python and of every engine that is installed, and the processor's instructions."""
    from slotwise.worker.engines.choice import installed  # noqa: PLC0415  brings numpy
    from slotwise.worker.engines.versions import environment  # noqa: PLC0415  brings numpy

    return {key: value for name in ENGINES if installed(name) for key, value in environment(name).items()}


def _write(out: Path, measured: Mapping[str, Any]) -> None:
    partial = out / f"{MEASURED}.partial"
    partial.write_text(json.dumps(measured, indent=2), "utf-8")
    partial.replace(out / MEASURED)


def without_missing_int8(spec: ModelSpec, sources: list[Path]) -> ModelSpec:
    """The spec without int8 weights where make.py could not write them, because nncf is not installed here."""
    name = spec.weights.openvino_int8
    if name is None or any((source / name).is_file() for source in sources) or importlib.util.find_spec("nncf"):
        return spec
    return without_int8(spec)


def without_int8(spec: ModelSpec) -> ModelSpec:
    """The spec as if model.toml named no int8 weights."""
    return spec.model_copy(update={"weights": spec.weights.model_copy(update={"openvino_int8": None})})


def check_fit(folder: Path, spec: ModelSpec) -> None:
    """Check that a state_dict holds tensors alone, and that they fit their module. Raises SlotwiseError where they do not."""
    if spec.weights.state_dict is None or spec.weights.module is None or importlib.util.find_spec("torch") is None:
        return
    import torch  # noqa: PLC0415  heavy

    from slotwise.worker.engines.torch import build_module  # noqa: PLC0415  brings torch

    file, (path, _, name) = folder / spec.weights.state_dict, spec.weights.module.partition(":")
    if not file.is_file() or not (folder / path).is_file():
        return  # packing names what is missing
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        hint = 'save the tensors alone: torch.save(model.state_dict(), "weights.pt"); a TorchScript file is `torchscript = ...`'
        raise SlotwiseError(f"{file} is not a state_dict", hint) from error
    try:
        build_module(folder / path, name).load_state_dict(state)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise SlotwiseError(
            f"{file.name} does not fit {spec.weights.module}: {reason}", "name the class as net.py:Net"
        ) from error


@contextmanager
def partial_folder(folder: Path) -> Iterator[Path]:
    """An empty folder that is gone afterwards, unless it was renamed."""
    with held():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            with let_through():
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _printing_on_stderr() -> Iterator[None]:
    """What is printed meanwhile, also by a program that is started, goes to standard error: stdout is for our own answer."""
    if sys.stdout is None:  # it was closed before
        yield
        return
    sys.stdout.flush()
    ours = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)


def _failed(script: Path, error: BaseException) -> SlotwiseError:
    at = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(script)]
    where = f" at line {at[-1]}" if at else ""
    why = " ".join(str(error).split())
    return SlotwiseError(f"{script} failed{where}: {type(error).__name__}: {why}", "see that line")


def _call(script: Path, function: str, out: Path, *arguments: Any) -> dict[str, Any]:
    """What this function of make.py returns for `out` and the other arguments."""
    before = set(sys.modules)
    os.environ.setdefault(
        "TORCHINDUCTOR_CACHE_DIR", str(project.state_root() / "torchinductor")
    )  # else torch leaves it in /tmp
    sys.path.insert(0, str(script.parent))
    try:
        spec = importlib.util.spec_from_file_location(f"slotwise_make_{script.parent.name}", script)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with _printing_on_stderr():
            spec.loader.exec_module(module)
            with noting_what_is_left(script, out.parent):
                result = getattr(module, function)(out, *arguments) or {}
        as_kept: dict[str, Any] = json.loads(json.dumps(result, default=float))
        return as_kept
    except SlotwiseError:
        raise
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise _failed(script, error) from error
        error.filename = error.filename or str(out)
        raise
    except ModuleNotFoundError as error:
        raise missing_package(error.name or "", str(script)) from error
    except (Exception, SystemExit) as error:  # what ends a script of its own would end the build, with its exit code
        raise _failed(script, error) from error
    finally:
        sys.path.remove(str(script.parent))
        for name in set(sys.modules) - before:  # the next model's make.py may import another net.py
            if str(getattr(sys.modules[name], "__file__", "") or "").startswith(f"{script.parent}/"):
                del sys.modules[name]
