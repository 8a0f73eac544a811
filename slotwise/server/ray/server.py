"""Deploy models on Ray: one Serve application a model, with a deployment for each of its versions.

Its replicas call the front (front_link.py). A change deploys the whole application again. Replicas of versions that did not
change stay.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.archive.guarding.foreign import need_worker
from slotwise.backends.management.models import ApiError, HostedModel, HostedWorker, Observation
from slotwise.profiles.memory import resident_bytes
from slotwise.server.ray import cluster as ray_cluster

if TYPE_CHECKING:
    from slotwise.profiles.profile import Profile
    from slotwise.server.ray.front_link import FrontAddress
    from slotwise.server.record import ServerRecord

STATES = {"RUNNING": "READY", "STOPPING": "UNLOADING"}
FRESH_S = 0.2
FAILURES = 2  # of starting a replica; Ray tries a third time
POLICY = "slotwise.server.ray.scaling:by_front"
HOST = "hosts/local.py"  # an archive whose worker has it runs in a replica
# How long a proxy waits before it asks full replicas again. After Ray's own half a second a quick model has long been idle.
BACKOFF = {"initial_backoff_s": 0.01, "max_backoff_s": 0.05}


class RayHost:
    """Models as applications of Ray Serve."""

    def __init__(self, record: ServerRecord, profile: Profile) -> None:
        self.record, self.profile = record, profile
        ray_cluster.start(record)
        import ray  # noqa: PLC0415  it read the environment just now
        from ray import serve  # noqa: PLC0415

        from slotwise.server.ray import archives as ray_archives  # noqa: PLC0415
        from slotwise.server.ray import replica as ray_replica  # noqa: PLC0415

        self.ray, self.serve, self.archives, self.replica = ray, serve, ray_archives, ray_replica
        self.keeper_name = ray_cluster.keeper_name(record.run_id)
        self.keeper = ray_archives.keep_archives(self.keeper_name, self._archive_folder())
        self.versions: dict[str, list[HostedModel]] = {}  # a model's, the default one first
        self._details: tuple[float, Any, Any] = (float("-inf"), {}, ({}, {}))
        self._reading = threading.Lock()

    def node_address(self) -> str:
        """This node's address, as other nodes reach it."""
        return str(self.ray.util.get_node_ip_address())

    def hear_at(self, front: FrontAddress, timeout_s: float | None = None) -> None:
        """Have replicas come there. Raises what Ray raises where nobody hears that."""
        self.ray.get(self.keeper.hear_at.remote(front), timeout=timeout_s)

    def register(self, model: HostedModel, *, default: bool) -> None:
        """Give the archive to the head node and deploy."""
        need_worker(model.info, "Ray", HOST)
        self.ray.get(self.keeper.forget.remote(model.id))
        self.archives.upload(self.keeper, model.info.path, model.info.sha256)
        versions = self.versions.get(model.name, [])
        self._deploy([model, *versions] if default else [*versions, model])

    def unregister(self, model: HostedModel) -> None:
        """Deploy the others, or delete the application."""
        left = self.versions[model.name] = [one for one in self.versions[model.name] if one.version != model.version]
        if left:
            self._deploy(left)
            return
        del self.versions[model.name]
        self.serve.delete(model.name)

    def scale(self, model: HostedModel) -> None:
        """Deploy with another number of replicas; nothing is restarted."""
        before = next(one for one in self.versions[model.name] if one.version == model.version)
        if model.profile.max_replicas and model.min_workers and before.min_workers:
            between = f"{model.profile.min_replicas} and {model.profile.max_replicas}"
            message = f"Ray scales {model.name} by itself, between {between} replicas: change min_replicas and max_replicas"
            raise ApiError(409, "ConflictStatusException", message)
        self._deploy([model if one.version == model.version else one for one in self.versions[model.name]])

    def set_default(self, model: HostedModel, before: HostedModel) -> None:
        """Make it the application's entry."""
        others = [one for one in self.versions[model.name] if one.version != model.version]
        self._deploy([model, *others])

    def describe(self, model: HostedModel, facts: Mapping[str, Mapping[str, Any]] | None = None) -> Observation:
        """What Serve's controller says of the deployment, joined with what its replicas reported.

        facts: of those that the front hears; the actor that they reported to forgets it when it is started again.
        """
        details, (reported, failures) = self._observed()
        reports = {**(facts or {}), **reported}
        application = details.get("applications", {}).get(model.name, {})
        deployment = application.get("deployments", {}).get(model.id, {})
        workers = tuple(_worker(replica, reports) for replica in deployment.get("replicas", []))
        if any(worker.status == "READY" for worker in workers):
            return Observation(workers)
        why = failures.get(model.id, [])
        if len(why) >= FAILURES or deployment.get("status") == "DEPLOY_FAILED":
            return Observation(workers, why[-1] if why else last_line(str(deployment.get("message", ""))))
        return Observation(workers, last_line(application["message"]) if _failed(application, deployment) else "")

    def close(self) -> None:
        """End our Ray; on somebody else's, take away what is ours."""
        if self.record.cluster:
            with contextlib.suppress(Exception):
                self.serve.shutdown()
                self.ray.get(self.keeper.clear.remote(), timeout=10)
                self.ray.kill(self.keeper)
        self.ray.shutdown()

    def _deploy(self, versions: list[HostedModel]) -> None:
        """Deploy a model's application with these versions, the default one first."""
        name = versions[0].name
        served = [one for one in versions if one.min_workers]
        if not served:
            self.serve.delete(name)
        else:
            others = [self._deployment(one).bind(self._settings(one)) for one in served[1:]]
            entry = self._deployment(served[0]).bind(self._settings(served[0]), others)
            target = self.serve.RunTarget(entry, name=name, route_prefix=None)
            self.serve._run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
        self.versions[name] = versions

    def _deployment(self, model: HostedModel) -> Any:
        """The deployment of one version. Its `version` stays as long as its archive does, so that replicas stay."""
        options = deployment_options(model.profile, model.batch_size, model.min_workers)
        if scaling := options.get("autoscaling_config"):  # by what the front says
            one_at_least = {key: max(1, scaling[key]) for key in ("min_replicas", "initial_replicas")}
            options["autoscaling_config"] = {**scaling, **one_at_least, "policy": {"policy_function": POLICY}}
        deployment = self.serve.deployment(self.replica.Replica, name=model.id, **options)
        return deployment.options(version=what_runs(model), _internal=True)

    def _settings(self, model: HostedModel) -> dict[str, Any]:
        return asdict(
            self.replica.ReplicaSettings(
                name=model.name,
                version=model.version,
                runs=what_runs(model),
                batch_size=model.batch_size,
                max_batch_delay_ms=model.max_batch_delay_ms,
                response_timeout_s=model.response_timeout_s,
                max_request_bytes=self.profile.max_request_bytes,
                digest=model.info.sha256,
                keeper=self.keeper_name,
                environ=replica_environment(model.profile, self.record.overrides, self.record.shares),
            )
        )

    def _observed(self) -> tuple[dict[str, Any], tuple[dict[str, Any], dict[str, list[str]]]]:
        """Serve's details and the replicas' reports, at most FRESH_S old."""
        from ray.serve.context import _get_global_client  # noqa: PLC0415  as above

        with self._reading:
            if time.monotonic() - self._details[0] > FRESH_S:
                reports = self.ray.get(self.keeper.reports.remote())
                self._details = (time.monotonic(), _get_global_client().get_serve_details(), reports)
        return self._details[1], self._details[2]

    def _archive_folder(self) -> Path:
        """Where the head node keeps archives."""
        return Path("/tmp", self.keeper_name) if self.record.cluster else self.record.tmp_dir / "archives"


