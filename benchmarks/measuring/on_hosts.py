"""The same archives on TorchServe, MMS, Ray, Triton and our own host, one after the other; the others are stopped meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.measuring.alone import OneAtATime
from benchmarks.measuring.rounds import Cell, Reading, Readings, in_turn, rows
from slotwise.archive.archive_info import ArchiveInfo
from slotwise.bench.bodies import RequestBody, examples
from slotwise.console import say
from slotwise.server.record import Kind
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.space import TrialSetting
from slotwise.zoo import pictures

if TYPE_CHECKING:
    from slotwise.server.record import ServerRecord

NEVER_STOPPED = ("ray", "triton")  # they would take their own processes for dead
HOSTS: tuple[Kind, ...] = ("torchserve", "mms", "ray", "triton", "slotwise")
CLIENTS = (1, 8, 64)
SETTINGS = {"mnist": TrialSetting(16, 1, 2, 1, "onnxruntime", "fp32"), "resnet18": TrialSetting(8, 5, 1, 2, "openvino", "fp32")}


def bodies(info: ArchiveInfo) -> list[RequestBody]:
    """MNIST's raw tensors; a 720x720 JPEG for ResNet-18."""
    if info.name == "mnist":
        return [body for body in examples(str(info.path)) if body.name.endswith(".f32")]
    return [RequestBody(pictures.sample_jpeg(720, 720), "image/jpeg")]


def measure(
    records: Mapping[Kind, ServerRecord], infos: Mapping[str, ArchiveInfo], rounds: int, seconds: float
) -> dict[str, Any]:
    """Every round asks every host once with 1, 8 and 64 clients, after all of them have been warmed up."""
    readings: Readings = {}
    for model, info in infos.items():
        setting = SETTINGS[model]
        with ExitStack() as stack:
            benches = {kind: stack.enter_context(LiveBench(record, info, bodies(info))) for kind, record in records.items()}
            for kind, bench in benches.items():
                bench.keep_ready([setting])
                warmed = bench.warm_up(setting, max(CLIENTS))
                say(f"warm-up: {model}, {kind}: {', '.join(f'{load.req_s:.0f}' for load in warmed)} a second")
            stopped: dict[str, int] = {kind: record.pid for kind, record in records.items() if kind not in NEVER_STOPPED}
            turns = stack.enter_context(OneAtATime(stopped))
            ask = partial(_asked_alone, turns, benches, setting, seconds)
            cells = [(f"{model}, {setting}", clients) for clients in CLIENTS]
            readings |= in_turn(cells, list(records), ask, rounds, say=say, warm_ups=1)
    return {"rows": rows(readings, detail=True)}


def _asked_alone(
    turns: OneAtATime, benches: Mapping[Any, LiveBench], setting: TrialSetting, seconds: float, cell: Cell, kind: str
) -> Reading:
    with turns.running(kind):
        return Reading.of(benches[kind].measure(setting, cell[1], seconds))
