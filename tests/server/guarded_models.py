"""Archives of strangers' handlers, guarded, on a running server: what is sent, and what everybody has to get."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from slotwise.archive.guarding.guarded import guard
from slotwise.worker.engines.torchvision_compat import ensure_importable
from slotwise.worker.separability.agree import agree
from tests.archive.foreign_archives import torch_archive
from tests.server.bursts import Answer, burst
from tests.server.conftest import Live
from tests.server.strangers import networks
from tests.support.torchvision_stub import SITECUSTOMIZE

STRANGERS = Path(__file__).parent / "strangers"
GATHERED = {"batch_size": 8, "max_batch_delay": 150, "initial_workers": 1, "response_timeout": 60}


def weights(network: str) -> bytes:
    """Random weights of a network that is given as text."""
    ensure_importable()
    module = types.ModuleType("network")
    exec(network, module.__dict__)
    kind = next(found for found in vars(module).values() if isinstance(found, type) and found.__module__ == "network")
    torch.manual_seed(0)
    target = io.BytesIO()
    torch.save(kind().state_dict(), target)
    return target.getvalue()


def picture(seed: int, side: int = 64) -> bytes:
    """A PNG that no other seed gives."""
    target = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(target, "PNG")
    return target.getvalue()


@dataclass(frozen=True)
class Guarded:
    """One stranger's model: good bodies, bad ones with the status that they get, and what a good body's answer must be."""

    name: str
    archive: Callable[[Path], Path]
    good: Sequence[bytes]
    bad: Sequence[tuple[bytes, int]]
    servers: Sequence[str] = ("torchserve",)

    def register(self, live: Live, store: Path, work: Path) -> None:
        """Guard the archive, with an audit of everything, and register it with batches of 8."""
        guard(self.archive(work / self.name), store / f"{self.name}.mar", name=self.name, audit=1.0)
        live.management.register(f"{self.name}.mar", **GATHERED)
        live.management.wait_ready(self.name)


def handler(file: str, **options: Any) -> Callable[[Path], Path]:
    """What makes an archive of one of strangers/*.py."""
    return lambda work: torch_archive(work, (STRANGERS / f"{file}.py").read_text("utf-8"), **options)


def network(text: str, handler: str, **files: Any) -> Callable[[Path], Path]:
    """What makes an archive of a network for a default handler, or for one of strangers/*.py."""
    code = (STRANGERS / f"{handler}.py").read_text("utf-8") if (STRANGERS / f"{handler}.py").is_file() else handler

    def archive(work: Path) -> Path:
        parts = {"model.py": text, "weights.pt": weights(text), **files}
        if "torchvision" in text or handler not in ("base_list", "base_tensor"):
            parts |= {file.name: file.read_bytes() for file in fitting(work / "needs").glob("*.py")}
        return torch_archive(work, code, parts, model_file="model.py", serialized_file="weights.pt")

    return archive


def fitting(folder: Path) -> Path:
    """A folder with what lets a worker import torchvision here, where its compiled library does not fit the installed torch."""
    folder.mkdir(parents=True)
    if subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True).returncode:
        (folder / "sitecustomize.py").write_text(SITECUSTOMIZE, "utf-8")
    return folder


def odd(x: int, do: str | None = None) -> bytes:
    return json.dumps({"x": x, "do": do}).encode()


SENTENCES = ["good film", "bad film", "good book", "bad book", "very good film", "not good", "not bad book", "very bad"]


def vocabulary() -> bytes:
    """Every word and pair of words of the sentences, as text_classifier looks them up."""
    words = [sentence.split() for sentence in SENTENCES]
    pairs = [f"{one} {other}" for sentence in words for one, other in itertools.pairwise(sentence)]
    known = dict.fromkeys([word for sentence in words for word in sentence] + pairs)
    target = io.BytesIO()
    torch.save({word: i for i, word in enumerate(known)}, target)
    return target.getvalue()


PICTURES = [picture(seed) for seed in range(8)]
BAD_PICTURES = [(b"no picture", 400), (PICTURES[0][:500], 400), (b"", 400)]
NUMBERS = [json.dumps([i, 0.5, -i]).encode() for i in range(8)]
BAD_NUMBERS = [(b"no JSON", 400), (b"[1.0]", 500), (b'{"a": 1}', 500)]

FUNCTION = Guarded("function", handler("function"), [str(i).encode() for i in range(8)], [(b"no", 400)], ("torchserve", "mms"))
ODD = Guarded(
    "odd",
    handler("odd"),
    [odd(0), odd(1, "bytes"), odd(2, "status"), odd(3), odd(4, "bytes"), odd(5, "status"), odd(6), odd(7)],
    [
        *((odd(9, do), 500) for do in ("raise", "short", "none", "tuple", "exit", "mute")),
        (b"{}", 500),
        (b"\xff", 400),
    ],
    ("torchserve", "mms"),
)
BASE_LIST = Guarded("base_list", network(networks.LINEAR, "base_list"), NUMBERS, BAD_NUMBERS)
BASE_TENSOR = Guarded("base_tensor", network(networks.LINEAR, "base_tensor"), NUMBERS, BAD_NUMBERS)
CLASSIFIER = Guarded("image_classifier", network(networks.CLASSIFIER, "image_classifier"), PICTURES, BAD_PICTURES)
SEGMENTER = Guarded("image_segmenter", network(networks.SEGMENTER, "image_segmenter"), PICTURES, BAD_PICTURES)
DETECTOR = Guarded(
    "object_detector", network(networks.DETECTOR, "object_detector"), PICTURES, [*BAD_PICTURES, (picture(9, 32), 200)]
)
TEXTS = Guarded(
    "text_classifier",
    network(networks.TEXTS, "text_classifier", **{"source_vocab.pt": vocabulary()}),
    [sentence.encode() for sentence in SENTENCES],
    [(b"\xff\xfe", 400), (b"words that it does not know", 500)],
)


def shares() -> list[set[int]]:
    """Which of eight slots are bad: each alone, then one to all eight of them."""
    return [{i} for i in range(8)] + [set(range(n)) for n in range(2, 9)]


def same(one: Answer, other: Answer, names: Sequence[str] = ("content-type", "x-mine")) -> bool:
    """Whether two clients got the same: status, body, and what their handler set."""
    headers = [[answer.headers.get(name) for name in names] for answer in (one, other)]
    return one.status == other.status and agree(one.body, other.body) and headers[0] == headers[1]


def innocents_lost(live: Live, model: Guarded, alone: Sequence[Answer], places: set[int], turn: int) -> list[Any]:
    """Send eight at once, bad ones in these places: what is not as it must be."""
    bad = [model.bad[(turn + i) % len(model.bad)] for i in range(8)]
    bodies = [bad[i][0] if i in places else model.good[i] for i in range(8)]
    answers = burst(live.inference, model.name, bodies, gap_s=0.0)
    wrong: list[Any] = []
    for i, answer in enumerate(answers):
        if i not in places:
            wrong += [] if same(answer, alone[i]) else [(i, "lost", answer, alone[i])]
        elif answer.status != bad[i][1] or (bad[i][1] != 200 and not answer.is_clean_error):
            wrong.append((i, "not refused", answer, bad[i]))
    return wrong