def what_runs(model: HostedModel) -> str:
    """A name for a registration's archive and how its batches are formed: it changes where replicas have to."""
    return f"{model.info.sha256}-{model.batch_size}-{model.max_batch_delay_ms}"


def deployment_options(profile: Profile, batch_size: int, replicas: int) -> dict[str, Any]:
    """What Serve is told of a deployment: the profile's [ray] section, with its zeros filled in."""
    actor = {"num_cpus": profile.num_cpus, "num_gpus": profile.num_gpus}
    options: dict[str, Any] = {
        "max_ongoing_requests": profile.max_ongoing_requests or 2 * batch_size,
        "max_queued_requests": profile.job_queue_size,
        "ray_actor_options": actor,
        "request_router_config": BACKOFF,
        "graceful_shutdown_timeout_s": profile.graceful_shutdown_timeout_s,
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": profile.health_check_period_s,
        "health_check_timeout_s": max(30.0, 3 * profile.health_check_period_s),
    }
    if profile.max_replicas_per_node:
        options["max_replicas_per_node"] = profile.max_replicas_per_node
    if not profile.max_replicas:
        return {**options, "num_replicas": replicas}
    scaling = {
        "min_replicas": profile.min_replicas,
        "max_replicas": profile.max_replicas,
        "initial_replicas": min(max(replicas, profile.min_replicas), profile.max_replicas),
        "target_ongoing_requests": profile.target_ongoing_requests or float(batch_size),
        "upscale_delay_s": profile.upscale_delay_s,
        "downscale_delay_s": profile.downscale_delay_s,
    }
    return {**options, "autoscaling_config": scaling}


def replica_environment(profile: Profile, overrides: Mapping[str, str], shares: Mapping[str, int]) -> dict[str, str]:
    """What a replica's worker finds in its environment. Where Ray reserves cores for it, it has as many threads."""
    environ = {"SLOTWISE_SHARES": json.dumps(dict(shares)), **profile.environment(overrides)}
    if profile.num_cpus >= 1:
        overridden = json.loads(environ["SLOTWISE_OVERRIDES"])
        own = {"workers": 1, "threads": profile.threads or int(profile.num_cpus)}
        environ |= {"SLOTWISE_OVERRIDES": json.dumps({**own, **overridden}), "SLOTWISE_SHARES": "{}"}
    return environ


def last_line(message: str) -> str:
    """The last line of a message that is not blank: of a traceback, what was raised."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "it did not start"


def _failed(application: Mapping[str, Any], deployment: Mapping[str, Any]) -> bool:
    return application.get("status") == "DEPLOY_FAILED" and deployment.get("status") != "HEALTHY"


def _worker(replica: Mapping[str, Any], reports: Mapping[str, Any]) -> HostedWorker:
    got = reports.get(replica["replica_id"], {})
    pid = int(got.get("pid") or replica.get("pid") or 0)
    return HostedWorker(
        id=str(replica["replica_id"]),
        pid=pid,
        status=STATES.get(getattr(replica["state"], "value", replica["state"]), "STARTING"),
        got={key: value for key, value in got.items() if key != "pid"},
        memory_bytes=resident_bytes(pid) if pid else 0,
        gpu=got.get("device") == "cuda",
        node=str(replica.get("node_ip") or ""),
    )
