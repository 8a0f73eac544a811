"""Each model on each engine, with both paddings, beside 1 to 16 mates, good, loud and broken: does a bit of an answer change?

What a row gets is compared with what it gets among copies of itself, in a call of the same size and at the same place.
Handlers answer with the bits of what the engine gave, so that nothing is rounded away. Each is asked in this process, and then
on a real TorchServe by as many clients at once.
"""

from __future__ import annotations

import importlib
import json
import sys
import zipfile
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from measuring.watched import BROKEN, POISON, References, invited, watched
from slotwise.archive.build import build
from slotwise.archive.inspection import extract
from slotwise.archive.packaging import in_archive, in_file, in_text, write_zip
from slotwise.client.inference import InferenceClient
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.server.lifecycle import ServerRecord
from slotwise.worker import BatchHandler, Headers, Pipeline, Request
from slotwise.worker.hosts.proving import choices
from slotwise.worker.separability.about import identity
from slotwise.worker.separability.bits import Deviation, holds_floats
from slotwise.worker.separability.mates import company

MODELS = ("digits", "mnist", "efficientnet", "ants_bees", "resnet18", "resnet152", "captions", "translation")
WEIGHTS = {"ants_bees": "none", "resnet18": "none", "resnet152": "none"}  # the others have small ones of their own
PADDINGS = ("none", "static")
MATES = range(1, 17)
FEW = {"resnet152": (1, 2, 4, 7, 16)}  # of so large a network
MANIFEST, SETTINGS = "MAR-INF/MANIFEST.json", "slotwise.json"


@dataclass
class Found:
    """What was found on one engine. answers: how many were compared. differing: how many of those differ in a bit.

    between_shapes: how far the row's output is at most from what it is alone, in any batch and at any place. texts: whether
    outputs are texts or token ids, of which no bits are to be seen. choice: the settings that choose the engine. kinds: of
    mates. served, served_differing: the same of answers that came from a server; shared: how many of those shared their call.
    """

    model: str
    engine: str
    version: str
    choice: dict[str, str] = field(default_factory=dict)
    kinds: int = 0
    answers: int = 0
    differing: int = 0
    served: int = 0
    served_differing: int = 0
    shared: int = 0
    between_shapes: Deviation = field(default_factory=Deviation)
    texts: bool = False

    def row(self) -> dict[str, Any]:
        """As the figure has it."""
        apart = {"absolute": self.between_shapes.absolute, "relative": self.between_shapes.relative}
        return {**vars(self), "between_shapes": apart}


def measure(options: Namespace, work: Path) -> dict[str, Any]:
    """Every model, every engine that runs it here."""
    from measuring.parts import server

    (work / "store").mkdir()
    rows = []
    with server(work) as record:
        for name in MODELS:
            path = build(name, work / "store", WEIGHTS.get(name))
            for found in try_archive(extract(path, work / name), name, FEW.get(name, MATES)):
                try_served(record, path, found)
                served = f"{found.served_differing} of {found.served} that were served"
                say(f"{found.model}, {found.engine}: {found.differing} of {found.answers} differ, {served}")
                rows.append(found.row())
    return {"mates": [MATES[0], MATES[-1]], "few": FEW, "paddings": PADDINGS, "made_up": sorted(WEIGHTS), "rows": rows}


def try_archive(folder: Path, name: str, mates: Sequence[int]) -> Iterator[Found]:
    """What is found of an extracted archive on each engine that its handler can load."""
    kind = handler_of(folder)
    tried = set()
    for settings in choices(folder, max(mates) + 1):
        handler = watched(kind)
        handler.settings = settings.but(proof_s=0.0)
        try:
            handler.engine = handler.load(folder, handler.settings)
        except Exception:
            continue
        if (about := identity(handler)) not in tried:
            tried.add(about)
            found = try_engine(handler, folder, name, mates)
            found.choice = {"engine": settings.engine, "precision": settings.precision}
            yield found


