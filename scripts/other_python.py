"""Run the worker's and the archives' tests on another Python, without torch: python scripts/other_python.py 3.12

It makes an environment in .slotwise/python-VERSION. Exit code 77: that Python is not on this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_HERE = 77
LIBRARIES = ("simplejpeg", "setuptools", "packaging")
TESTING = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
ALONE = ("multi-model-server==1.1.11", "torchserve==0.12.0")  # without what they require: the server's torch, an old Pillow
NEED_TORCH = (  # what cannot be tried without it, as its models are trained or its server imports it
    "tests/worker/test_captioner.py",
    "tests/worker/test_translator.py",
    "tests/worker/test_guard.py::test_results_are_the_bytes_that_the_server_would_send",
    "tests/archive/test_archive_docs.py",
    "tests/archive/test_guarded.py::test_an_envelope_fails_only_for_who_sent_the_bad_one",
    "tests/archive/test_guarded.py::test_a_changed_file_does_not_start_and_a_new_one_does_no_harm",
    "tests/archive/test_triton_repository.py::test_an_example_warms_the_model_up",
)


def main(version: str) -> int:
    """Install and test; the exit code."""
    found = interpreter(version)
    if found is None:
        print(f"Python {version} is not here: nothing was tried on it")
        return NOT_HERE
    folder = ROOT / ".slotwise" / f"python-{version}"
    python = folder / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    constraints = ("--constraint", "constraints.txt")
    for command in (
        *([] if python.exists() else [(found, "-m", "venv", folder)]),
        (*pip, *constraints, "--editable", ".", *LIBRARIES, *TESTING),
        (*pip, *constraints, "--no-deps", *ALONE),
    ):
        if code := subprocess.run(command, cwd=ROOT).returncode:
            return code
    chosen = ("-m", "not server and not slow and not long", "-k", "not torchserve", "--without", "torch", "--without", "ts")
    left_out = [f"--{'deselect' if '::' in name else 'ignore'}={name}" for name in NEED_TORCH]
    return subprocess.run(
        (python, "-m", "pytest", "-q", "tests/worker", "tests/archive", *chosen, *left_out), cwd=ROOT
    ).returncode


def interpreter(version: str) -> str | None:
    """That Python's program: on the PATH, or of pyenv."""
    on_path = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    others = [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"))]
    return next((path for path in [*others, *([on_path] if on_path else [])] if _runs(path, version)), None)


def _runs(path: str, version: str) -> bool:
    """Whether it is that version; a shim of pyenv may name one that is not chosen."""
    done = subprocess.run((path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"), capture_output=True, text=True)
    return done.stdout.strip() == version


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
