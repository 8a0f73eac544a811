"""TorchServe's metrics, by its names: at /metrics in its form, or a line each in ts_metrics.log and model_metrics.log."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from slotwise.drop_in.configuration import Configuration, hostname
from slotwise.drop_in.line_files import LogFiles
from slotwise.errors import SlotwiseError
from slotwise.worker.reports.handler_metrics import prometheus_name

SECONDS = ("s", "second", "seconds")
GIB, MIB = 1 << 30, 1 << 20
HOST = ("Level", "Hostname")
MODEL = ("model_name", "model_version", "hostname")
LEGACY = ("ts_inference_requests_total", "ts_inference_latency_microseconds", "ts_queue_latency_microseconds")


@dataclass
class Number:
    """One metric. labels: in the order in which they are written. values: by the labels' values."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    values: dict[tuple[str, ...], float] = field(default_factory=dict)

    def text(self) -> str:
        """As a scraper gets it from TorchServe, the comma before the brace included."""
        lines = [
            f"# HELP {self.name} Torchserve prometheus {self.kind} metric with unit: {self.unit}",
            f"# TYPE {self.name} {self.kind}",
        ]
        for values, value in list(self.values.items()):
            labels = "".join(f'{label}="{_escaped(one)}",' for label, one in zip(self.labels, values, strict=True))
            lines.append(f"{self.name}{{{labels}}} {float(value)!r}")
        return "\n".join(lines) + "\n"


def _numbers() -> dict[str, Number]:
    every = [Number(f"Requests{n}XX", "counter", "Count", HOST) for n in (2, 4, 5)]
    every += [Number(LEGACY[0], "counter", "Count", MODEL)]
    every += [Number(name, "counter", "Microseconds", MODEL) for name in LEGACY[1:]]
    every += [Number(name, "gauge", "Milliseconds", HOST) for name in ("QueueTime", "WorkerThreadTime")]
    every += [Number("WorkerLoadTime", "gauge", "Milliseconds", ("WorkerName", *HOST))]
    every += [Number(name, "gauge", "Percent", HOST) for name in ("CPUUtilization", "MemoryUtilization", "DiskUtilization")]
    every += [Number(name, "gauge", "Megabytes", HOST) for name in ("MemoryUsed", "MemoryAvailable")]
    every += [Number(name, "gauge", "Gigabytes", HOST) for name in ("DiskUsage", "DiskAvailable")]
    gpu = ("Level", "DeviceId", "Hostname")
    every += [Number(name, "gauge", "Percent", gpu) for name in ("GPUMemoryUtilization", "GPUUtilization")]
    every += [Number("GPUMemoryUsed", "gauge", "Megabytes", gpu)]
    return {one.name: one for one in every}


