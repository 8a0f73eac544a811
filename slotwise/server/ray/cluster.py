"""Start a Ray on loopback, or join one: always with a token, because a Ray that can be reached runs anybody's code."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import secrets
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotwise.errors import SlotwiseError, first_line

if TYPE_CHECKING:
    from slotwise.server.record import ServerRecord

LOOPBACK = "127.0.0.1"
TOKEN_FILE = "ray_token"
ADDRESS_FILE = "ray_address"
SERVE_FILE = "ray_serve"  # which Serve this server has started, and its actor for archives
STORE_BYTES = 512 << 20  # bodies over 100 KB pass through it
NODE_S = 300.0
REACH_S = 10.0
NEEDED = ("gcs_server", "raylet")  # Ray starts neither of them again
# Ray gives up after these; a busy machine may need longer. Its processes are to be no nicer than others.
PATIENCE = {
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
    "RAY_gcs_server_port_wait_time_s": "300",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# Where these are on, Serve listens on every address of the machine.
ELSEWHERE_OFF = {"RAY_SERVE_ENABLE_HA_PROXY": "0", "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0"}


def check_token() -> None:
    """Raise SlotwiseError where there is no token for somebody else's cluster."""
    given = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if not given and not (Path.home() / ".ray" / "auth_token").is_file():
        raise SlotwiseError(
            "--ray-address needs the cluster's token: a Ray without one runs anybody's code",
            "start it with RAY_AUTH_MODE=token, and set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH here",
        )


def check_address(address: str) -> None:
    """Raise SlotwiseError for an address that cannot be joined."""
    if address.startswith("ray://"):
        raise SlotwiseError(
            "ray:// is the address of Ray's client, and requests cannot come in through it",
            "run this on a node of the cluster with --ray-address auto, or deploy k8s/ray",
        )
    if address != "auto" and not re.fullmatch(r"[^/\s]+:\d+", address):
        raise SlotwiseError(f"{address!r} is no address of a Ray cluster", "auto, or HOST:PORT as `ray start --head` prints it")
    check_token()


def start(record: ServerRecord) -> str:
    """Start a Ray here, or join `record.cluster`, and Serve in it. Returns its address.

    Raises SlotwiseError where that cannot be done.
    """
    os.environ["RAY_AUTH_MODE"] = "token"
    if not record.cluster:  # with this patience Ray would try a wrong token for minutes on somebody else's
        os.environ.update({key: value for key, value in PATIENCE.items() if key not in os.environ})
        os.environ.update(ELSEWHERE_OFF)
        token = record.state_dir / TOKEN_FILE
        token.unlink(missing_ok=True)
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32), "ascii")
        os.environ.pop("RAY_AUTH_TOKEN", None)
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
    import ray  # noqa: PLC0415  it reads the environment

    options: dict[str, Any] = {"namespace": "slotwise", "log_to_driver": False, "logging_level": "warning"}
    try:
        options |= {"address": _reached(record.cluster)} if record.cluster else _own(record)
        context = ray.init(**options)
    except Exception as error:  # Ray raises plain ones, too
        raise _plain(record, error) from error
    address = str(context.address_info["gcs_address"])
    (record.state_dir / ADDRESS_FILE).write_text(address, "ascii")
    _link_logs(record, Path(context.address_info["session_dir"]))
    _start_serve(record)
    return address


def ended_part() -> str:
    """A process that a Ray of our own cannot go on without, and that has ended; "" where none has."""
    from ray._private import worker  # noqa: PLC0415  it reads the environment

    node = worker._global_node
    ended = {kind for kind, _ in node.dead_processes()} if node is not None else set()
    return next((kind for kind in NEEDED if kind in ended), "")


def _reached(cluster: str) -> str:
    """HOST:PORT of a cluster that takes connections and our token: with ray.init either would take long to fail.

    Raises OSError where nobody listens there, Ray's AuthenticationError for a wrong token.
    """
    from ray._private import services  # noqa: PLC0415  it reads the environment

    address = str(services.canonicalize_bootstrap_address(cluster))
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    raylet: Any = importlib.import_module("ray._raylet")  # mypy sees no client in it
    raylet.GcsClient(address=address).internal_kv_get(b"session_name", namespace=b"session", timeout=REACH_S)
    return address


