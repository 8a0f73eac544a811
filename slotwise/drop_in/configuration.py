"""What a TorchServe deployment says: config.properties, command line and environment, by TorchServe's priorities.

A key's value is taken from the first of these that has it:

    TS_<KEY> in the environment, where enable_envvars_config is true
    the command line
    the file: $TS_CONFIG_FILE, --ts-config, the newest snapshot, ./config.properties
    TorchServe's default
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slotwise.backends.local.gpus import gpus_here
from slotwise.drop_in.arguments import Arguments
from slotwise.drop_in.known_keys import KEYS
from slotwise.drop_in.snapshots import newest
from slotwise.errors import SlotwiseError
from slotwise.frontend.listening import with_port
from slotwise.worker.environment.cores import available_cores

VARIABLE = re.compile(r"\$\$([^$]+[^$])\$\$")
MODES = ("log", "prometheus", "legacy")
DEFAULT_PORTS = {"inference": 8080, "management": 8081, "metrics": 8082}
UNNAMED_PORTS = {"inference": (80, 443), "management": (8081, 8444), "metrics": (8082, 8445)}  # of an address: http, https
SECURITY = "disable_token_authorization"
OF_THE_FILE = {  # what no variable sets
    *(
        "enable_envvars_config",
        "use_env_allowed_urls",
        "models",
        "model_snapshot",
        "metric_time_interval",
        "system_metrics_cmd",
    ),
    *("use_native_io", "io_ratio", "version", "tsConfigFile", "python"),
}
OTHERWISE = {"token_expiration_min": "TS_TOKEN_EXPIRATION_TIME_MIN"}  # variables that are not called as their keys
DEFAULT_BODY_BYTES = 6_553_500
MOST_BYTES = 1 << 31


@dataclass(frozen=True)
class Address:
    """Where one of the APIs listens."""

    host: str
    port: int
    tls: bool = False

    @classmethod
    def parsed(cls, text: str, api: str) -> Address:
        """`http://0.0.0.0:8080`, of this API's key. Without a port: the API's own, as on TorchServe. Raises SlotwiseError."""
        key = f"{api}_address"
        parts = urlsplit(text.strip())
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or port == 0:
            raise SlotwiseError(f"{key}: {text!r} is no address", f"{key}=http://127.0.0.1:{DEFAULT_PORTS[api]}")
        return cls(parts.hostname, port or UNNAMED_PORTS[api][parts.scheme == "https"], parts.scheme == "https")

    @property
    def url(self) -> str:
        """How it is written."""
        return f"{'https' if self.tls else 'http'}://{with_port(self.host, self.port)}"


@dataclass(frozen=True)
class Configuration:
    """The keys that hold, as texts. source: the file that they came from, None where there is none.

    guards: whether another tool's archive gets a guard. kept: the keys that snapshots keep.
    """

    keys: Mapping[str, str]
    source: Path | None = None
    snapshots: bool = True
    guards: bool = True
    kept: Mapping[str, str] = field(default_factory=dict)

    def text(self, key: str, default: str = "") -> str:
        """A key's value."""
        return self.keys.get(key, default)

    def flag(self, key: str, default: bool = False) -> bool:
        """A key's value as Java reads it: everything but true is false."""
        return self.keys[key].lower() == "true" if key in self.keys else default

    def number(self, key: str, default: int) -> int:
        """A key's value as a whole number. Raises SlotwiseError."""
        try:
            return int(self.keys.get(key, default))
        except ValueError:
            raise SlotwiseError(f"{key} is not a whole number: {self.keys[key]:.40}", "correct config.properties") from None

    def address(self, api: str) -> Address:
        """Where `inference`, `management` or `metrics` listens."""
        return Address.parsed(self.text(f"{api}_address", f"http://127.0.0.1:{DEFAULT_PORTS[api]}"), api)

    def grpc_host(self, api: str) -> str:
        """Where gRPC for `inference` or `management` listens; as in Java an address of IPv6 may stand in brackets."""
        return self.text(f"grpc_{api}_address", "127.0.0.1").strip().strip("[]")

    @property
    def one_port(self) -> bool:
        """Whether models are registered where predictions are answered."""
        return self.address("inference") == self.address("management")

    @property
    def model_store(self) -> Path:
        """Where archives are."""
        return Path(self.text("model_store")).resolve()

    @property
    def certificate(self) -> tuple[Path, Path] | None:
        """The certificate's and the key's file, for https."""
        if not (self.text("certificate_file") and self.text("private_key_file")):
            return None
        return Path(self.text("certificate_file")), Path(self.text("private_key_file"))

    @property
    def metrics_mode(self) -> str:
        """log, prometheus or legacy; what TorchServe does not know is log."""
        mode = re.sub(r"\s", "", self.text("metrics_mode", "log")).lower()
        return mode if mode in MODES else "log"

    @property
    def tokens(self) -> bool:
        """Whether callers have to bring a token."""
        return not self.flag("disable_token_authorization")

    def workers_at_start(self) -> int:
        """Workers of a model that is loaded at the start, where nothing names a number."""
        if self.flag("debug"):
            return 1
        return self.number("default_workers_per_model", 0) or self.gpus() or available_cores()

    def gpus(self) -> int:
        """How many GPUs workers go round."""
        there = gpus_here()
        return max(0, min(there, self.number("number_of_gpu", there)))

    def check(self) -> None:
        """Raise SlotwiseError where something is asked for that cannot be done."""
        for key, value in self.keys.items():
            known = KEYS.get(key)
            if known and known.use == "refused" and value.strip().lower() != "false":
                raise SlotwiseError(f"{key} is refused: {known.note}", "take it out of config.properties")
        for number in ("default_workers_per_model", "default_response_timeout", "default_startup_timeout", "job_queue_size"):
            if self.number(number, 1) < 0:
                raise SlotwiseError(f"{number} is below 0", "correct config.properties")
        if not 0 < self.number("max_request_size", DEFAULT_BODY_BYTES) < MOST_BYTES:
            raise SlotwiseError("max_request_size is below 1, or 2 GiB and more", "correct config.properties")
        addresses = {api: self.address(api) for api in DEFAULT_PORTS}
        if len({address.port for address in addresses.values()}) < len(addresses) - self.one_port:
            hint = "only inference_address and management_address may be one, to the letter"
            raise SlotwiseError("inference, management and metrics share a port", hint)
        secured = "an https address" if any(address.tls for address in addresses.values()) else ""
        secured = secured or ("enable_grpc_ssl" if self.flag("enable_grpc_ssl") else "")
        if secured and not self.certificate:
            raise SlotwiseError(f"{secured} needs private_key_file and certificate_file", "both are PEM files")
        if not self.text("model_store"):
            raise SlotwiseError("Missing mandatory parameter --model-store", "--model-store FOLDER, or model_store in the file")
        if not self.model_store.is_dir():
            raise SlotwiseError(f"--model-store directory not found: {self.text('model_store')}", "make it, or name another")


