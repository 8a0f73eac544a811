"""Build .mar archives: run a model's make.py, try its network in every form, pack it, and prove that it keeps rows apart."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise import console
from slotwise.archive.build_proof import prove_archive
from slotwise.archive.input_digests import input_digests
from slotwise.archive.make_script import check_fit, run_make_script, without_missing_int8
from slotwise.archive.model_stages import with_stages
from slotwise.archive.network import onnx_graph
from slotwise.archive.network.int8 import agreement_of, need_int8, served_in_int8
from slotwise.archive.network.int8_examples import with_int8
from slotwise.archive.network.trial import run_every_form
from slotwise.archive.packaging import pack
from slotwise.archive.store import archive_file
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.files.disk import check_writable, written_whole
from slotwise.interrupts import held
from slotwise.model_spec import ModelSpec, load_spec
from slotwise.worker.environment.digests import file_sha256
from slotwise.worker.familiar.sagemaker_program import program_of

if TYPE_CHECKING:
    from rich.progress import Progress

LEAST_MIB = 2  # of an archive: the worker code and its digests


def build(
    folder_or_name: str | Path,
    out_dir: Path | None = None,
    weights: str | None = None,
    progress: Progress | None = None,
    *,
    int8: bool = False,
    prove: Callable[[Path, ModelSpec], None] | None = None,
) -> Path:
    """Build OUT_DIR/NAME.mar (model_store/ by default) and NAME.report.json beside it. Returns the archive's path.

    Where NAME.mar holds another version, it stays, and this one becomes NAME-VERSION.mar beside it. Another model's archive, or
    another tool's, is never overwritten.

    weights: passed to the model's make.py. int8: the archive serves in int8; the report's `int8` says how far that agrees with
    fp32. prove: in place of the proof that its rows keep apart.
    A second build of the same inputs trains nothing and gives the same bytes.

    Raises SlotwiseError for what cannot be built, and for int8 that does not answer as fp32 does.
    """
    with tempfile.TemporaryDirectory(prefix="slotwise-stages-") as place:
        return _build(project.model_folder(str(folder_or_name)), out_dir, weights, progress, int8, prove, Path(place))


def _build(
    folder: Path,
    out_dir: Path | None,
    weights: str | None,
    progress: Progress | None,
    int8: bool,
    prove: Callable[[Path, ModelSpec], None] | None,
    place: Path,
) -> Path:
    """As `build`. place: where its stages are laid out."""
    spec = load_spec(folder)
    inputs = input_digests(folder, spec)
    if int8:
        need_int8(spec)
    out_dir = out_dir or project.model_store()
    archive_file(out_dir, spec.name, spec.version)  # refused before any work, where the place is another's
    check_writable(out_dir, LEAST_MIB)
    check_writable(project.state_root())
    sources = [folder]
    started = time.monotonic()
    spec, laid_out = with_stages(spec, folder, place, lambda one, out: build(one, out, prove=prove))
    out: Path | None = None
    measured: dict[str, Any] = {}
    if (folder / "make.py").is_file():
        with nullcontext(progress) if progress else console.progress() as bars:
            out, measured = run_make_script(folder, spec, weights, bars)
        sources = [out, folder]
        spec = without_missing_int8(spec, sources)
    elif weights is not None:
        raise SlotwiseError(f"{folder} has no make.py that could take --weights", "name the weights in its model.toml")
    else:
        check_fit(folder, spec)
    sources = [*laid_out, *sources]
    _check_program(spec, sources)
    spec, sources, graph = onnx_graph.fit(spec, sources)
    if int8 and spec.weights.openvino_int8 is None:
        spec, int8_folder, agreed = with_int8(spec, sources)
        sources, measured = [int8_folder, *sources], {**measured, **agreed}
    forms = run_every_form(spec, sources, out)
    agreement = agreement_of(spec, measured).data() if int8 else None
    spec = served_in_int8(spec) if int8 else spec
    measured = {**measured, **graph, **({"forms": forms} if forms else {})}
    out_dir.mkdir(parents=True, exist_ok=True)
    archive = archive_file(out_dir, spec.name, spec.version)
    report_file = archive.with_name(f"{archive.stem}.report.json")
    with held(), written_whole(report_file) as unfinished, written_whole(archive) as packed:  # both, or neither
        pack(spec, sources, packed, inputs, prove or prove_archive)
        about = {"model": spec.name, "version": spec.version, "archive": archive.name, "weights": weights}
        size = {"size_bytes": packed.stat().st_size, "sha256": file_sha256(packed)}
        report = {**about, **size, "build_s": round(time.monotonic() - started, 1), "measured": measured}
        report |= {"int8": agreement} if agreement else {}
        unfinished.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return archive


def _check_program(spec: ModelSpec, sources: list[Path]) -> None:
    """Raise SlotwiseError where the functions of a SageMaker model would be left out."""
    if spec.handler != "sagemaker":
        return
    code = next((source / "code" for source in sources if (source / "code").is_dir()), sources[-1] / "code")
    try:
        program = program_of(code, str(spec.options.get("program") or ""))
    except ValueError as error:
        hint = "program in [options] names the file of code/ with its functions"
        raise SlotwiseError(f"{spec.name}: {error}", hint) from error
    if program and not {"code", f"code/{program}"} & {*spec.content()}:
        raise SlotwiseError(f"{spec.name}: the archive would not hold code/{program}", 'add "code" to files in model.toml')
