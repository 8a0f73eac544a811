"""A torch.export program is loaded only where torch runs nothing of the file's own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from slotwise.worker.engines.exported_program import fault, load

Files = dict[str, bytes]
MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
CONSTANTS, SAMPLES = "data/constants/model_constants_config.json", "data/sample_inputs/model.pt"


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.offset = torch.arange(3)

    def forward(self, rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        rows = torch.nn.functional.gelu(self.linear(rows), approximate="tanh") + self.offset
        return torch.cat([rows, rows], 1).reshape(-1, 2, 3).sum(1) * scale * rows.shape[0]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of a network with weights, a constant, a keyword and a batch axis."""
    path = tmp_path_factory.mktemp("program") / "net.pt2"
    axes = {"rows": {0: torch.export.Dim("batch", min=1, max=64)}, "scale": None}
    inputs = {"args": (torch.ones(2, 4),), "kwargs": {"scale": torch.ones(1)}}
    torch.export.save(torch.export.export(Net().eval(), **inputs, dynamic_shapes=axes), path)  # type: ignore[arg-type]
    return path


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def saved(value: Any) -> bytes:
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def edited(data: bytes, change: Callable[[Any], None]) -> bytes:
    """A record of JSON with a change."""
    value = json.loads(data)
    change(value)
    return json.dumps(value).encode()


def sample_inputs(files: Files, touched: Path) -> None:
    files[SAMPLES] = saved(((Touch(touched),), {}))


def pickled_weight(files: Files, touched: Path) -> None:
    files["data/weights/weight_0"] = saved(Touch(touched))
    files[WEIGHTS] = edited(files[WEIGHTS], lambda c: c["config"]["linear.weight"].update(use_pickle=True))


def pickled_constant(files: Files, touched: Path) -> None:
    about = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": None}
    files[CONSTANTS] = edited(files[CONSTANTS], lambda c: c["config"].update(bad={**about, "use_pickle": True}))
    files["data/constants/opaque_obj_0"] = pickle.dumps(Touch(touched))


def earlier_weights(files: Files, touched: Path) -> None:
    files["data/weights/model.pt"] = saved({"linear.weight": Touch(touched)})


def size(files: Files, touched: Path) -> None:
    evil = f'__import__("os").mkdir({str(touched)!r}) or 3'.encode()
    at = files[MODEL].index(b'"expr_str": "') + len(b'"expr_str": "')
    files[MODEL] = files[MODEL][:at] + evil.replace(b'"', b'\\"') + files[MODEL][files[MODEL].index(b'"', at) :]


def guard(files: Files, touched: Path) -> None:
    evil = f'__import__("os").mkdir({str(touched)!r}) or True'
    files[MODEL] = edited(files[MODEL], lambda model: model["guards_code"].append(evil))


def argument_name(files: Files, touched: Path) -> None:
    evil = f"rows=__import__('os').mkdir({str(touched)!r})"
    files[MODEL] = files[MODEL].replace(b'"rows"', json.dumps(evil).encode())


FAULTS = [sample_inputs, pickled_weight, pickled_constant, earlier_weights, size, guard, argument_name]


def changed(program: Path, path: Path, change: Callable[[Files], None]) -> Path:
    """The same program with other records."""
    with zipfile.ZipFile(program) as source:
        root = source.namelist()[0].partition("/")[0]
        files = {name.partition("/")[2]: source.read(name) for name in source.namelist()}
    change(files)
    with zipfile.ZipFile(path, "w") as target:
        for name, data in files.items():
            target.writestr(f"{root}/{name}", data)
    return path


def test_a_program_of_tensors_alone_is_loaded(program: Path) -> None:
    assert fault(program) == ""
    answer = load(program)(torch.ones(3, 4), scale=torch.ones(1))
    assert answer.shape == (3, 3)


@pytest.mark.parametrize("change", FAULTS, ids=lambda change: change.__name__)
def test_what_would_run_code_of_the_file_is_refused(program: Path, tmp_path: Path, change: Any) -> None:
    touched = tmp_path / "touched"
    bad = changed(program, tmp_path / "bad.pt2", lambda files: change(files, touched))
    with pytest.raises(ValueError, match=r"^bad\.pt2 .*export it again"):
        load(bad)
    assert not touched.exists()


@pytest.mark.parametrize("change", FAULTS[:-1], ids=lambda change: change.__name__)
def test_torch_itself_would_run_it(program: Path, tmp_path: Path, change: Any) -> None:
    """Where a later torch does not, its part of the look can go."""
    touched = tmp_path / "touched"
    bad = changed(program, tmp_path / "bad.pt2", lambda files: change(files, touched))
    with contextlib.suppress(Exception):  # it has run by then, or never
        torch.export.load(str(bad)).module()(torch.ones(2, 4), scale=torch.ones(1))
    assert touched.exists()


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ("data/aotinductor/model/run.so", "torch unpickles or runs"),
        ("data/weights/WEIGHT_0", "torch unpickles or runs"),
        ("data/constants/custom_obj_0", "torch unpickles or runs"),
        ("models/other.json", "torch unpickles or runs"),
        ("extra/a", "twice"),
    ],
)
def test_what_is_no_part_of_a_network_is_refused(program: Path, tmp_path: Path, record: str, why: str) -> None:
    bad = changed(program, tmp_path / "bad.pt2", lambda files: files.update({record: b"{}", "extra/A": b"{}"}))
    assert why in fault(bad)


def test_the_form_before_torch_2_8_is_refused(program: Path, tmp_path: Path) -> None:
    bad = changed(program, tmp_path / "bad.pt2", lambda files: None)
    with zipfile.ZipFile(bad, "a") as target:
        target.writestr("version", "8.0")
    assert "earlier torch" in fault(bad)
