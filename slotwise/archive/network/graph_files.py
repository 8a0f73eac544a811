"""The files of an ONNX graph. One that keeps its weights beside it becomes one file, so that whoever reads it has all of it."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.files.disk import written_whole
from slotwise.model_spec import ModelSpec

MOST = 2**31 - 1  # bytes: no file of ONNX is larger


def with_whole_graph(spec: ModelSpec, sources: list[Path]) -> tuple[ModelSpec, list[Path]]:
    """The description and the folders to take files from, with the weights in the graph's own file.

    Raises SlotwiseError for weights that are not in the model's folder, or that model.toml does not name.
    """
    name = spec.weights.onnx
    source = next((folder for folder in sources if name and (folder / name).is_file()), None)
    if name is None or source is None or importlib.util.find_spec("onnx") is None:
        return spec, sources
    import onnx  # noqa: PLC0415  optional

    try:
        graph = onnx.load(source / name, load_external_data=False)
    except Exception:  # whoever needs it says so
        return spec, sources
    beside = [str(PurePosixPath(name).parent / location) for location in locations(graph)]
    if not beside:
        return spec, sources
    for file in beside:
        _check(spec, source, name, file)
    own = spec.handler.endswith(".py")
    if sum((source / file).stat().st_size for file in (name, *beside)) > MOST:
        if own:
            return spec, sources
        raise SlotwiseError(f"{name} is larger than 2 GiB with its weights, and no file of ONNX can be", "name another form")
    try:
        onnx.load_external_data_for_model(graph, str((source / name).parent))
    except Exception as error:
        raise SlotwiseError(f"{name} cannot be read with {', '.join(beside)}: {error}", "export the model again") from error
    files = [file for file in spec.files if own or file not in beside]  # an author's own code may read them
    return spec.model_copy(update={"files": files}), [kept_graph(spec, graph), *sources]


def kept_graph(spec: ModelSpec, graph: Any) -> Path:
    """The folder that has this graph under the name that model.toml has for it."""
    data = graph.SerializeToString(deterministic=True)
    folder = project.cache_dir() / spec.name / f"onnx-{hashlib.sha256(data).hexdigest()[:16]}"
    target = folder / str(spec.weights.onnx)
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(target) as unfinished:
            unfinished.write_bytes(data)
    return folder


def locations(graph: Any) -> list[str]:
    """The files in which the graph keeps large tensors, by their places beside it. Raises SlotwiseError for one elsewhere."""
    found = {entry.value for tensor in _tensors(graph.graph) for entry in tensor.external_data if entry.key == "location"}
    for location in found:
        if location.startswith("/") or ".." in PurePosixPath(location).parts:
            raise SlotwiseError(f"the graph keeps tensors in {location}, which is not beside it", "export it again")
    return sorted(found)


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for attribute in (one for node in graph.node for one in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for inner in (attribute.g, *attribute.graphs):
            yield from _tensors(inner)


def _check(spec: ModelSpec, source: Path, name: str, file: str) -> None:
    if not any(PurePosixPath(file).is_relative_to(named) for named in spec.files):
        raise SlotwiseError(f"{name} keeps weights in {file}, which model.toml does not name", f'write: files = ["{file}"]')
    path = source / file
    if not path.is_file():
        raise SlotwiseError(f"{name} keeps weights in {file}, which is not beside it", "add the file")
    if not path.resolve().is_relative_to(source.resolve()):
        raise SlotwiseError(f"{name} keeps weights in {file}, which is a link out of the model's folder", "copy the file")
