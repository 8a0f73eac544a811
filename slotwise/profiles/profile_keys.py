"""The keys of a profile, with their sections, defaults, limits and meanings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from slotwise.profiles.batch_delay import whole_as_int

MOST_DELAY_MS, DAY_S = 60_000, 86_400  # the longest times that a profile may have


def _key(section: str, default: Any, description: str, **limits: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"section": section}, **limits)


class ProfileKeys(BaseModel):
    """Every key, the sections side by side. What "auto" stands for is here already (auto_values)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    description: str = ""

    batch_size: int = _key("registration", 1, "requests in a full batch; auto: as by linger auto, 32 at most", ge=1, le=65_536)
    max_batch_delay_ms: float = _key(
        "registration",
        5,
        "how long a batch waits for more requests; no fraction on TorchServe and MMS; auto: as by linger auto, 20 ms at most",
        ge=0,
        le=MOST_DELAY_MS,
    )
    linger: Literal["free", "exact", "auto", "advise"] = _key(
        "registration",
        "free",
        "Slotwise's own host: send a batch as soon as a worker is free, or wait max_batch_delay for a full one; auto: choose"
        " the batch that has most answers within latency_p99_ms; advise: only say what auto would do",
    )
    initial_workers: int = _key(
        "registration",
        1,
        "worker processes a model starts with; auto: min_workers, then by workers_by_load auto",
        ge=1,
        le=4096,
    )
    workers_by_load: Literal["off", "auto", "advise"] = _key(
        "registration",
        "off",
        "Slotwise's own host: auto has as many workers as the load needs, from min_workers to max_workers; advise: only say it",
    )
    min_workers: int = _key("registration", 1, "workers_by_load never goes below", ge=1, le=4096)
    max_workers: int = _key(
        "registration", 0, "workers_by_load never goes beyond; 0: as many as there are cores", ge=0, le=4096
    )
    response_timeout_s: int = _key("registration", 120, "a batch that takes longer costs its worker", ge=1, le=DAY_S)
    latency_p99_ms: float = _key(
        "registration",
        0,
        "what linger auto and workers_by_load want answers within, on Slotwise's own host; 0: no target",
        ge=0,
        le=600_000,
    )
    max_memory_mb: int = _key(
        "registration", 0, "MiB; Slotwise's own host replaces a worker that takes more, between two batches; 0: never", ge=0
    )
    idle_timeout_s: float = _key(
        "registration", 0, "Slotwise's own host: a model that nobody asks for so long gives its workers back; 0: never", ge=0
    )
    when_asleep: Literal["wait", "refuse"] = _key(
        "registration", "wait", "who asks a model that sleeps waits for its workers, or gets 503 while they start"
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
    threads: int = _key("worker", 0, "engine threads of one worker; 0 or auto: its share of the cores", ge=0, le=1024)
    decode_threads: int = _key(
        "worker",
        0,
        "threads that decode a batch's requests; 0: as many as threads; at most 32 more run on, left behind",
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
        "worker", False, "the same request gives the same bytes, always; batches are padded to one size where that helps"
    )
    memory_fraction: float = _key("worker", 1.0, "share of a GPU's memory that one worker may take", gt=0, le=1)

    job_queue_size: int = _key("server", 1000, "requests a model may have waiting; more get 503", ge=1)
    models_memory_mb: int = _key(
        "server", 0, "MiB for all workers of Slotwise's own host; models that were asked longest ago sleep; 0: no limit", ge=0
    )
    number_of_netty_threads: int = _key("server", 0, "HTTP threads; 0: as many as the server likes", ge=0, le=1024)
    async_logging: bool = _key("server", True, "logs are written by a thread of their own")
    max_request_bytes: int = _key("server", 16 * 2**20, "a larger request is refused with 413", ge=1, lt=2**31)
    max_response_bytes: int = _key("server", 16 * 2**20, "a larger answer is its sender's 500", ge=65_536, lt=2**31)
    heap_mb: int = _key(
        "server", 0, "the server's Java heap at most; 0: by the machine's memory and max_request_bytes", ge=0, le=1 << 20
    )
    unregister_timeout_s: int = _key("server", 120, "how long unregistering waits for workers to end", ge=1, le=DAY_S)
    log_level: Literal["ERROR", "WARN", "INFO", "DEBUG"] = _key("server", "WARN", "what the server's own log holds")
    request_log: bool = _key("server", False, "one line for every request in logs/access_log.log")
    model_api: bool = _key("server", True, "models can be registered and unregistered while it runs (MMS: always)")
    metrics_mode: Literal["prometheus", "log"] = _key("server", "prometheus", "where TorchServe's metrics go")

    num_replicas: int = _key("ray", 0, "replicas of a model at the start; 0: initial_workers", ge=0, le=10_000)
    min_replicas: int = _key("ray", 0, "with max_replicas: Ray never goes below, and starts here; 1 at least", ge=0, le=10_000)
    max_replicas: int = _key("ray", 0, "Ray scales between min_replicas and this; 0: no autoscaling", ge=0, le=10_000)
    target_ongoing_requests: float = _key(
        "ray", 0.0, "autoscaling: requests that one replica should have in hand; 0: a full batch", ge=0
    )
    upscale_delay_s: float = _key("ray", 30.0, "autoscaling: so long above the target before replicas are added", ge=0)
    downscale_delay_s: float = _key("ray", 600.0, "autoscaling: so long below it before any are taken away", ge=0)
    max_ongoing_requests: int = _key(
        "ray", 0, "requests that Ray's proxy gives a replica at once, in a RayService; 0: two full batches", ge=0
    )
    num_cpus: float = _key("ray", 0.0, "cores that Ray reserves for a replica; 0: none, it is placed anywhere", ge=0)
    num_gpus: float = _key("ray", 0.0, "GPUs that Ray reserves for a replica, or a part of one", ge=0)
    max_replicas_per_node: int = _key("ray", 0, "replicas of a model on one node at most; 0: any number", ge=0, le=100)
    graceful_shutdown_timeout_s: float = _key("ray", 20.0, "a replica that goes has so long for what it has in hand", ge=0)
    health_check_period_s: float = _key("ray", 1.0, "how often Ray asks whether a replica's engine is alive", gt=0)

    @field_validator("max_batch_delay_ms")
    @classmethod
    def _whole_as_int(cls, delay_ms: float) -> float:
        return whole_as_int(delay_ms)

    @classmethod
    def section(cls, section: str) -> list[str]:
        """The names of one section's keys."""
        return [key for key in cls.model_fields if section_of(key) == section]


def section_of(key: str) -> str | None:
    """The section of a key; None for name, description and anything else."""
    field = ProfileKeys.model_fields.get(key)
    extra = field.json_schema_extra if field else None
    return str(extra["section"]) if isinstance(extra, dict) else None
