"""Profiles: batch settings, worker settings and server keys in one TOML file.

A profile's keys stand in four sections, [registration], [worker], [server] and [ray], and share one namespace: `--set
KEY=VALUE` and a model.toml's `[profiles.NAME]` name a key without its section. A key's value is taken from the first of
these that has it:

    --set KEY=VALUE
    BATCH_SIZE, WORKERS, MAX_BATCH_DELAY (or LINGER_MS) in the environment (for containers)
    [profiles.NAME] of a model's model.toml
    profiles/NAME.toml
    the default of the key
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.model_spec import read_toml
from slotwise.profiles.batch_delay import whole_as_int
from slotwise.profiles.variables import from_environment
from slotwise.worker.environment.cores import available_cores

SECTIONS = ("registration", "worker", "server", "ray")
UNITS = {"ms": "milliseconds", "s": "seconds", "bytes": "bytes"}


def _key(section: str, default: Any, description: str, **limits: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"section": section}, **limits)


class Profile(BaseModel):
    """One profile, its sections side by side; `load_profile` makes it. A wrong key or value raises SlotwiseError."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    description: str = ""

    batch_size: int = _key("registration", 1, "requests in a full batch", ge=1, le=4096)
    max_batch_delay_ms: float = _key(
        "registration", 5, "how long a batch waits for more requests; no fraction on TorchServe and MMS", ge=0, le=60_000
    )
    initial_workers: int = _key("registration", 1, "worker processes a model starts with", ge=1, le=256)
    response_timeout_s: int = _key("registration", 120, "a batch that takes longer costs its worker", ge=1, le=86_400)
    latency_p99_ms: float = _key(
        "registration", 0, "what linger auto wants answers within, on Slotwise's own host; 0: no target", ge=0, le=600_000
    )

    device: Literal["cpu", "cuda"] = _key("worker", "cpu", "where the engine runs; cuda falls back to cpu where there is none")
    engine: Literal["auto", "torch", "onnxruntime", "openvino", "ctranslate2", "transformers"] = _key(
        "worker", "auto", "what runs the model; auto: the fastest that is installed and has weights in the archive"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = _key(
        "worker",
        "auto",
        "numbers the engine computes in; auto takes bf16 only where its answers are those of fp32, and never int8",
    )
    threads: int = _key("worker", 0, "engine threads of one worker; 0: its share of the cores", ge=0, le=1024)
    decode_threads: int = _key(
        "worker",
        0,
        "threads that decode a batch's requests; 0: as many as threads. Beside them run at most 32 that were left behind, "
        "because a request took too long",
        ge=0,
        le=1024,
    )
    decode_budget_ms: int = _key(
        "worker", 1000, "how long a batch may decode, by what its bodies are estimated to cost; more is 413", ge=1, le=600_000
    )
    padding: Literal["none", "static", "bucketed"] = _key(
        "worker", "none", "batch sizes the engine sees; static: the full one, bucketed: the next of b, b/2, ... 1, none: any"
    )
    audit: float = _key("worker", 0.0, "share of requests that are answered again, alone, and compared", ge=0, le=1)
    proof_s: float = _key(
        "worker",
        20.0,
        "how long a start may try whether rows are kept apart, where no build has proven it; 0: never",
        ge=0,
        le=600,
    )
    deterministic: bool = _key(
        "worker",
        False,
        "the same request gives the same bytes, always; batches are padded to one size where that helps",
    )
    memory_fraction: float = _key("worker", 1.0, "share of a GPU's memory that one worker may take", gt=0, le=1)

    job_queue_size: int = _key("server", 1000, "requests a model may have waiting; more get 503", ge=1)
    linger: Literal["free", "exact", "auto", "advise"] = _key(
        "server",
        "free",
        "Slotwise's own host: send a batch as soon as a worker is free, or wait max_batch_delay for a full one; auto: choose"
        " the batch that has most answers within latency_p99_ms; advise: only say what auto would do",
    )
    number_of_netty_threads: int = _key("server", 0, "HTTP threads; 0: as many as the server likes", ge=0, le=1024)
    async_logging: bool = _key("server", True, "logs are written by a thread of their own")
    max_request_bytes: int = _key("server", 16 * 2**20, "a larger request is refused with 413", ge=1, lt=2**31)
    max_response_bytes: int = _key("server", 16 * 2**20, "a larger answer is its sender's 500", ge=65_536, lt=2**31)
    heap_mb: int = _key(
        "server", 0, "the server's Java heap at most; 0: by the machine's memory and max_request_bytes", ge=0, le=1 << 20
    )
    unregister_timeout_s: int = _key("server", 120, "how long unregistering waits for workers to end", ge=1, le=86_400)
    log_level: Literal["ERROR", "WARN", "INFO", "DEBUG"] = _key("server", "WARN", "what the server's own log holds")
    request_log: bool = _key("server", False, "one line for every request in logs/access_log.log")
    model_api: bool = _key("server", True, "models can be registered and unregistered while it runs (MMS: always)")
    metrics_mode: Literal["prometheus", "log"] = _key("server", "prometheus", "where TorchServe's metrics go")

    num_replicas: int = _key("ray", 0, "replicas of a model at the start; 0: initial_workers", ge=0, le=10_000)
    min_replicas: int = _key("ray", 0, "with max_replicas: Ray never goes below, and starts here", ge=0, le=10_000)
    max_replicas: int = _key("ray", 0, "Ray scales between min_replicas and this; 0: no autoscaling", ge=0, le=10_000)
    target_ongoing_requests: float = _key(
        "ray", 0.0, "autoscaling: requests that one replica should have in hand; 0: a full batch", ge=0
    )
    upscale_delay_s: float = _key("ray", 30.0, "autoscaling: so long above the target before replicas are added", ge=0)
    downscale_delay_s: float = _key("ray", 600.0, "autoscaling: so long below it before any are taken away", ge=0)
    max_ongoing_requests: int = _key(
        "ray", 0, "requests a replica takes at once; more wait, over job_queue_size 503; 0: two full batches", ge=0
    )
    num_cpus: float = _key("ray", 0.0, "cores that Ray reserves for a replica; 0: none, it is placed anywhere", ge=0)
    num_gpus: float = _key("ray", 0.0, "GPUs that Ray reserves for a replica, or a part of one", ge=0)
    max_replicas_per_node: int = _key("ray", 0, "replicas of a model on one node at most; 0: any number", ge=0, le=100)
    graceful_shutdown_timeout_s: float = _key("ray", 20.0, "a replica that goes has so long for what it has in hand", ge=0)
    health_check_period_s: float = _key("ray", 1.0, "how often Ray asks whether a replica's engine is alive", gt=0)

    _source: str = PrivateAttr("")
    _explicit: dict[str, Any] = PrivateAttr(default_factory=dict)  # --set and environment: stronger than a model's wishes
    _cores: int = PrivateAttr(0)  # threads are checked against these; 0: not at all

    @field_validator("max_batch_delay_ms")
    @classmethod
    def _whole_as_int(cls, delay_ms: float) -> float:
        return whole_as_int(delay_ms)

    @classmethod
    def section(cls, section: str) -> list[str]:
        """The names of one section's keys."""
        return [key for key in cls.model_fields if section_of(key) == section]

    def but(self, changes: Mapping[str, Any], source: str) -> Profile:
        """The same profile with some keys changed. source: what an error names as the place to correct."""
        changed = _parse({**self.model_dump(), **changes}, source)
        changed._source, changed._explicit, changed._cores = self._source, self._explicit, self._cores
        _check_threads(changed, source)
        return changed

    def explicitly(self, changes: Mapping[str, Any], source: str) -> Profile:
        """As `but`, with changes that are stronger than any model's model.toml."""
        changed = self.but(changes, source)
        changed._explicit = {**self._explicit, **changes}
        return changed

    def for_model(self, wishes: Mapping[str, Any], source: str = "model.toml") -> Profile:
        """The profile as one model wants it. wishes: the `[profiles.NAME]` of its model.toml."""
        where = f"{source}: [profiles.{self.name}]"
        for key in wishes:
            if section_of(key) == "server":
                raise SlotwiseError(f"{where}: {key} is for the whole server", f"set it in {self._source or 'the profile'}")
        return self.but({**wishes, **self._explicit}, where) if wishes else self

    def on(self, kind: str) -> Profile:
        """The profile as a server of this kind reads it: on Ray its replicas are the workers."""
        replicas = self.num_replicas or (self.min_replicas if self.max_replicas else 0)
        if kind != "ray" or not replicas or "initial_workers" in self._explicit:
            return self
        return self.but({"initial_workers": replicas}, f"{self._source}: num_replicas")

    def registration(self) -> dict[str, float]:
        """The parameters for the management API: batch_size, max_batch_delay (ms), initial_workers, response_timeout (s)."""
        return {
            "batch_size": self.batch_size,
            "max_batch_delay": self.max_batch_delay_ms,
            "initial_workers": self.initial_workers,
            "response_timeout": self.response_timeout_s,
        }

    def worker(self) -> dict[str, Any]:
        """The settings for a worker: the [worker] keys, how many workers share the cores, and the server's limits."""
        keys = (*self.section("worker"), "response_timeout_s", "max_response_bytes")
        return {**{key: getattr(self, key) for key in keys}, "workers": self.initial_workers}

    def environment(self, overrides: Iterable[str]) -> dict[str, str]:
        """The environment of a server's workers. overrides: the keys that `--set` and the environment set."""
        worker = self.worker()
        overridden = {"workers" if key == "initial_workers" else key for key in overrides}
        return {
            "SLOTWISE_PROFILE": self.name,
            "SLOTWISE_WORKER": json.dumps(worker),
            "SLOTWISE_OVERRIDES": json.dumps({key: value for key, value in worker.items() if key in overridden}),
        }

    def __repr__(self) -> str:
        return f"Profile({self.name!r}, {self._source!r}, {self._explicit})"


def load_profile(
    name: str,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    cores: int | None = None,
) -> Profile:
    """The profile of that name (or .toml file), with the changes of the environment and of `overrides` (--set).

    environ None: this process's. cores: what workers x threads are checked against; None: this machine's, 0: unchecked.
    """
    path = project.profile_file(name)
    profile = _parse(_flat(read_toml(path), path), str(path))
    profile._source = str(path)
    profile._cores = available_cores() if cores is None else cores
    _check_threads(profile, str(path))
    from_variables = from_environment(os.environ if environ is None else environ)
    if from_variables:
        profile = profile.explicitly(_typed(from_variables, "environment"), "environment")
    return profile.explicitly(_typed(overrides, "--set"), "--set") if overrides else profile


def section_of(key: str) -> str | None:
    """The section of a key; None for name, description and anything else."""
    field = Profile.model_fields.get(key)
    extra = field.json_schema_extra if field else None
    return str(extra["section"]) if isinstance(extra, dict) else None


def _flat(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """The TOML file's sections as one dict; a key outside its section is an error."""
    flat: dict[str, Any] = {"name": path.stem, "description": data.pop("description", "")}
    for section, keys in data.items():
        if section not in SECTIONS or not isinstance(keys, dict):
            belongs = section_of(section)
            hint = f"it belongs in [{belongs}]" if belongs else f"sections: {', '.join(f'[{name}]' for name in SECTIONS)}"
            raise SlotwiseError(f"{path}: unknown section or key {section!r}", hint)
        for key, value in keys.items():
            belongs = section_of(key)
            if belongs is None:
                raise _unknown(key, f"{path}: [{section}]", Profile.section(section))
            if belongs != section:
                raise SlotwiseError(f"{path}: [{section}]: {key} is not a key of this section", f"it belongs in [{belongs}]")
            flat[key] = value
    return flat


def _typed(texts: Mapping[str, str], source: str) -> dict[str, Any]:
    """`--set` texts as TOML values: 8, true, 0.5; everything else stays text."""
    typed: dict[str, Any] = {}
    for key, text in texts.items():
        if section_of(key) is None:
            raise _unknown(key, source, [known for known in Profile.model_fields if section_of(known)])
        try:
            typed[key] = tomllib.loads(f"value = {text.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            typed[key] = text.strip()
    return typed


def _parse(data: Mapping[str, Any], source: str) -> Profile:
    """A Profile; SlotwiseError, one line naming source and key, for the first value that is wrong."""
    try:
        return Profile.model_validate(dict(data))
    except ValidationError as failed:
        first = failed.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            raise _unknown(key, source, [known for known in Profile.model_fields if section_of(known)]) from failed
        unit = UNITS.get(key.rpartition("_")[2])
        field = Profile.model_fields[key]
        hint = field.description or ""
        if unit:
            hint += f", in {unit}" if field.annotation is not int else f", a whole number of {unit}"
        problem = first["msg"].replace("Input should", "must", 1)
        raise SlotwiseError(f"{source}: {key}: {problem}, not {data[key]!r}", hint) from failed


def _unknown(key: str, source: str, known: list[str]) -> SlotwiseError:
    close = difflib.get_close_matches(key, known, 1, 0.55)
    unit = UNITS.get(close[0].rpartition("_")[2]) if close else None
    hint = f"did you mean {close[0]}{f' (in {unit})' if unit else ''}?" if close else f"keys: {', '.join(known)}"
    return SlotwiseError(f"{source}: unknown key {key!r}", hint)


def _check_threads(profile: Profile, source: str) -> None:
    """Raise SlotwiseError for more threads than cores. One thread a worker is always allowed: no worker can have fewer."""
    threads = profile.initial_workers * profile.threads
    if profile._cores and profile.threads > 1 and threads > profile._cores:
        raise SlotwiseError(
            f"{source}: threads: {profile.initial_workers} workers x {profile.threads} threads are more than the"
            f" {profile._cores} cores here",
            "threads = 0 gives every worker its share of the cores",
        )