def _own(record: ServerRecord) -> dict[str, Any]:
    """What ray.init is given for a Ray of our own."""
    stay_on_loopback()
    return {
        "address": "local",
        "include_dashboard": False,
        "object_store_memory": STORE_BYTES,
        "_node_ip_address": LOOPBACK,
        "_temp_dir": str(record.tmp_dir),
        "_metrics_export_port": record.ports.metrics,
    }


def stay_on_loopback() -> None:
    """Keep this process's Ray from taking 127.0.0.1 for "any address", and from giving a node 30 s only to start."""
    from ray._private import services  # noqa: PLC0415  it reads the environment

    get_node = services.get_node

    def get_node_at_last(*arguments: Any) -> Any:
        deadline = time.monotonic() + NODE_S
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    services.resolve_ip_for_localhost = lambda host: host
    services.get_node = get_node_at_last


def _start_serve(record: ServerRecord) -> None:
    import ray  # noqa: PLC0415  it reads the environment
    from ray import serve  # noqa: PLC0415

    if (there := _serve_there()) and not _take_away(record, there):
        raise SlotwiseError(
            "Serve runs on this cluster already, with HTTP options of its own",
            "deploy k8s/ray there, or serve from a cluster without applications (`serve shutdown`)",
        )
    try:
        serve.start(
            proxy_location="Disabled",  # the front is ours (slotwise.host.on_ray)
            logging_config={"enable_access_log": False, "log_level": "WARNING"},
        )
    except (RuntimeError, TimeoutError, ray.exceptions.RayError) as error:
        raise SlotwiseError(f"Ray Serve did not start: {first_line(error)}", f"see {record.state_dir / 'logs'}") from error
    (record.state_dir / SERVE_FILE).write_text(f"{_serve_there()} {keeper_name(record.run_id)}", "ascii")


def keeper_name(run_id: str) -> str:
    """The name of the actor that keeps this run's archives."""
    return f"slotwise-{run_id}"


def _serve_there() -> str:
    """The id of the Serve that runs on this cluster; "" where there is none."""
    import ray  # noqa: PLC0415  it reads the environment

    try:
        return str(ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")._actor_id.hex())
    except ValueError:
        return ""


def _take_away(record: ServerRecord, serve_there: str) -> bool:
    """Take away what an earlier run of this server, which died, has left on a cluster; False where that Serve is another's."""
    import ray  # noqa: PLC0415  it reads the environment
    from ray import serve  # noqa: PLC0415

    try:
        known, keeper = (record.state_dir / SERVE_FILE).read_text("ascii").split()
    except (OSError, ValueError):
        return False
    if known != serve_there:
        return False
    serve.shutdown()
    with contextlib.suppress(ValueError, ray.exceptions.RayError):
        actor = ray.get_actor(keeper, namespace="slotwise")
        ray.get(actor.clear.remote(), timeout=REACH_S)
        ray.kill(actor)
    return True


def _plain(record: ServerRecord, error: Exception) -> SlotwiseError:
    """Ray's message in one line."""
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        return SlotwiseError(f"the cluster runs another Ray or Python: {text[:300]}", "install the cluster's versions here")
    if "oken" in text and "uth" in text:
        return SlotwiseError(f"the cluster refuses the token: {text[:200]}", "set RAY_AUTH_TOKEN to the cluster's token")
    if record.cluster:
        return SlotwiseError(
            f"there is no Ray cluster at {record.cluster}: {text[:200]}",
            "`ray start --head` starts one, with RAY_AUTH_MODE=token; without --ray-address one is started here",
        )
    return SlotwiseError(f"Ray did not start: {text[:300]}", f"see {record.state_dir / 'server.log'}")


def _link_logs(record: ServerRecord, session: Path) -> None:
    """Let `logs/ray` lead to Ray's own logs."""
    link = record.state_dir / "logs" / "ray"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(session / "logs")
