"""Handlers that set, for a request, what all of a process has together: a library's options, seeds, the folder it is in."""

from __future__ import annotations

import io
import locale
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.worker.idioms.asked import apart, each_of, no_answer_is_wrong, together
from tests.worker.idioms.sets import DIGITS, SEEDS, Sets

torch = pytest.importorskip("torch")

FOLDER = Path(tempfile.gettempdir()) / f"folders-of-{os.getpid()}"
FLAGS = [{"x": 1.0, "set": flag} for flag in (True, False)]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the handlers set is of no other test."""
    for holder, name in ((Image, "MAX_IMAGE_PIXELS"), (sys, "path"), (sys, "stdout")):
        monkeypatch.setattr(holder, name, getattr(holder, name))
    monkeypatch.setenv("TZ", "UTC")
    folder, places, limit = os.getcwd(), locale.setlocale(locale.LC_ALL), sys.getrecursionlimit()
    precision, strict = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    FOLDER.mkdir()
    with warnings.catch_warnings():
        yield
    for path in FOLDER.iterdir():
        path.unlink()
    os.chdir(folder)
    FOLDER.rmdir()
    locale.setlocale(locale.LC_ALL, places)
    sys.setrecursionlimit(limit)
    torch.set_default_dtype(torch.float32)
    torch.set_printoptions(profile="default")
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(strict)
    monkeypatch.undo()
    time.tzset()


@apart([{"x": 1.1, "set": name} for name in ("float32", "float64", "float16")])
class TorchsDefaultType(Sets):
    """Sets the type of new tensors, which inference makes."""

    def put(self, wanted: str) -> None:
        torch.set_default_dtype(getattr(torch, wanted))

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return [str(torch.tensor(x).dtype) for x in data]

    def seen(self, data: Any) -> Any:
        return data


@apart(FLAGS)
class TorchsDeterminism(Sets):
    """Wants deterministic algorithms, or not."""

    def put(self, wanted: bool) -> None:
        torch.use_deterministic_algorithms(wanted)

    def seen(self, data: Any) -> Any:
        return torch.are_deterministic_algorithms_enabled()


@apart(FLAGS)
class TorchsPrecision(Sets):
    """Sets how exactly torch multiplies matrices."""

    def put(self, wanted: bool) -> None:
        torch.set_float32_matmul_precision("high" if wanted else "highest")

    def seen(self, data: Any) -> Any:
        return torch.get_float32_matmul_precision()


class Pandas(Sets):
    """Answers with a number as pandas writes it."""

    def initialize(self, context: Any) -> None:
        super().initialize(context)
        self.pandas = pytest.importorskip("pandas")

    def seen(self, data: Any) -> Any:
        with_digits = str(self.pandas.Series([data]))
        self.pandas.reset_option("display.precision")
        return with_digits


@apart(DIGITS)
class PandasOption(Pandas):
    """Sets how many digits pandas writes, by its function."""

    def put(self, wanted: int) -> None:
        self.pandas.set_option("display.precision", wanted)


@apart(DIGITS)
class PandasOptionByAttribute(Pandas):
    """Sets how many digits pandas writes, by an attribute of its options."""

    def put(self, wanted: int) -> None:
        self.pandas.options.display.precision = wanted


@apart([{"x": 1.0, "set": name} for name in ("C", "C.UTF-8", "POSIX")])
class TheLocale(Sets):
    """Sets the language of the process."""

    def put(self, wanted: str) -> None:
        locale.setlocale(locale.LC_ALL, wanted)

    def seen(self, data: Any) -> Any:
        return locale.setlocale(locale.LC_ALL)


@apart([{"x": 1.0, "set": name} for name in ("UTC", "UTC-9", "EST5")])
class TheTimeZone(Sets):
    """Sets the time zone of the process."""

    def put(self, wanted: str) -> None:
        os.environ["TZ"] = wanted
        time.tzset()

    def seen(self, data: Any) -> Any:
        return time.strftime("%H", time.localtime(0))


@apart([{"x": 1.0, "set": limit} for limit in (4000, 5000)])
class TheRecursionLimit(Sets):
    """Sets how deep Python may call."""

    def put(self, wanted: int) -> None:
        sys.setrecursionlimit(wanted)

    def seen(self, data: Any) -> Any:
        return sys.getrecursionlimit()


@apart([{"x": 1.0, "set": folder} for folder in ("/first", "/second")])
class TheModulesPath(Sets):
    """Puts a folder where Python finds modules."""

    def put(self, wanted: str) -> None:
        sys.path.insert(0, wanted)

    def seen(self, data: Any) -> Any:
        (found,) = (folder for folder in sys.path if folder in ("/first", "/second"))
        sys.path.remove(found)
        return found


@apart([{"x": x, "set": ""} for x in (1.0, 2.0, 3.0)])
class TheFolder(Sets):
    """Goes into a folder, and writes a file of one name there."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        os.chdir(FOLDER)
        with open("input.txt", "w") as file:
            file.write(str(data[0]["body"]["x"]))
        return [1.0]

    def seen(self, data: Any) -> Any:
        return Path("input.txt").read_text()


@apart([{"x": 1.0, "set": name} for name in ("alice", "bob", "carol")])
class WhatIsPrinted(Sets):
    """Catches what is printed, and answers with it."""

    def put(self, wanted: str) -> None:
        sys.stdout = io.StringIO()
        print(wanted)

    def seen(self, data: Any) -> Any:
        assert isinstance(sys.stdout, io.StringIO)
        text, sys.stdout = sys.stdout.getvalue(), sys.__stdout__
        return text


@apart([{"x": 1.0, "set": pixels} for pixels in (1000, 2000)])
class PillowsLimit(Sets):
    """Sets how many pixels a picture may have, imported where it is set."""

    def put(self, wanted: int) -> None:
        from PIL import Image

        Image.MAX_IMAGE_PIXELS = wanted

    def seen(self, data: Any) -> Any:
        return Image.MAX_IMAGE_PIXELS


@together(SEEDS)
class AConstant(Sets):
    """Sets the same for all requests, again and again."""

    def put(self, wanted: int) -> None:
        torch.backends.cudnn.benchmark = False
        Image.MAX_IMAGE_PIXELS = None

    def seen(self, data: Any) -> Any:
        return data


@each_of(__name__)
def test_no_answer_is_wrong(kind: type[Sets], rows_at_once: list[int]) -> None:
    no_answer_is_wrong(kind, rows_at_once)
