"""Archives as other tools make them: torch-model-archiver's own, MMS's, and MMS's before 1.0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FUNCTION = """
import json

def handle(data, context):
    return data and [{"doubled": 2 * json.loads(row["body"])} for row in data]
"""


def torch_archive(folder: Path, handler: str, files: Mapping[str, str | bytes] = {}, **options: str) -> Path:
    """NAME.mar by torch-model-archiver. handler: a file's text, or a default handler's name. options: as --model-file."""
    work = folder / "parts"
    work.mkdir(parents=True, exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    name = options.pop("model_name", "theirs")
    if "\n" in handler:
        (work / f"{name}_handler.py").write_text(handler, "utf-8")
        handler = f"{name}_handler:{options.pop('function')}" if "function" in options else f"{name}_handler.py"
    named = set(options.values())
    for path, content in files.items():
        file = (
            work / path if path in named else work / "stage" / path
        )  # the archiver takes what is in a folder, without the folder
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    command = [sys.executable, "-m", "model_archiver.model_packaging", "--model-name", name, "--version", "1.0", "--force"]
    command += ["--handler", handler, "--export-path", str(folder)]
    command += [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", value)]
    command += ["--extra-files", "stage"] if set(files) - named else []
    environ = {**os.environ, "TMPDIR": str(folder / "tmp")}
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    return folder / f"{name}.mar"


def zipped(path: Path, files: Mapping[str, Any]) -> Path:
    """A zip of these files; what is no text is JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in files.items():
            target.writestr(name, content if isinstance(content, str | bytes) else json.dumps(content))
    return path


def mms_archive(path: Path, handler: str, name: str = "theirs", **files: str) -> Path:
    """As MMS's model-archiver makes it: no version of an archiver, no date."""
    model = {"modelName": name, "handler": "service.py:handle" if "def handle(data" in handler else "service.py"}
    manifest = {"runtime": "python", "model": {**model, "modelVersion": "1.0"}, "modelServerVersion": "1.0"}
    return zipped(path, {"MAR-INF/": "", "MAR-INF/MANIFEST.json": manifest, "service.py": handler, **files})


LEGACY_SERVICE = """
import json
from mms.model_service.mxnet_model_service import SingleNodeService

class Doubler(SingleNodeService):
    def _inference(self, data):
        return [2 * json.loads(bytes(one)) for one in data]
"""


def legacy_archive(path: Path, name: str = "theirs") -> Path:
    """As MMS's tool made it before 1.0, with a stand-in for mxnet, of which there is none for this Python."""
    model = {"Model-Name": name, "Service": "doubler_service.py", "Signature": "signature.json", "Description": ""}
    signature = {"input_type": "image/jpeg", "inputs": [{"data_name": "data", "data_shape": [1]}], "outputs": []}
    stand_in = {"mxnet/__init__.py": "", "mxnet/image.py": "", "mxnet/io.py": "class DataBatch: pass\n"}
    return zipped(
        path,
        {
            "MANIFEST.json": {"Engine": {"MXNet": 1.2}, "Model": model, "Model-Archive-Version": 0.4},
            "signature.json": signature,
            "doubler_service.py": LEGACY_SERVICE,
            **stand_in,
        },
    )
