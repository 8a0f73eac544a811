"""Write an archive's ONNX graph into a Triton model repository, for Triton's own backend: `slotwise export triton --native`.

REPO/NAME/config.pbtxt       platform: "onnxruntime_onnx", with the profile's batches and instances
REPO/NAME/1/model.onnx       the graph that the archive serves, and what it keeps beside itself
REPO/NAME/labels.txt         the model's labels, for Triton's classification extension
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from slotwise.archive.network.graph_files import locations
from slotwise.archive.triton.repository import replaced
from slotwise.errors import SlotwiseError, missing_package
from slotwise.model_spec import two_lines
from slotwise.profiles.triton_config import NativeTensor, native_pbtxt
from slotwise.worker.engines.choice import output_of
from slotwise.worker.separability.proof import holds_for

if TYPE_CHECKING:
    from slotwise.archive.archive_info import ArchiveInfo
    from slotwise.profiles.profile import Profile

PROVES = "onnxruntime fp32 "  # what Triton runs; another engine's proof says nothing about it
GRAPH, LABELS = "model.onnx", "labels.txt"
KINDS = {
    "FLOAT": "TYPE_FP32", "DOUBLE": "TYPE_FP64", "FLOAT16": "TYPE_FP16", "BOOL": "TYPE_BOOL", "STRING": "TYPE_STRING",
    **{f"{sign}INT{bits}": f"TYPE_{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
}  # fmt: skip


@dataclass(frozen=True)
class NativeModel:
    """What was written. batch_size: 0 where the graph takes one row a request. notes: what its clients have to know."""

    folder: Path
    batch_size: int
    notes: list[str] = field(default_factory=list)


def export_native(info: ArchiveInfo, profile: Profile, repository: Path, *, name: str | None = None) -> NativeModel:
    """Write the model into the repository, whose folder is made; its earlier export is replaced.

    profile: as the model wants it. Raises SlotwiseError where the archive carries no graph that Triton's backend can take.
    """
    name = name or info.name
    try:
        graph, files = _read(info)
        free = _free(graph, info.model)
        given, found = _tensor(_given(graph), free), _output(graph, free, info.model)
        batch_size, notes = _batch(info, profile, free)
        notes += _left_to_clients(info.model)
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:  # what no build of ours wrote
        raise SlotwiseError(f"the ONNX graph in {info.path.name} cannot be read: {error!r:.200}", "build it again") from error
    with replaced(repository, name) as partial:
        for file, data in files.items():
            target = partial / "1" / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        if found.labels:
            (partial / LABELS).write_text("\n".join(info.model["labels"]) + "\n", "utf-8")
        config = native_pbtxt(name, profile, given, found, batch_size=batch_size)
        (partial / "config.pbtxt").write_text(config, "utf-8")
    return NativeModel(repository / name, batch_size, notes)


def _read(info: ArchiveInfo) -> tuple[Any, dict[str, bytes]]:
    """The archive's graph, and every file that belongs to it, by its place beside the graph."""
    file = info.model.get("weights", {}).get("onnx")
    if not file:
        raise SlotwiseError(f"{info.path.name} carries no ONNX graph", "without --native its archive runs on Triton as it is")
    with zipfile.ZipFile(info.path) as source:
        graph = _graph(source.read(file))
        files = {location: source.read(str(PurePosixPath(file).parent / location)) for location in locations(graph)}
        return graph, {**files, GRAPH: source.read(file)}


def _graph(data: bytes) -> Any:
    try:
        import onnx  # noqa: PLC0415  optional
    except ImportError as error:
        raise missing_package("onnx", "exporting a graph") from error
    from google.protobuf.message import DecodeError  # noqa: PLC0415  comes with it

    try:
        return onnx.load_model_from_string(data)
    except DecodeError as error:
        raise ValueError("it is no graph") from error


def _sides(value: Any) -> list[int]:
    """A tensor's sides, -1 where one is free."""
    return [dim.dim_value if dim.HasField("dim_value") else -1 for dim in value.type.tensor_type.shape.dim]


def _served(graph: Any, model: dict[str, Any]) -> Any:
    name = output_of(model)
    return next(value for value in graph.graph.output if name in (None, value.name))


def _given(graph: Any) -> Any:
    constants = {tensor.name for tensor in graph.graph.initializer}
    given = [value for value in graph.graph.input if value.name not in constants]
    if len(given) > 1:
        named = ", ".join(value.name for value in given)
        raise SlotwiseError(
            f"the graph has several inputs: {named:.200}", "without --native its archive runs on Triton as it is"
        )
    return given[0]


def _free(graph: Any, model: dict[str, Any]) -> bool:
    """Whether a batch may have any number of rows."""
    return _sides(_given(graph))[:1] == [-1] == _sides(_served(graph, model))[:1]


def _tensor(value: Any, free: bool) -> NativeTensor:
    from onnx import TensorProto  # noqa: PLC0415  optional

    kind = TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    if kind not in KINDS:
        raise SlotwiseError(f"the graph's {value.name} holds {kind}, which Triton has no type for", "export it in FP32")
    return NativeTensor(value.name, KINDS[kind], _sides(value)[free:])


def _output(graph: Any, free: bool, model: dict[str, Any]) -> NativeTensor:
    found, labels = _tensor(_served(graph, model), free), model.get("labels", [])
    fits = labels and list(found.shape[-1:]) == [len(labels)]
    if fits and two_lines(labels) is not None:  # of an archive that was built before that was refused
        raise SlotwiseError("a label holds a line break, and Triton reads one a line", "correct the labels, and build it again")
    return NativeTensor(found.name, found.kind, found.shape, LABELS if fits else "")


def _batch(info: ArchiveInfo, profile: Profile, free: bool) -> tuple[int, list[str]]:
    """How many rows Triton may run at once: those that were proven to keep apart. It proves nothing by itself."""
    if not free:
        return 0, ["its batch is fixed, so Triton runs a row a request: export it with a dynamic batch"]
    verdict = next((one for one in info.separability if one.about.engine.startswith(PROVES)), None)
    if verdict is not None and verdict.separable:
        elsewhere = profile.device == "cuda" and profile.batch_size > 1
        notes = [f"that rows keep apart was proven on {verdict.about}, and not on a GPU"] if elsewhere else []
        most = min(profile.batch_size, verdict.most_rows or profile.batch_size)
        tried = most if holds_for(verdict, most) else min(most, max(verdict.sizes, default=1))
        notes += [f"batches of {tried}, because rows were proven to keep apart in no larger ones"] if tried < most else []
        return tried, notes
    most = min(profile.batch_size, (verdict.most_rows if verdict else 0) or 1)
    cause = verdict.cause if verdict else f"it was never tried on {PROVES.strip()}"
    return most, [f"batches of {most}, because rows are not proven to keep apart: {cause}"] if profile.batch_size > most else []


def _left_to_clients(model: dict[str, Any]) -> list[str]:
    """What the archive's handler does with a request, and nobody does here."""
    given = model.get("input", {})
    scaled = [f"{key} {given[key]}" for key in ("mean", "std") if given.get(key)]
    notes = [f"clients apply {' and '.join(scaled)} themselves"] if scaled else []
    if model.get("handler") == "image_classifier":
        return ["clients send tensors: nobody decodes pictures", *notes]
    return notes if model.get("handler") == "tensor_classifier" else [f"{model.get('handler')} does not run there", *notes]