class ServerNumbers:
    """The metrics of one server. mode: prometheus, log, or legacy: three at /metrics, the others logged."""

    def __init__(self, configuration: Configuration, files: LogFiles) -> None:
        self.files, self.mode, self.host = files, configuration.metrics_mode, hostname()
        self.numbers = _numbers()
        self.models = {name: Number(name, kind, unit, labels) for name, kind, unit, labels in _of_models(configuration)}
        self.detect = configuration.flag("model_metrics_auto_detect")
        self._once = threading.Lock()
        psutil.cpu_percent()  # what was used since the last call is what it gives

    def answered(self, status: int) -> None:
        """One answer of any API."""
        self._add(f"Requests{2 if status < 400 else status // 100}XX", ("Host", self.host), 1.0)

    def inferred(self, model: str, version: str, queue_s: float, total_s: float) -> None:
        """One answer of a model."""
        of = (model, version or "default", self.host)
        self._add("ts_inference_requests_total", of, 1.0)
        self._add("ts_inference_latency_microseconds", of, total_s * 1e6)
        self._add("ts_queue_latency_microseconds", of, queue_s * 1e6)
        self._set("QueueTime", ("Host", self.host), float(round(queue_s * 1000)))
        self._set("WorkerThreadTime", ("Host", self.host), float(round(max(total_s - queue_s, 0) * 1000)))
        self.from_handler(model, "PredictionTime", round((total_s - queue_s) * 1000, 2), "ms")

    def loaded(self, worker: str, seconds: float) -> None:
        """A worker has started."""
        self._set("WorkerLoadTime", (worker, "Host", self.host), float(round(seconds * 1000)))

    def ended(self, worker: str) -> None:
        """A worker is gone."""
        self.numbers["WorkerLoadTime"].values.pop((worker, "Host", self.host), None)

    def from_handler(self, model: str, name: str, value: float, unit: str) -> None:
        """A number of a handler's, where the metrics file names it or all are taken."""
        number = self.models.get(name)
        if number is None:
            if not self.detect:
                return
            kind, name, unit = "gauge" if unit else "counter", prometheus_name(name), " ".join(unit.split())
            labels = ("ModelName", "Level", "Hostname")
            number = self.models.setdefault(name, Number(name, kind, unit or "Count", labels))
        if unit == "ms" and number.unit.lower() in SECONDS:  # as the handler gave it
            value /= 1000
        of = tuple({"ModelName": model, "Level": "Model", "Hostname": self.host}.get(label, "") for label in number.labels)
        with self._once:
            number.values[of] = value if number.kind == "gauge" else number.values.get(of, 0.0) + value
        if self.mode != "prometheus":
            self.files.metric(self.files.model_metrics, _line(number, of, value, "requestID:null,"))

    def measure_machine(self) -> None:
        """Processor, memory and disk."""
        memory, disk = psutil.virtual_memory(), shutil.disk_usage("/")
        seen = {
            "CPUUtilization": psutil.cpu_percent(),
            "MemoryUsed": memory.used / MIB,
            "MemoryAvailable": memory.available / MIB,
            "MemoryUtilization": memory.percent,
            "DiskUsage": disk.used / GIB,
            "DiskAvailable": disk.free / GIB,
            "DiskUtilization": round(100 * disk.used / max(disk.used + disk.free, 1), 1),
        }
        for name, value in seen.items():
            self._set(name, ("Host", self.host), float(value))

    def text(self, names: Iterable[str] = ()) -> str:
        """What /metrics answers; of these metrics alone, where some are named."""
        shown = {name: number for name, number in (self.numbers | self.models).items() if self._shown(name)}
        wanted = set(names)
        return "".join(number.text() for name, number in shown.items() if not wanted or name in wanted)

    def _shown(self, name: str) -> bool:
        return self.mode == "prometheus" or (self.mode == "legacy" and name in LEGACY)

    def _add(self, name: str, of: tuple[str, ...], value: float) -> None:
        number = self.numbers[name]
        with self._once:
            number.values[of] = number.values.get(of, 0.0) + value
        self._log(number, of, value)

    def _set(self, name: str, of: tuple[str, ...], value: float) -> None:
        number = self.numbers[name]
        number.values[of] = value
        self._log(number, of, value)

    def _log(self, number: Number, of: tuple[str, ...], value: float) -> None:
        if self.mode == "log" or (self.mode == "legacy" and number.name not in LEGACY):
            self.files.metric(self.files.ts_metrics, _line(number, of, value))


def _line(number: Number, of: tuple[str, ...], value: float, about: str = "") -> str:
    """`QueueTime.Milliseconds:3.0|#Level:Host|#hostname:NAME,timestamp:1700000000`. about: what stands before the time."""
    named = dict(zip(number.labels, of, strict=True))
    host = named.pop("Hostname", None) or named.pop("hostname", "")
    labels = ",".join(f"{label}:{one}" for label, one in named.items())
    return f"{number.name}.{number.unit}:{value!r}|#{labels}|#hostname:{host},{about}timestamp:{int(time.time())}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _of_models(configuration: Configuration) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """The handlers' metrics that the metrics file names: TorchServe's own, where the deployment names none."""
    named = configuration.text("metrics_config")
    if not named:
        for name in ("HandlerTime", "PredictionTime"):
            yield name, "gauge", "ms", ("ModelName", "Level", "Hostname")
        return
    for kind, metrics in _metrics_file(Path(named)).items():
        for one in metrics if kind in ("counter", "gauge", "histogram") and isinstance(metrics, list) else ():
            if not (isinstance(one, dict) and "name" in one):
                raise SlotwiseError(
                    f"metrics_config: {named}: no name in {kind}: {one!r:.100}", "each metric is `- name: NAME`"
                )
            labels = tuple(str(label) for label in one.get("dimensions", ()))
            yield str(one["name"]), "gauge" if kind == "histogram" else kind, str(one.get("unit", "")), (*labels, "Hostname")


def _metrics_file(file: Path) -> Mapping[str, Any]:
    if importlib.util.find_spec("yaml") is None:
        raise SlotwiseError("metrics_config needs PyYAML", "pip install pyyaml, or take the key out of the file")
    try:
        content = importlib.import_module("yaml").safe_load(file.read_text("utf-8"))
        models = (content or {}).get("model_metrics") or {}
    except Exception as error:
        raise SlotwiseError(
            f"metrics_config: {file} cannot be read: {error}", "TorchServe's ts/configs/metrics.yaml"
        ) from error
    return models if isinstance(models, dict) else {}
