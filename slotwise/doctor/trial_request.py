"""Whether a request gets through: a server of its own, a tiny model built on the spot, one request, and nothing left over."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from slotwise.archive.build import build
from slotwise.client.inference import InferenceClient
from slotwise.client.management import ManagementClient
from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.interrupts import held, let_through
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import load_profile
from slotwise.server import lifecycle

NAME = "doctor"
BODY = b"is anybody there?"
HANDLER = """
from slotwise.worker import BatchHandler

class Doctor(BatchHandler):
    def load(self, model_dir, settings):
        return lambda rows: rows

    def decode(self, body, headers):
        return [body]

    def collate(self, items):
        return items

    def encode(self, output, item):
        return {"heard": output.decode()}

handle = Doctor.entry_point()
"""


def ask(kind: lifecycle.Kind) -> str:
    """Send one request through a server of that kind; what came of it. Raises SlotwiseError where it does not get through."""
    started, state = time.monotonic(), f"{NAME}-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="slotwise-doctor-") as name, held():
        folder, store = Path(name, NAME), Path(name, "store")
        folder.mkdir()
        (folder / "doctor.py").write_text(HANDLER.lstrip(), "utf-8")
        (folder / "model.toml").write_text(f'name = "{NAME}"\nhandler = "doctor.py"\n', "utf-8")
        build(folder, store)
        profile = load_profile("cpu", {}, {})
        try:
            record = lifecycle.start(state, kind, profile, model_store=store, ports=Ports.free(), models={})
            try:
                with let_through():
                    return f"{_answer(record)} after {time.monotonic() - started:.0f} s"
            finally:
                lifecycle.stop(record)
        finally:
            shutil.rmtree(project.state_root() / state, ignore_errors=True)


def _answer(record: lifecycle.ServerRecord) -> str:
    with ManagementClient(record) as management, InferenceClient(record) as inference:
        management.register(f"{NAME}.mar", batch_size=2, max_batch_delay=1, initial_workers=1)
        management.wait_ready(NAME)
        answer = inference.predict(NAME, BODY)
    if answer.status_code != 200 or answer.json() != {"heard": BODY.decode()}:
        raise SlotwiseError(f"{record.kind} answered {answer.status_code} {answer.text[:200]}", "paste this into a bug report")
    return f"{record.kind} answered a request"