def handler_of(folder: Path) -> type[BatchHandler]:
    """The class of the archive's handler."""
    handler = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text("utf-8"))["model"]["handler"]
    sys.path.insert(0, str(folder))
    try:
        sys.modules.pop(Path(handler).stem, None)
        module = importlib.import_module(Path(handler).stem)
    finally:
        sys.path.remove(str(folder))
    return type(module.handle.__self__.handler)


def try_engine(handler: Any, folder: Path, name: str, mates: Sequence[int]) -> Found:
    """Ask for one row beside all kinds of mates, with every padding."""
    invited(handler, company(folder, handler))
    about = identity(handler)
    found = Found(name, about.engine, about.version)
    rows = max(mates) + 1
    vars(handler)["max_rows"] = rows
    references, found.kinds = References(handler, handler.target), len(handler.items) - 1
    for padding in PADDINGS:
        handler.settings = handler.settings.but(padding=padding, batch_size=rows, response_timeout_s=3600.0)
        pipeline = Pipeline(handler)
        for count in mates:
            for bodies in batches(count, len(handler.items) - 1):
                place = bodies.index(b"0")
                requests = [Request(body, Headers(), str(i)) for i, body in enumerate(bodies)]
                answer = pipeline.answer(requests)[place]
                assert answer.status == 200, answer
                found.answers += 1
                found.differing += answer.body.decode() != references.at(*handler.where)
    found.between_shapes, found.texts = references.between, not holds_floats(references.alone)
    return found


def try_served(record: ServerRecord, path: Path, found: Found) -> None:
    """Ask for the row on a server, beside the same mates, each of them a client of its own."""
    for padding in PADDINGS:
        name = f"{found.model}-{padding}"
        write_watched(path, record.model_store / f"{name}.mar", {**found.choice, "padding": padding, "proof_s": 0.0})
        with (
            ManagementClient(record) as management,
            InferenceClient(record) as client,
            ThreadPoolExecutor(MATES[-1] + 1) as pool,
        ):
            rows = MATES[-1] + 1
            management.register(f"{name}.mar", name=name, batch_size=rows, max_batch_delay=100, initial_workers=1)
            management.wait_ready(name)
            for count in FEW.get(found.model, MATES):
                for bodies in batches(count, found.kinds):
                    answers = list(pool.map(partial(client.predict, name), bodies))
                    answer = answers[bodies.index(b"0")]
                    assert answer.status_code == 200, answer.text
                    said = answer.json()
                    assert said["engine"] == found.engine, (said, found)
                    found.served += 1
                    found.served_differing += said["got"] != said["among copies"]
                    found.shared += said["size"] > 1
            management.unregister(name)


def write_watched(path: Path, target: Path, wishes: dict[str, Any]) -> None:
    """The same archive with these settings, and with its handler watched (watched.py)."""
    with zipfile.ZipFile(path) as source:
        manifest, settings = (json.loads(source.read(name)) for name in (MANIFEST, SETTINGS))
        given = manifest["model"]["handler"].removesuffix(".py")
        manifest["model"]["handler"] = "served_handler.py"
        settings["model"].setdefault("profiles", {}).setdefault("cpu", {}).update(wishes)
        handler = f"from {given} import handle as given\nfrom watched import served\n\nhandle = served(given).entry_point()\n"
        changed = {MANIFEST: json.dumps(manifest), SETTINGS: json.dumps(settings), "served_handler.py": handler}
        files = {name: in_text(text) for name, text in changed.items()}
        write_zip({**in_archive(source), "watched.py": in_file(Path(__file__).with_name("watched.py")), **files}, target)


def batches(count: int, kinds: int) -> Iterable[list[bytes]]:
    """The row in the middle of so many mates: all kinds of them; some that are refused; one that makes the model fail."""
    good = [str(1 + i % kinds).encode() for i in range(count)]
    broken = [BROKEN if i % 2 else body for i, body in enumerate(good)]
    poisoned = [POISON, *good[1:]]
    for mates in (good, broken, poisoned):
        middle = (count + 1) // 2
        yield [*mates[:middle], b"0", *mates[middle:]]
