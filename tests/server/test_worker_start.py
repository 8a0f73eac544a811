"""TorchServe's workers import torch only where something uses it; what they answer stays the same."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import psutil
import pytest

from slotwise.server.java import worker_start
from tests.server.conftest import Live, needs_a_servers_context

TENSORS = """
import sys

def handle(data, context):
    answers = []
    for row in data or []:
        if bytes(row.get("data") or row.get("body")) == b"tensor":
            import torch
            answers.append(torch.ones(2))
        else:
            answers.append({"torch": "torch" in sys.modules})
    return answers
"""


def python(folder: Path, *arguments: str) -> str:
    done = subprocess.run([worker_start.python(folder), *arguments], capture_output=True, text=True, timeout=300, check=True)
    return done.stdout.strip()


def test_all_but_a_worker_is_run_as_ever_and_a_worker_as_python_would(tmp_path: Path) -> None:
    folder = tmp_path / "a 'folder' with $odd names"
    folder.mkdir()
    assert python(folder, "-c", "import sys; print(sys.argv[1:])", "a b", "$c", "*") == "['a b', '$c', '*']"
    package = tmp_path / "site" / "ts"
    (package / "protocol").mkdir(parents=True)
    for name in ("__init__.py", "protocol/__init__.py"):
        (package / name).touch()
    protocol = "import torch\ndef is_tensor():\n    return isinstance(1, torch.Tensor)\n"
    (package / "protocol" / "otf_message_handler.py").write_text(protocol)
    (package / "beside.py").write_text("import sys\nassert 'torch' not in sys.modules and 'slotwise' not in sys.modules\n")
    worker = package / "model_service_worker.py"
    worker.write_text(
        "import sys, beside\nfrom ts.protocol.otf_message_handler import is_tensor\n"
        "assert not is_tensor() and 'torch' not in sys.modules\n"
        "import torch\nassert torch.Tensor and not is_tensor()\nprint(__name__, sys.argv)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(package.parent))
        assert python(folder, str(worker), "--sock-name", "a b") == f"__main__ {[str(worker), '--sock-name', 'a b']}"
        (package.parent / "sitecustomize.py").write_text("import torch\n")  # twice in a process it cannot be imported
        worker.write_text("import sys\nbefore = sys.modules['torch']\nimport torch\nprint(torch is before, torch.__file__)\n")
        import torch

        assert python(folder, str(worker)) == f"True {torch.__file__}"


def test_where_nothing_in_the_folder_may_be_run_it_is_our_own_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert worker_start.python(tmp_path) == sys.executable


def test_a_worker_starts_as_ever_while_slotwise_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_start, "__file__", str(tmp_path / "gone" / "worker_start.py"))
    worker = tmp_path / "ts" / "model_service_worker.py"
    worker.parent.mkdir()
    worker.write_text("import sys\nprint(sys.argv[1:], sys.path[0])\n")
    assert python(tmp_path, str(worker), "a") == f"['a'] {worker.parent}"


def test_what_is_used_of_torch_is_the_real_one() -> None:
    import torch

    deferred = worker_start.DeferredTorch("torch")
    assert deferred.Tensor is torch.Tensor
    assert deferred.save is torch.save
    for missing in ("__path__", "no_such_thing"):
        with pytest.raises(AttributeError):
            getattr(deferred, missing)


@pytest.mark.server
def test_a_worker_of_another_engine_has_no_torch_and_a_tensor_is_still_sent_as_one(live: Live, store: Path) -> None:
    if live.record.kind == "mms":
        pytest.skip("MMS imports no torch")
    needs_a_servers_context(live)
    (pid,) = live.pids("digits")
    assert not [entry.path for entry in psutil.Process(pid).memory_maps() if "libtorch" in entry.path]
    with zipfile.ZipFile(store / "tensors.mar", "w") as archive:
        archive.writestr("tensors.py", TENSORS)
        model = {"modelName": "tensors", "modelVersion": "1.0", "handler": "tensors.py"}
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"runtime": "python", "model": model}))
    import torch

    with live.registered("tensors"):
        assert live.inference.predict("tensors", b"a dict").json() == {"torch": False}
        answer = live.inference.predict("tensors", b"tensor")
        assert torch.load(io.BytesIO(answer.content), weights_only=True).tolist() == [1.0, 1.0]
        assert live.inference.predict("tensors", b"a dict").json() == {"torch": True}
