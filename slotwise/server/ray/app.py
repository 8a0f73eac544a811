"""Models as applications that a Serve config names, for KubeRay's RayService: no `slotwise serve` is needed there.

import_path: slotwise.server.ray.app:model    args: {archive: /models/digits.mar, profile: cpu}
import_path: slotwise.server.ray.app:front    at route_prefix /
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray import serve

from slotwise.archive.inspection import inspect
from slotwise.profiles.profile import load_profile
from slotwise.server.ray.http import Front
from slotwise.server.ray.replica import Replica, ReplicaSettings
from slotwise.server.ray.server import deployment_options, replica_environment


def model(args: Mapping[str, Any]) -> Any:
    """One model of an archive that every node's image carries. args: archive, profile, and `set`, as --set takes it."""
    info = inspect(Path(str(args["archive"])))
    overrides = {key: str(value) for key, value in dict(args.get("set") or {}).items()}
    profile = load_profile(str(args["profile"]), overrides, {}, cores=0)
    own = profile.for_model({key: value for key, value in info.wishes(profile.name).items() if key not in overrides}).on("ray")
    settings = ReplicaSettings(
        name=info.name,
        version=info.version,
        batch_size=own.batch_size,
        max_batch_delay_ms=own.max_batch_delay_ms,
        response_timeout_s=own.response_timeout_s,
        max_request_bytes=own.max_request_bytes,
        archive=str(info.path),
        environ=replica_environment(own, overrides, {}),
    )
    options = deployment_options(own, own.batch_size, own.initial_workers)
    return serve.deployment(Replica, name=settings.id, **options).bind(asdict(settings))


def front(args: Mapping[str, Any]) -> Any:
    """What answers /ping and unknown models."""
    return serve.deployment(Front, name="Front", ray_actor_options={"num_cpus": 0}, max_ongoing_requests=1000).bind()
