"""Profiles: batch settings, worker settings and server keys in one TOML file, and the config files rendered from it.

A profile's keys stand in three sections, [registration], [worker] and [server], but share one namespace: `--set KEY=VALUE`
and a model.toml's `[profiles.NAME]` name a key without its section. The environment overrides for containers:
BATCH_SIZE, WORKERS and MAX_BATCH_DELAY.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slotwise import project
from slotwise.model_spec import parse, read_toml

ENVIRONMENT = {"BATCH_SIZE": "batch_size", "WORKERS": "initial_workers", "MAX_BATCH_DELAY": "max_batch_delay_ms"}


def _key(section: str, default: Any, description: str, **limits: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"section": section}, **limits)


class Profile(BaseModel):
    """One deployment profile, flat. Raises on unknown keys, wrong units and more threads than cores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    description: str = ""
    batch_size: int = _key("registration", 1, "most requests in one batch", ge=1, le=4096)
    max_batch_delay_ms: int = _key("registration", 5, "how long a batch waits for more requests, ms", ge=0, le=60_000)
    initial_workers: int = _key("registration", 1, "worker processes a model", ge=1, le=256)
    response_timeout_s: int = _key("registration", 120, "how long a batch may take before its worker is killed, s", ge=1)

    device: Literal["cpu", "cuda"] = _key("worker", "cpu", "where the engine runs; cuda falls back to cpu")
    engine: str = _key("worker", "auto", "auto, torch, onnxruntime, openvino, ...: what runs the model")
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = _key("worker", "auto", "numbers the engine computes in")
    threads: int = _key("worker", 0, "engine threads a worker; 0: the cores divided among the workers", ge=0)
    decode_threads: int = _key("worker", 0, "threads that decode a batch's requests; 0: as threads", ge=0)
    padding: Literal["none", "static", "bucketed"] = _key("worker", "none", "the sizes the engine sees")
    memory_fraction: float = _key("worker", 1.0, "share of a GPU's memory a worker may take", gt=0, le=1)

    job_queue_size: int = _key("server", 100, "requests a model may have waiting; more get 503", ge=1)
    number_of_netty_threads: int = _key("server", 0, "HTTP threads; 0: the server's own choice", ge=0)
    async_logging: bool = _key("server", True, "write logs in a thread of their own")
    max_request_bytes: int = _key("server", 16 * 1024**2, "largest request", ge=1)
    max_response_bytes: int = _key("server", 16 * 1024**2, "largest response", ge=1)
    unregister_timeout_s: int = _key("server", 120, "how long unregistering may take, s", ge=1)
    log_level: Literal["ERROR", "WARN", "INFO", "DEBUG"] = _key("server", "WARN", "what the server's own log holds")
    request_log: bool = _key("server", False, "a line a request in the access log")
    model_api: bool = _key("server", True, "models can be registered and unregistered while it runs")
    metrics_mode: Literal["prometheus", "log"] = _key("server", "prometheus", "where TorchServe's metrics go")

    @model_validator(mode="after")
    def _within_cores(self) -> Profile:
        cores = len(os.sched_getaffinity(0))
        if self.threads and self.threads * self.initial_workers > cores and self.threads > 1:
            raise ValueError(f"threads: {self.threads} x {self.initial_workers} workers are more than the {cores} cores here")
        return self

    @classmethod
    def section(cls, section: str) -> list[str]:
        """The names of one section's keys."""
        extra = {name: field.json_schema_extra for name, field in cls.model_fields.items()}
        return [name for name, schema in extra.items() if isinstance(schema, dict) and schema["section"] == section]

    def but(self, changes: Mapping[str, Any], source: str = "overrides") -> Profile:
        """The same profile with some keys changed; SlotwiseError names the key that is unknown or wrong."""
        return parse(type(self), {**self.model_dump(), **changes}, Path(source))

    def for_model(self, overrides: Mapping[str, Any]) -> Profile:
        """The profile as one model wants it ([profiles.NAME] of its model.toml)."""
        return self.but(overrides, f"[profiles.{self.name}]") if overrides else self

    def registration(self) -> dict[str, int]:
        """What the management API is told, in its own words: batch_size, max_batch_delay (ms), ..."""
        return {
            "batch_size": self.batch_size,
            "max_batch_delay": self.max_batch_delay_ms,
            "initial_workers": self.initial_workers,
            "response_timeout": self.response_timeout_s,
        }

    def worker(self) -> dict[str, Any]:
        """What the worker reads (slotwise.worker.settings)."""
        keys = self.section("worker")
        return {
            **{key: getattr(self, key) for key in keys},
            "workers": self.initial_workers,
            "response_timeout_s": self.response_timeout_s,
        }


def load_profile(name: str, overrides: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None) -> Profile:
    """The profile `name` (or a .toml file); the environment overrides the file, `overrides` (--set) both."""
    path = project.profile_file(name)
    data = read_toml(path)
    flat: dict[str, Any] = {"name": path.stem, "description": data.pop("description", "")}
    for section in ("registration", "worker", "server"):
        flat |= data.pop(section, {})
    environ = os.environ if environ is None else environ
    profile = parse(Profile, {**flat, **data}, path)
    said = {key: environ[variable] for variable, key in ENVIRONMENT.items() if environ.get(variable)}
    profile = profile.but(said, "environment") if said else profile
    return profile.but(overrides, "--set") if overrides else profile


def render_properties(
    profile: Profile,
    kind: str = "torchserve",
    *,
    model_store: Path | str = "model_store",
    ports: Any = None,
    models: Mapping[str, Any] | None = None,
) -> str:
    """The profile as the server's own config.properties.

    models: {name: {version: {batchSize, maxBatchDelay, ...}}}, which only TorchServe reads.
    """
    inference, management, metrics = (
        (ports.inference, ports.management, ports.metrics) if ports is not None else (8080, 8081, 8082)
    )
    store = Path(model_store)
    lines = {
        "inference_address": f"http://127.0.0.1:{inference}",
        "management_address": f"http://127.0.0.1:{management}",
        "model_store": str(store),
        "job_queue_size": profile.job_queue_size,
        "async_logging": profile.async_logging,
        "max_request_size": profile.max_request_bytes,
        "max_response_size": profile.max_response_bytes,
        "decode_input_request": False,
        "number_of_netty_threads": profile.number_of_netty_threads or None,
    }
    if kind == "torchserve":
        lines |= {
            "metrics_address": f"http://127.0.0.1:{metrics}",
            "allowed_urls": f"file://{store.resolve()}/.*",
            "default_response_timeout": profile.response_timeout_s,
            "unregister_model_timeout": profile.unregister_timeout_s,
            "enable_model_api": profile.model_api,
            "metrics_mode": profile.metrics_mode,
            "model_metrics_auto_detect": True,
            "models": json.dumps(models) if models else None,
        }
        if ports is not None:
            lines |= {"grpc_inference_port": ports.grpc_inference, "grpc_management_port": ports.grpc_management}
    else:
        lines |= {"default_response_timeout_seconds": profile.response_timeout_s}
    said = {key: str(value).lower() if isinstance(value, bool) else value for key, value in lines.items()}
    return "".join(f"{key}={value}\n" for key, value in said.items() if value is not None)
