"""slotwise gateway: the REST front and its page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slotwise.console import Json, emit, say

PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gateway")(gateway)


def gateway(
    name: Annotated[str, typer.Option(help="The server to stand in front of.")] = "default",
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The page and REST; 0 takes a free one.")] = 8000,
    translation_port: Annotated[int, typer.Option(help="The same again, where translation clients look; -1: not.")] = 9527,
    grpc_port: Annotated[int, typer.Option(help="The Open Inference Protocol over gRPC; 0 takes a free one, -1: not.")] = -1,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="A request's deadline, where the client sets none.")] = 60.0,
    max_in_flight: Annotated[int, typer.Option(min=0, help="Requests of a model at the server; 0: two batches a worker.")] = 0,
    max_queued: Annotated[int, typer.Option(min=-1, help="Requests of a model that wait here; -1: a batch a worker.")] = -1,
    drain_delay_s: Annotated[float, typer.Option(min=0, help="After SIGTERM, still accept this long while not ready.")] = 1.0,
    hedge: Annotated[bool, typer.Option("--hedge/--no-hedge", help="Send a request again when its answer is late.")] = True,
    default_model: Annotated[str, typer.Option(help="What /invocations asks. Default: the only model.")] = "",
    multi_model: Annotated[
        Path | None, typer.Option(help="SageMaker's multi-model contract: load archives from below this folder.")
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="Who may ask: a file that `slotwise key add` writes.")] = None,
    public: Annotated[list[str] | None, typer.Option(help="Needs no key: metrics, status or docs; several times.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="HTTPS with this certificate (PEM, its chain after it).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's private key (PEM).")] = None,
    trusted_proxy: Annotated[
        list[str] | None, typer.Option(help="Address or network of a proxy whose X-Forwarded-For is believed; several times.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name it goes by; on loopback only its own count; several times.")
    ] = None,
    max_connections: Annotated[int, typer.Option(min=1, help="Connections of all clients at once.")] = 4096,
    max_connections_per_address: Annotated[
        int, typer.Option(min=1, help="Connections, and gRPC calls, of one address at once; of IPv6 of one /64.")
    ] = 1024,
    max_head_bytes: Annotated[int, typer.Option(min=1024, help="What the head of a request may take.")] = 65536,
    max_head_lines: Annotated[int, typer.Option(min=1, help="The header lines that it may have.")] = 100,
    head_timeout_s: Annotated[float, typer.Option(min=0.1, help="How long a first byte and a head may take.")] = 10.0,
    min_body_rate: Annotated[int, typer.Option(min=0, help="Bytes a second that a body has to bring; 0: any.")] = 1024,
    max_pipelined: Annotated[int, typer.Option(min=0, help="Requests that may wait behind one on its connection.")] = 16,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background; `slotwise stop` ends it.")] = False,
    as_json: Json = False,
) -> None:
    """Serve the page, REST and metrics in front of a model server."""
    _check_installed(*PACKAGES, *(["grpc"] if grpc_port >= 0 else []))
    if public:
        from slotwise.gateway.access import PUBLIC

        unknown = sorted(set(public) - set(PUBLIC))
        if unknown:
            raise typer.BadParameter(f"{unknown[0]}: not one of {', '.join(PUBLIC)}", param_hint="--public")
    if multi_model and keys:
        raise typer.BadParameter("SageMaker sends no key: without --keys", param_hint="--multi-model")
    from slotwise.gateway.process import already_running, running, start_detached, was_up

    if detach:
        options: dict[str, object] = {
            "--name": name,
            "--host": host,
            "--port": port,
            "--translation-port": translation_port,
            "--grpc-port": grpc_port,
            "--timeout-s": timeout_s,
            "--max-in-flight": max_in_flight,
            "--max-queued": max_queued,
            "--drain-delay-s": drain_delay_s,
            "--default-model": default_model,
            "--max-connections": max_connections,
            "--max-connections-per-address": max_connections_per_address,
            "--max-head-bytes": max_head_bytes,
            "--max-head-lines": max_head_lines,
            "--head-timeout-s": head_timeout_s,
            "--min-body-rate": min_body_rate,
            "--max-pipelined": max_pipelined,
        }
        files = {"--multi-model": multi_model, "--keys": keys, "--tls-cert": tls_cert, "--tls-key": tls_key}
        options |= {option: file.resolve() for option, file in files.items() if file}
        arguments = [str(part) for option in options.items() for part in option] + ([] if hedge else ["--no-hedge"])
        repeated = {"--public": public, "--trusted-proxy": trusted_proxy, "--allow-host": allow_host}
        arguments += [part for option, given in repeated.items() for one in given or [] for part in (option, one)]
        record = running(name) or start_detached(name, arguments)
        found = {"page": record.page, "url": record.url, "pid": record.pid} | ({"grpc": record.grpc} if record.grpc else {})
        emit(found, as_json, record.listening)
        return
    from slotwise.gateway.keeper import keep
    from slotwise.gateway.listening import ListenAddress, bound

    listen = ListenAddress(host, port, translation_port, drain_delay_s, grpc_port)
    other = running(name)
    if other is not None:
        raise already_running(other)
    kept = keep(bound(listen), lambda pid: was_up(name, pid))  # what follows runs in the gateway's own process

    from slotwise.deploy.on_demand import loader
    from slotwise.gateway.client_address import TrustedProxies
    from slotwise.gateway.client_connections import ConnectionLimits
    from slotwise.gateway.gateway import GatewayOptions
    from slotwise.gateway.http_framing import HeadLimits
    from slotwise.gateway.serve import Access, serve

    limits = ConnectionLimits(
        max_connections=max_connections,
        max_connections_per_address=max_connections_per_address,
        head=HeadLimits(max_head_bytes, max_head_lines),
        head_timeout_s=head_timeout_s,
        min_body_rate=min_body_rate,
        max_pipelined=max_pipelined,
    )
    serve(
        name,
        listen,
        GatewayOptions(
            timeout_s=timeout_s,
            in_flight=max_in_flight,
            queued=max_queued,
            hedge=hedge,
            default_model=default_model,
            trusted_proxies=TrustedProxies(trusted_proxy or ()),
        ),
        say,
        Access(keys, tuple(public or ()), tls_cert, tls_key, tuple(allow_host or ()), limits),
        loader(multi_model) if multi_model else None,
        kept,
    )


def _check_installed(*packages: str) -> None:
    """Raise SlotwiseError here, not in the log of a detached gateway; nothing is imported, for the keeper stays small."""
    from importlib.util import find_spec

    from slotwise.errors import missing_package

    for package in packages:
        if find_spec(package) is None:
            raise missing_package(package, "slotwise gateway")
