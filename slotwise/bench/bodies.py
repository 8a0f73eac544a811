"""Get the bodies to send: from files, from a model's examples, and bad ones on purpose."""

from __future__ import annotations

import copy
import json
import mimetypes
import random
import shlex
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slotwise.archive.store import archive_file
from slotwise.archive.zip_safety import DAMAGE, read_small
from slotwise.errors import SlotwiseError
from slotwise.files.disk import check_regular
from slotwise.files.project import model_folder, models
from slotwise.model_spec import load_spec, read_toml

MOST_OF_A_MIX = 1000
MAX_EXAMPLES, MAX_EXAMPLE_BYTES = 100, 32 << 20  # of an archive
BODY_FIELD = "body"  # the form field in which both servers' front ends hand a plain HTTP body to a worker


@dataclass(frozen=True)
class RequestBody:
    """One request body. bad: it is meant to be refused. name: where it came from, or what is wrong with it.

    field: the form field in which a worker gets it; None for a request without any field.
    """

    data: bytes
    content_type: str = "application/octet-stream"
    bad: bool = False
    name: str = ""
    field: str | None = BODY_FIELD


def content_type(path: str) -> str:
    """The content type that a file's name stands for."""
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


def from_files(paths: Sequence[Path]) -> list[RequestBody]:
    """One body a file; a folder stands for the files in it."""
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    if paths and not files:
        raise SlotwiseError(f"there is no file in {', '.join(map(str, paths))}", "name files to send")
    try:
        return [RequestBody(file.read_bytes(), content_type(file.name), name=file.name) for file in files]
    except OSError as error:
        raise SlotwiseError(f"a body cannot be read: {error}", "name files to send with --body") from error


def from_mix(file: Path) -> list[RequestBody]:
    """The bodies of a mix, each as often as its weight says, in an order drawn once.

        [[body]]
        file = "small.jpg"
        weight = 3
        content_type = "image/jpeg"

    A file stands beside the mix; weight (1 where it is not given) is a whole number up to MOST_OF_A_MIX. Without a content
    type it is the name's.
    """
    bodies: list[RequestBody] = []
    entries = read_toml(file).get("body", [])
    if not (isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)):
        raise SlotwiseError(f"{file}: its bodies are tables", 'write [[body]] and below it file = "..."')
    for entry in entries:
        weight = entry.get("weight", 1)
        known = (
            isinstance(entry.get("file"), str) and type(weight) is int and entry.keys() <= {"file", "weight", "content_type"}
        )
        if not known or not 1 <= weight <= MOST_OF_A_MIX or (file.parent / entry["file"]).is_dir():
            raise SlotwiseError(
                f"{file}: a body has a file, a weight from 1 to {MOST_OF_A_MIX} and a content_type", f"not {entry}"
            )
        body = from_files([file.parent / entry["file"]])[0]
        bodies += weight * [replace(body, content_type=str(entry.get("content_type") or body.content_type))]
    if not bodies:
        raise SlotwiseError(f"{file} names no body", 'write [[body]] and below it file = "..."')
    random.Random(0).shuffle(bodies)
    return bodies


def examples(model: str) -> list[RequestBody]:
    """The bodies that a model (a name, a folder or an archive) names as `examples` in its model.toml."""
    if model.endswith(".mar"):
        bodies = _from_archive(Path(model))
    else:
        folder = model_folder(model)
        spec = load_spec(folder)
        files, archive = [folder / name for name in spec.examples], archive_file(Path("model_store"), spec.name, spec.version)
        in_archive_only = not all(file.exists() for file in files)  # its make.py makes them
        bodies = _from_archive(archive) if in_archive_only and archive.is_file() else from_files(files)
    if not bodies:
        raise SlotwiseError(f"{model} has no example bodies", "name files to send with --body")
    return bodies


def example_file(model: str) -> str:
    """The path of a body that a known model answers, as a person here would type it; FILE where none comes along."""
    folder = models().get(model)
    try:
        names = load_spec(folder).examples if folder else []
    except SlotwiseError:
        return "FILE"
    file = next((folder / name for name in names if folder and (folder / name).is_file()), None)
    if file is None:
        return "FILE"
    return shlex.quote(str(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file))


def _from_archive(archive: Path) -> list[RequestBody]:
    check_regular(archive)
    try:
        with zipfile.ZipFile(archive) as mar:
            names = sorted(name for name in mar.namelist() if name.startswith("examples/"))[:MAX_EXAMPLES]
            return [
                RequestBody(read_small(mar, name, MAX_EXAMPLE_BYTES), content_type(name), name=Path(name).name)
                for name in names
            ]
    except (*DAMAGE, RuntimeError) as error:  # RuntimeError: it is encrypted
        raise SlotwiseError(f"{archive} cannot be read: {error}", "`slotwise build MODEL` makes an archive") from error


def bad_bodies(example: RequestBody) -> list[RequestBody]:
    """Bodies that few models can take. The last two need a worker's own protocol: plain HTTP cannot carry them."""
    kind = example.content_type
    half = example.data[: len(example.data) // 2]
    return [
        RequestBody(half, kind, bad=True, name="truncated body"),
        RequestBody(b"this is no input", kind, bad=True, name="plain text"),
        RequestBody(b"", kind, bad=True, name="empty body"),
        RequestBody(b"\x00\xff not what you expected \xfe" * 9, kind, bad=True, name="noise"),
        RequestBody(b"{}", "application/json", bad=True, name="empty JSON object"),
        RequestBody(b"1", "text/plain", bad=True, name="form without a body", field="somefield"),
        RequestBody(b"", bad=True, name="request without a field", field=None),
    ]


def bad_http_bodies(example: RequestBody) -> list[RequestBody]:
    """The bad bodies that plain HTTP can carry."""
    return [body for body in bad_bodies(example) if body.field == BODY_FIELD]


def with_records(body: RequestBody, count: int) -> RequestBody:
    """The same request with `count` records, its own ones again and again, each with its own id."""
    try:
        content: dict[str, Any] = json.loads(body.data)
        own = content["payload"]["records"]
        records = [{**copy.deepcopy(own[i % len(own)]), "id": str(i)} for i in range(count)]
    except (ValueError, LookupError, TypeError) as error:
        raise SlotwiseError(
            f"{body.name or 'the body'} has no payload.records to repeat",
            "--records is for bodies such as the translation model's",
        ) from error
    content["payload"]["records"] = records
    return RequestBody(json.dumps(content, ensure_ascii=False).encode(), body.content_type, name=body.name)


def deck(bodies: Sequence[RequestBody], poison: float = 0.0, seed: int = 0) -> Iterator[RequestBody]:
    """The bodies one after the other, without end. poison: the share that is replaced by bad ones, drawn at random."""
    draw = random.Random(seed)
    bad = bad_http_bodies(bodies[0])
    turn = 0
    while True:
        if poison and draw.random() < poison:
            yield draw.choice(bad)
        else:
            yield bodies[turn % len(bodies)]
            turn += 1
