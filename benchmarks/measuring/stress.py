"""The original's stress test of translation: requests come at a rate, whether the model keeps up or not.

The model is as slow as a real M2M100 418M (slow_translator.py), the requests go through the gateway with its default limits.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measuring.servers import unpacked
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.bench import load
from slotwise.bench.bodies import RequestBody, examples, with_records
from slotwise.bench.http_connection import Target
from slotwise.bench.load_plan import LoadPlan
from slotwise.console import say
from slotwise.files import project
from slotwise.frontend.process import GatewayRecord

NAME = "slow_translator"
TIMEOUT_S = 90.0  # of a client: it outlives the gateway's deadline, whose 504 is then seen
REFUSED = ("429", "503", "504")  # full, not decided in time, deadline passed: the client knows where it is


class Case(NamedTuple):
    """So many requests at so many a second, each of so many records. even: at equal distances, else Poisson's arrivals."""

    records: int
    rate: int
    requests: int = 100
    even: bool = False


# the original's six (1 and 16 records at 2, 10 and 100 a second) with both kinds of arrivals, 4 records at the rates that
# fill batches, and one case with more requests than the gateway's default limits have places for
CASES = [
    *(Case(records, rate, even=True) for rate in (2, 10, 100) for records in (1, 16)),
    *(Case(records, rate) for rate in (2, 10, 100) for records in (1, 4, 16) if rate > 2 or records != 4),
    Case(16, 100, requests=400),
]


def folder(translation: ArchiveInfo, work: Path, name: str = NAME, handler: str = NAME) -> Path:
    """The folder of a model with the weights, options and settings of `translation` and another handler."""
    made = unpacked(translation, work / name)
    shutil.copy(Path(__file__).with_name(f"{handler}.py"), made)
    described = (project.model_folder("translation") / "model.toml").read_text("utf-8")
    for given, other in {
        'name = "translation"': f'name = "{name}"',
        'handler = "translator"': f'handler = "{handler}.py"',
        'files = ["model"': 'files = ["translator.py", "model"',
    }.items():
        described = described.replace(given, other, 1)
    (made / "model.toml").write_text(described, "utf-8")
    return made


def measure(front: GatewayRecord, info: ArchiveInfo) -> dict[str, Any]:
    """Every case once, each when the one before is over."""
    target = Target(f"{front.url}/predictions/{info.name}", {})
    life = next(body for body in examples(str(info.path)) if body.name == "life.json")
    limits = front.status()["models"][0]
    rows = []
    for case in CASES:
        load.measure(target, [life], LoadPlan(1, None, requests=1, warm_up_s=0.0))  # answered once nothing is left of before
        rows.append(row := answers_of(case, target, life))
        say(json.dumps(row))
    return {"rows": rows, "limits": {key: limits[key] for key in ("in_flight_max", "queue_max")}}


def answers_of(case: Case, target: Target, life: RequestBody) -> dict[str, Any]:
    """What became of one case's requests."""
    plan = LoadPlan(case.requests, None, case.requests, warm_up_s=0.0, rate=case.rate, timeout_s=TIMEOUT_S, even=case.even)
    result = load.measure(target, [with_records(life, case.records)], plan)
    numbers = {key: round(getattr(result, key), 1) for key in ("mean_ms", "min_ms", "p50_ms", "p99_ms", "mean_batch")}
    return {
        **case._asdict(),
        "answered": result.requests - result.lost,
        "refused": {status: count for status, count in result.errors.items() if status in REFUSED},
        "lost": {status: count for status, count in result.errors.items() if status not in REFUSED},
        **numbers,
    }
