"""Each model on each engine: does a bit of an answer change beside mates? In this process, and on a real TorchServe."""

from __future__ import annotations

import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from slotwise.archive.build import build
from slotwise.archive.inspection import extract
from slotwise.archive.packaging import in_archive, in_file, in_text, write_zip
from slotwise.client.inference import InferenceClient
from slotwise.client.management import ManagementClient
from slotwise.console import say
from slotwise.server.lifecycle import ServerRecord
from tests.support import watched
from tests.support.bit_for_bit import FEW, MATES, MODELS, PADDINGS, WEIGHTS, Found, batches, try_archive

MANIFEST, SETTINGS = "MAR-INF/MANIFEST.json", "slotwise.json"


def measure(record: ServerRecord, work: Path) -> dict[str, Any]:
    """Every model, every engine that runs it here."""
    rows = []
    for name in MODELS:
        path = build(name, work / "store", WEIGHTS.get(name))
        for found in try_archive(extract(path, work / name), name, FEW.get(name, MATES)):
            try_served(record, path, found)
            served = f"{found.served_differing} of {found.served} that were served"
            say(f"{found.model}, {found.engine}: {found.differing} of {found.answers} differ, {served}")
            rows.append(found.row())
    return {"mates": [MATES[0], MATES[-1]], "few": FEW, "paddings": PADDINGS, "made_up": sorted(WEIGHTS), "rows": rows}


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
        write_zip({**in_archive(source), "watched.py": in_file(Path(watched.__file__)), **files}, target)
