"""Make exported files reproducible: remove paths of this machine and counters of this process from them.

Exporters record where in the source each operation came from. And they number what has no name, by counters that are never
reset. So the same network would give another file when it is exported in another folder, or after another network.
"""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Any

MANGLED = re.compile(rb"___torch_mangle_(\d+)")  # what TorchScript calls a second class of the same name
UNNAMED = re.compile(r'(<layer id="\d+" name="[A-Za-z]+_)(\d+)(")')  # what OpenVINO calls an operation without a name
EPOCH = (1980, 1, 1, 0, 0, 0)


def forget_classes() -> None:
    """Make TorchScript name the classes of the next trace as in a new process, apart from their numbers."""
    import torch  # noqa: PLC0415  heavy

    torch._C._jit_clear_class_registry()
    torch.jit._recursive.concrete_type_store = torch.jit._recursive.ConcreteTypeStore()


def torchscript(path: Path) -> None:
    """Drop the source positions from a TorchScript file, and number its classes from 0."""
    with zipfile.ZipFile(path) as source:
        records = {name: source.read(name) for name in source.namelist()}
    kept = {name: data for name, data in records.items() if not name.endswith((".debug_pkl", "/serialization_id"))}
    numbers = sorted(
        {int(n) for name, data in kept.items() for n in MANGLED.findall(name.encode() + b"\n" + _code(name, data))}
    )
    new = {str(number).encode(): str(i).encode() for i, number in enumerate(numbers)}

    def renumbered(data: bytes) -> bytes:
        return MANGLED.sub(lambda match: b"___torch_mangle_" + new[match[1]], data)

    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as target:
        for name, data in kept.items():
            entry = zipfile.ZipInfo(renumbered(name.encode()).decode(), EPOCH)
            entry.create_system = 3
            target.writestr(entry, renumbered(data) if _code(name, data) else data)
    path.write_bytes(written.getvalue())


def _code(name: str, data: bytes) -> bytes:
    """The record's bytes where it may name classes, which is in code and pickles; nothing for a tensor's bytes."""
    return data if name.endswith((".py", ".pkl")) else b""


def program(exported: Any) -> None:
    """Drop the source positions from a torch.export program."""
    for module in exported.graph_module.modules():
        for node in module.graph.nodes if hasattr(module, "graph") else []:
            node.meta.pop("stack_trace", None)


def onnx(path: Path) -> None:
    """Drop what the exporter recorded (source positions, names of modules) from an ONNX graph."""
    import onnx as library  # noqa: PLC0415  optional

    model = library.load(path)
    graphs: list[Any] = [model.graph, *model.functions]
    while graphs:
        graph = graphs.pop()
        for part in (graph, *graph.node, *graph.value_info, *getattr(graph, "input", []), *getattr(graph, "output", [])):
            if not isinstance(part, str):
                del part.metadata_props[:]
                part.doc_string = ""
        for tensor in getattr(graph, "initializer", []):
            del tensor.metadata_props[:]
            tensor.doc_string = ""
        graphs += [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    del model.metadata_props[:]
    path.write_bytes(model.SerializeToString(deterministic=True))


def openvino(path: Path) -> None:
    """Number the unnamed operations of an OpenVINO graph from 0, in the order of the file."""
    counted = iter(range(10**9))
    text = path.read_text("utf-8")
    path.write_text(UNNAMED.sub(lambda match: f"{match[1]}{next(counted)}{match[3]}", text), "utf-8")
