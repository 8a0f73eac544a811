"""Render a profile as the servers' own config.properties, for `slotwise serve` and as files in the repository.

Somebody who knows only TorchServe runs `torchserve --start --ts-config profiles/ei.properties` in the project's folder.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.files.disk import write_together
from slotwise.model_spec import ModelSpec, load_spec
from slotwise.profiles import kubernetes, memory
from slotwise.profiles.batch_delay import check_delay
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import Profile, load_profile
from slotwise.profiles.server_logs import log4j2

DEFAULT = "cpu"  # the profile that the project's config.properties shows
RENDERED = "`slotwise profile render`"  # stands in the header of what is rendered here
HEADER = """\
# The profile {name}, rendered from profiles/{name}.toml by `slotwise profile render`: change it there.
# In the project's folder: torchserve --start --ts-config {file}
# A model that is registered without parameters gets its settings under `models`, and default_workers_per_model workers.
"""


BASE_HEAP_MB = 256  # of a server without requests, and enough for small ones
HEAP_BODIES = 48  # measured: 30 of the largest at once pass, over and over
# MMS has no list of allowed addresses: whatever it would fetch goes through a proxy that is not there.
NO_DOWNLOADS = " ".join(
    ["-Dhttp.nonProxyHosts=", *(f"-D{kind}.proxyHost=127.0.0.1 -D{kind}.proxyPort=1" for kind in ("http", "https"))]
)
# More small answers a second than with the JVM's own choice. JMX for log4j, which nobody asks, is a tenth of Java's start;
# so is code for what is called by reflection, mostly once.
JVM = "-XX:+UseParallelGC -Dlog4j2.disableJmx=true -Djdk.reflect.useNativeAccessorOnly=true"


def render_properties(
    profile: Profile,
    kind: str = "torchserve",
    *,
    model_store: Path | str = "model_store",
    ports: Ports | None = None,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    log_config: str | None = None,
) -> str:
    """The profile as a config.properties of one server ("torchserve" or "mms"), with the keys that this server reads.

    models: the result of `entries`; only TorchServe reads it. At a registration, batch_size and max_batch_delay of the request
    win over it, response_timeout does not. log_config: a log4j2.xml, for a server whose command line names none. Such a file
    is for any machine, so the heap is limited only where the profile names a number.
    """
    profile.check_kind(kind)
    check_delay(kind, profile.max_batch_delay_ms)
    vmargs = JVM if log_config is None else f"-Dlog4j.configurationFile={log_config} {JVM}"
    heap_mb = profile.heap_mb or (usual_heap_mb(profile.max_request_bytes) if log_config is None else 0)
    vmargs += f" {NO_DOWNLOADS}" if kind == "mms" else ""
    vmargs += f" -Xmx{heap_mb}m" if heap_mb else ""
    keys = {"vmargs": vmargs} | _common(profile, str(model_store), ports or Ports())
    own = _torchserve if kind == "torchserve" else _mms
    keys |= own(profile, str(model_store), ports or Ports())
    if kind == "torchserve" and models:
        keys["models"] = _models(models)
    return "".join(f"{key}={_value(value)}\n" for key, value in keys.items())


Entries = dict[str, dict[str, dict[str, Any]]]


def usual_heap_mb(max_request_bytes: int, memory_bytes: int | None = None) -> int:
    """A quarter of the machine's memory, as Java would take, but no more than many of the largest bodies need.

    Java keeps what it once took. Its buffers outside the heap may take as much again.
    """
    needed = BASE_HEAP_MB + (HEAP_BODIES * max_request_bytes >> 20)
    quarter = (memory.total_bytes() if memory_bytes is None else memory_bytes) // 4 >> 20
    return max(BASE_HEAP_MB, min(quarter, needed))


def entries(profile: Profile) -> Entries:
    """TorchServe's {name: {version: {marName, batchSize, ...}}} of every known model, as the profile wants it.

    Without those that only our own host serves so (`of_own_host`).
    """
    models: Entries = {}
    left_out = of_own_host(profile)
    for name, folder in project.models().items():
        if name not in left_out:
            models |= entry(profile, folder)
    return models


def of_own_host(profile: Profile) -> list[str]:
    """The known models of which something is "auto" that only our own host chooses."""
    return [name for name, folder in project.models().items() if _of_model(profile, folder)[1].chosen]


def _of_model(profile: Profile, folder: Path) -> tuple[ModelSpec, Profile]:
    spec = load_spec(folder)
    return spec, profile.for_model(spec.profiles.get(profile.name, {}), str(folder / "model.toml"))


def registrable(profile: Profile) -> Entries:
    """As `entries`, without the models whose model.toml is wrong; `slotwise build` and `slotwise register` report those."""
    models: Entries = {}
    for folder in project.models().values():
        with contextlib.suppress(SlotwiseError):
            models |= entry(profile, folder)
    return models


def entry(profile: Profile, folder: Path) -> Entries:
    """The entry of the model in `folder`. Raises SlotwiseError for a wrong model.toml."""
    spec, of_model = _of_model(profile, folder)
    of_model.check_kind("torchserve")
    settings = {
        "defaultVersion": True,
        "marName": f"{spec.name}.mar",
        "minWorkers": of_model.initial_workers,
        "maxWorkers": of_model.initial_workers,
        "batchSize": of_model.batch_size,
        "maxBatchDelay": of_model.max_batch_delay_ms,
    }
    if of_model.response_timeout_s != profile.response_timeout_s:
        settings["responseTimeout"] = of_model.response_timeout_s
    return {spec.name: {spec.version: settings}}


def committed_files() -> dict[str, str]:
    """The files that `slotwise profile render` writes, by path: every profile's, and config.properties."""
    default_logs = log4j2("torchserve", load_profile(DEFAULT, environ={}, cores=0))
    files = {}
    for name in project.profiles():
        profile = load_profile(name, environ={}, cores=0)
        logs = log4j2("torchserve", profile)
        log_config = "profiles/log4j2.xml" if logs == default_logs else f"profiles/{name}.log4j2.xml"
        files[log_config] = logs
        for path in (f"profiles/{name}.properties", *(["config.properties"] if name == DEFAULT else [])):
            files[path] = HEADER.format(name=name, file=path) + _committed(profile, log_config)
    return files