def configured(arguments: Arguments, environ: Mapping[str, str] = os.environ) -> Configuration:
    """What holds. Raises SlotwiseError where the file is missing, or asks for what cannot be done."""
    source = _file(arguments, environ)
    written = read_properties(source) if source else {}
    keys = {key: _resolved(key, value, environ) for key, value in written.items()} | arguments.keys()
    kept = written | {key: value for key, value in arguments.keys().items() if key != SECURITY}  # that opens this start alone
    if keys.get("enable_envvars_config", "").lower() == "true":
        own = {key: variable for key in KEYS if (variable := _variable(key, keys)) in environ}
        keys |= {key: environ[variable] for key, variable in own.items()}
    configuration = Configuration(keys, source, not arguments.no_config_snapshots, not arguments.no_guard, kept)
    configuration.check()
    return configuration


def _variable(key: str, keys: Mapping[str, str]) -> str:
    """The variable that sets a key, as on TorchServe; "" where none does."""
    if key in OF_THE_FILE or (key == "allowed_urls" and keys.get("use_env_allowed_urls", "").lower() != "true"):
        return ""
    return OTHERWISE.get(key, f"TS_{key.removeprefix('ts_').upper()}")


def hostname() -> str:
    """This machine's name, as metrics have it."""
    return socket.gethostname()


def _file(arguments: Arguments, environ: Mapping[str, str]) -> Path | None:
    named = environ.get("TS_CONFIG_FILE") or arguments.ts_config
    if named:
        if not Path(named).is_file():
            raise SlotwiseError(f"--ts-config file not found: {named}", "name a config.properties")
        return Path(named)
    snapshot = None if arguments.no_config_snapshots else newest(Path(environ.get("LOG_LOCATION", "logs")) / "config")
    if snapshot:
        return snapshot
    return Path("config.properties") if Path("config.properties").is_file() else None


def read_properties(source: Path) -> dict[str, str]:
    """The keys of a config.properties, as Java reads it. Raises SlotwiseError."""
    import javaproperties  # noqa: PLC0415  optional, the extra gateway

    try:
        with source.open(encoding="latin-1") as file:
            keys: dict[str, Any] = javaproperties.load(file)
    except (OSError, ValueError) as error:
        raise SlotwiseError(f"{source} cannot be read: {error}", "name a config.properties") from error
    return {key: value for key, value in keys.items() if key}


def _resolved(key: str, value: str, environ: Mapping[str, str]) -> str:
    """The value with $$NAME$$ replaced by what the environment has. Raises SlotwiseError."""
    missing = [name for name in VARIABLE.findall(value) if name not in environ]
    if missing:
        raise SlotwiseError(f"{key}: Invalid Environment Variable {missing[0]:.60}", "set it, or write the value")
    return VARIABLE.sub(lambda match: environ[match[1]], value)
