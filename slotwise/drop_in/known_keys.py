"""Every key of TorchServe's config.properties: what it does here, has no meaning here, or is refused."""

from __future__ import annotations

from typing import Literal, NamedTuple

Use = Literal["used", "no meaning", "refused"]


class KnownKey(NamedTuple):
    """What becomes of one key. note: what it does, or why it does nothing."""

    use: Use
    note: str


JAVA = "Java's: there is none here"
SCRIPTS = "of TorchServe's launching of workers; here a worker gets its share of the cores"
NO_WORKFLOWS = "workflows are not there: two models are called one after the other"
AGE = "our gRPC ends no connection for its age"
KEYSTORE = "a keystore is Java's: name private_key_file and certificate_file (PEM)"

KEYS: dict[str, KnownKey] = {
    "inference_address": KnownKey("used", "where predictions are answered; http or https"),
    "management_address": KnownKey("used", "where models are registered; may be inference's"),
    "metrics_address": KnownKey("used", "where /metrics is; an address of its own"),
    "grpc_inference_address": KnownKey("used", "where TorchServe's gRPC answers predictions"),
    "grpc_management_address": KnownKey("used", "where TorchServe's gRPC registers models"),
    "grpc_inference_port": KnownKey("used", "its port"),
    "grpc_management_port": KnownKey("used", "its port"),
    "model_store": KnownKey("used", "where archives are; --model-store wins"),
    "load_models": KnownKey("used", "what is loaded at the start; --models wins"),
    "models": KnownKey("used", "settings of models, by name and version"),
    "model_snapshot": KnownKey("used", "what a snapshot says of the models that were there"),
    "allowed_urls": KnownKey("used", "from where archives may come; as there a list of patterns"),
    "default_workers_per_model": KnownKey("used", "workers of a model whose registration names none"),
    "default_response_timeout": KnownKey("used", "seconds that a batch may take"),
    "default_startup_timeout": KnownKey("used", "seconds that a worker may take to start"),
    "unregister_model_timeout": KnownKey("used", "seconds that what is in hand has when a model goes"),
    "job_queue_size": KnownKey("used", "requests of a model that may wait"),
    "number_of_gpu": KnownKey("used", "0: no worker sees a GPU; more: workers go round so many"),
    "debug": KnownKey("used", "one worker a model"),
    "blacklist_env_vars": KnownKey("used", "a pattern of variables that workers do not get"),
    "max_request_size": KnownKey("used", "bytes of a body; more is 413"),
    "max_response_size": KnownKey("used", "bytes of an answer"),
    "limit_max_image_pixels": KnownKey("used", "what TorchServe's own vision handlers read"),
    "service_envelope": KnownKey("used", "wraps handlers of other tools, as there; it needs TorchServe's Python package"),
    "private_key_file": KnownKey("used", "for https addresses"),
    "certificate_file": KnownKey("used", "for https addresses"),
    "install_py_dep_per_model": KnownKey(
        "used", "pip installs an archive's requirements for its workers alone; off by default"
    ),
    "enable_grpc_ssl": KnownKey("used", "TLS on both gRPC ports, by the same two files"),
    "enable_envvars_config": KnownKey("used", "whether variables TS_<KEY> win over this file"),
    "disable_token_authorization": KnownKey("used", "whether anybody may call"),
    "token_expiration_min": KnownKey("used", "how long a token opens"),
    "enable_model_api": KnownKey("used", "whether models can be registered while it runs; it starts with that off"),
    "enable_metrics_api": KnownKey("used", "whether there is a /metrics"),
    "metrics_mode": KnownKey("used", "log, prometheus or legacy"),
    "disable_system_metrics": KnownKey("used", "whether processor, memory and disk are measured"),
    "metric_time_interval": KnownKey("used", "seconds between two such measurements"),
    "model_metrics_auto_detect": KnownKey("used", "whether handlers' numbers count that metrics_config does not name"),
    "metrics_config": KnownKey("used", "which of a handler's numbers there are; default: TorchServe's"),
    "cors_allowed_origin": KnownKey("used", "which pages may call"),
    "cors_allowed_methods": KnownKey("used", "and how"),
    "cors_allowed_headers": KnownKey("used", "and with which headers"),
    "keystore": KnownKey("refused", KEYSTORE),
    "keystore_pass": KnownKey("refused", KEYSTORE),
    "keystore_type": KnownKey("refused", KEYSTORE),
    "decode_input_request": KnownKey("used", "whether text and JSON are decoded for other tools' handlers; never for ours"),
    "ts_open_inference_protocol": KnownKey(
        "no meaning", "V1 and V2 are always there on HTTP, not by gRPC; another tool's handler gets their bodies as they are"
    ),
    "ts_header_key_sequence_id": KnownKey("used", "the header with a sequence's id; handlers are told"),
    "ts_header_key_sequence_start": KnownKey("used", "the header that begins one"),
    "ts_header_key_sequence_end": KnownKey("used", "the header that ends one"),
    "workflow_store": KnownKey("no meaning", NO_WORKFLOWS),
    "plugins_path": KnownKey("no meaning", "plug-ins are Java's"),
    "vmargs": KnownKey("no meaning", JAVA),
    "number_of_netty_threads": KnownKey("no meaning", JAVA),
    "netty_client_threads": KnownKey("no meaning", JAVA),
    "async_logging": KnownKey("no meaning", JAVA),
    "prefer_direct_buffer": KnownKey("no meaning", JAVA),
    "use_native_io": KnownKey("no meaning", JAVA),
    "io_ratio": KnownKey("no meaning", JAVA),
    "initial_worker_port": KnownKey("no meaning", "workers have no ports here"),
    "initial_distribution_port": KnownKey("no meaning", "workers have no ports here"),
    "model_server_home": KnownKey("no meaning", JAVA),
    "cpp_log_config": KnownKey("no meaning", "there is no C++ worker here"),
    "cpu_launcher_enable": KnownKey("no meaning", SCRIPTS),
    "cpu_launcher_args": KnownKey("no meaning", SCRIPTS),
    "ipex_enable": KnownKey("no meaning", "engines choose their own kernels"),
    "ipex_gpu_enable": KnownKey("no meaning", "engines choose their own kernels"),
    "system_metrics_cmd": KnownKey("no meaning", "the host measures itself"),
    "use_env_allowed_urls": KnownKey("used", "whether the variable TS_ALLOWED_URLS wins over this file, too"),
    "grpc_inference_max_connection_age_ms": KnownKey("no meaning", AGE),
    "grpc_management_max_connection_age_ms": KnownKey("no meaning", AGE),
    "grpc_inference_max_connection_age_grace_ms": KnownKey("no meaning", AGE),
    "grpc_management_max_connection_age_grace_ms": KnownKey("no meaning", AGE),
    "default_service_handler": KnownKey("no meaning", "an archive names its handler"),
    "version": KnownKey("no meaning", "what wrote a snapshot"),
    "tsConfigFile": KnownKey("no meaning", "what wrote a snapshot"),
    "python": KnownKey("no meaning", "workers run in this Python"),
}


def remarks(named: dict[str, str]) -> list[str]:
    """A line for every key of these that does nothing here; a key of Java's is named without its value."""
    lines = []
    for key in sorted(named):
        known = KEYS.get(key)
        if known is None:
            lines.append(f"config.properties: {key:.60} is no key of TorchServe's: ignored")
        elif known.use == "no meaning" and key not in ("version", "tsConfigFile", "python"):
            lines.append(f"config.properties: {key} has no meaning here ({known.note})")
    return lines