def _committed(profile: Profile, log_config: str) -> str:
    """The properties, and which models are not among them; nothing of a profile that is for our own host alone."""
    if profile.chosen:
        return f'# Empty: {", ".join(sorted(profile.chosen))} = "auto" is for `slotwise serve --server slotwise` alone.\n'
    left_out = of_own_host(profile)
    note = f'# Not among them, since "auto" is for `--server slotwise` alone: {", ".join(left_out)}\n' if left_out else ""
    return note + render_properties(profile, models=entries(profile), log_config=log_config)


def rendered_files(root: Path) -> dict[str, str]:
    """The committed files, and those of Kubernetes where there are overlays below `root`."""
    return {**committed_files(), **kubernetes.rendered(root)}


def drifted(root: Path) -> list[str]:
    """The committed files below `root` that are not what the profiles render to."""
    return [path for path, text in rendered_files(root).items() if not _holds(root / path, text)]


def write(root: Path) -> list[str]:
    """Write the committed files that are not up to date, all or none; returns their paths.

    Raises SlotwiseError where somebody's own config.properties is in its place.
    """
    changed = {path: text for path, text in rendered_files(root).items() if not _holds(root / path, text)}
    own = root / "config.properties"
    if own.name in changed and own.exists() and RENDERED not in own.read_text("utf-8", "replace")[:1000]:
        raise SlotwiseError(f"{own} was not rendered from a profile", "move it away first, or render in another folder")
    write_together({root / path: text for path, text in changed.items()})
    return list(changed)


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text("utf-8") == text


def _common(profile: Profile, model_store: str, ports: Ports) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "inference_address": f"http://127.0.0.1:{ports.inference}",
        "management_address": f"http://127.0.0.1:{ports.management}",
        "model_store": model_store,
        "default_workers_per_model": profile.initial_workers,
        "job_queue_size": profile.job_queue_size,
        "async_logging": profile.async_logging,
        "max_request_size": profile.max_request_bytes,
        "max_response_size": profile.max_response_bytes,
        "unregister_model_timeout": profile.unregister_timeout_s,
        "decode_input_request": False,  # bodies stay bytes
    }
    if profile.number_of_netty_threads:
        keys["number_of_netty_threads"] = profile.number_of_netty_threads
    if profile.device == "cpu":
        keys["number_of_gpu"] = 0
    return keys


def _torchserve(profile: Profile, model_store: str, ports: Ports) -> dict[str, Any]:
    return {
        "metrics_address": f"http://127.0.0.1:{ports.metrics}",
        "grpc_inference_address": "127.0.0.1",
        "grpc_management_address": "127.0.0.1",
        "grpc_inference_port": ports.grpc_inference,
        "grpc_management_port": ports.grpc_management,
        "default_response_timeout": profile.response_timeout_s,  # seconds
        "disable_token_authorization": False,
        "enable_model_api": profile.model_api,
        "allowed_urls": _allowed_urls(model_store),
        "install_py_dep_per_model": False,
        "metrics_mode": profile.metrics_mode,
        "model_metrics_auto_detect": True,
    }


def _mms(profile: Profile, model_store: str, ports: Ports) -> dict[str, Any]:
    return {"default_response_timeout_seconds": profile.response_timeout_s}  # default_response_timeout would be minutes


def _allowed_urls(model_store: str) -> str:
    """A pattern of the archives in the model store; a comma would end it, a backslash means something to Java's Properties."""
    store = re.sub(r"[^A-Za-z0-9/_-]", ".", model_store)
    return f"file://{store if store.startswith('/') else f'/.*/{store}'}/[^/]+"


def _models(models: Mapping[str, Mapping[str, Any]]) -> str:
    """TorchServe's `models` value, one model a line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(versions)}" for name, versions in sorted(models.items())]
    return "{\n" + ",\n".join(lines) + "\n}"


def _value(value: object) -> str:
    """Escape a value for Java's Properties: a line break continues it, other characters than ASCII become \\uXXXX."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = text.replace("\\", "\\\\").replace("\n", "\\\n")
    return "".join(char if ord(char) < 128 else f"\\u{ord(char):04x}" for char in text)


def check(root: Path) -> None:
    """Raise SlotwiseError where a committed file is not what its profile renders to."""
    stale = drifted(root)
    if stale:
        raise SlotwiseError(f"not what the profiles render to: {', '.join(stale)}", "`slotwise profile render` writes them")
