"""The handler without a server: how long a batch takes, what of it is decode, model and encode, and the line a*n + b."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from slotwise.archive.build import extract
from slotwise.bench.bodies import Body
from slotwise.errors import SlotwiseError
from slotwise.interrupts import held, let_through
from slotwise.model_spec import load_spec
from slotwise.profiles.profile import load_profile
from slotwise.project import model_folder, model_store


@dataclass(frozen=True)
class Timed:
    """Medians over full batches of n requests, in milliseconds. batch_ms = decode_ms + model_ms + encode_ms."""

    n: int
    repeats: int
    batch_ms: float
    decode_ms: float
    model_ms: float
    encode_ms: float

    @property
    def item_ms(self) -> float:
        """Milliseconds a request."""
        return self.batch_ms / self.n


@dataclass(frozen=True)
class Line:
    """A batch of n takes a_ms * n + b_ms."""

    a_ms: float
    b_ms: float

    def at(self, n: float) -> float:
        """Milliseconds for a batch of n."""
        return self.a_ms * n + self.b_ms


def fit(points: Sequence[tuple[float, float]]) -> Line:
    """The line through (n, milliseconds): the median of all slopes between two points (Theil and Sen), so that one
    disturbed point does not bend it. One point: everything is a_ms. Neither number is negative.
    """
    slopes = [(y - v) / (x - u) for (x, y), (u, v) in combinations(points, 2) if x != u]
    if not slopes:
        x, y = points[0]
        return Line(y / x, 0.0)
    a = max(0.0, statistics.median(slopes))
    return Line(a, max(0.0, statistics.median(y - a * x for x, y in points)))


def measure(
    archive: Path,
    bodies: Sequence[Body],
    batch_sizes: Sequence[int],
    *,
    seconds: float = 1.0,
    environ: Mapping[str, str] | None = None,
    done: Callable[[Timed], None] = lambda timed: None,
) -> list[Timed]:
    """Time the archive's handler on full batches, `seconds` a size, in a process of its own.

    environ: what `environment` gives, as a server would set it.
    """
    with held(), tempfile.TemporaryDirectory(prefix="slotwise-offline-") as name, let_through():
        folder = Path(name)
        model_dir = extract(archive, folder / "model")
        sent = []
        for i, body in enumerate(bodies):
            (folder / f"body-{i}").write_bytes(body.data)
            sent.append({"path": str(folder / f"body-{i}"), "content_type": body.content_type})
        job = {"model_dir": str(model_dir), "bodies": sent, "batch_sizes": list(batch_sizes), "seconds": seconds}
        (folder / "job.json").write_text(json.dumps(job), "utf-8")
        command = [sys.executable, "-P", str(Path(__file__).with_name("offline_worker.py")), str(folder / "job.json")]
        environ = {**os.environ, **(environ or {})}
        with (folder / "log").open("w+") as log, held(), _process(command, environ, log.fileno()) as worker, let_through():
            assert worker.stdout is not None
            found = []
            for line in worker.stdout:
                found.append(_medians(**json.loads(line)))
                done(found[-1])
            if worker.wait():
                log.seek(0)
                said = [line.strip() for line in log.read().splitlines() if line.strip()]
                raise SlotwiseError(f"{archive.name}: {said[-1] if said else 'the handler ended'}", "see `slotwise check`")
    return found


class _process(subprocess.Popen[str]):
    """A child that does not outlive the `with` block."""

    def __init__(self, command: list[str], environ: Mapping[str, str], log: int) -> None:
        super().__init__(command, env=environ, stdout=subprocess.PIPE, stderr=log, text=True)

    def __exit__(self, *exc: object) -> None:
        if self.poll() is None:
            self.kill()
        super().__exit__(*exc)  # type: ignore[arg-type]


def _medians(n: int, times: list[dict[str, float]]) -> Timed:
    total, decode, model = (statistics.median(t[key] for t in times) for key in ("total_ms", "decode_ms", "inference_ms"))
    return Timed(n, len(times), total, decode, model, max(0.0, total - decode - model))


def archive_of(model: str) -> Path:
    """The archive to time: a .mar file, or the built archive of a model given by its name."""
    if model.endswith(".mar"):
        return Path(model)
    built = model_store() / f"{load_spec(model_folder(model)).name}.mar"
    if not built.is_file():
        raise SlotwiseError(f"{model} is not built", f"`slotwise build {model}` makes {built.name}")
    return built


def environment(profile: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """What a server started with this profile and these overrides (`--set`) tells its workers."""
    return load_profile(profile, overrides).environment(overrides)
