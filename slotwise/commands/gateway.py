"""slotwise gateway, top, trace: the REST front and its page, what it is doing, and what became of one request."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from slotwise.commands.options import Name
from slotwise.console import Json, emit, say
from slotwise.log_format import LogFormat

PACKAGES = ("fastapi", "uvicorn", "prometheus_client")
AccessFormat = Literal["common", "json"]
NOT_ITS_OWN = ("name", "detach", "replace", "as_json", "handed")  # options of the command, not of the gateway that it starts


def _take(ctx: typer.Context, handed: str) -> None:
    try:
        values = json.loads(handed)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise typer.BadParameter("it has to be a JSON object")
    ctx.default_map = values


Handed = Annotated[str, typer.Option("--options", hidden=True, is_eager=True, callback=_take, help="Other defaults, as JSON.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (gateway, top, trace):
        app.command()(command)


def gateway(
    ctx: typer.Context,
    name: Annotated[str, typer.Option(help="The server to stand in front of.")] = "default",
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The page and REST; 0 takes a free one.")] = 8000,
    translation_port: Annotated[int, typer.Option(help="The same again, where translation clients look; -1: not.")] = 9527,
    grpc_port: Annotated[int, typer.Option(help="The Open Inference Protocol over gRPC; 0 takes a free one, -1: not.")] = -1,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="A request's deadline, where the client sets none.")] = 60.0,
    max_in_flight: Annotated[int, typer.Option(min=0, help="Requests of a model at the server; 0: two batches a worker.")] = 0,
    max_queued: Annotated[int, typer.Option(min=-1, help="Requests of a model that wait here; -1: a batch a worker.")] = -1,
    max_memory_mb: Annotated[
        int, typer.Option(min=0, help="MiB for all requests together: bodies, records, answers; 0: by the container's limit.")
    ] = 0,
    max_form_fields: Annotated[int, typer.Option(min=1, help="A form of more fields gets 413; a server never sees it.")] = 1000,
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
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Clients need a certificate that one of these signed (PEM); with --tls-cert.")
    ] = None,
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
    log_format: Annotated[
        LogFormat | None, typer.Option(help="How its log is written: text, or JSON, an object a line.")
    ] = None,
    access_log: Annotated[AccessFormat | None, typer.Option(help="Log every request and refusal; in which form.")] = None,
    remember: Annotated[int, typer.Option(min=0, help="Requests that `slotwise trace` and `top` know; 0: none.")] = 0,
    traces: Annotated[str, typer.Option(help="Send spans to this OTLP collector (HTTP), e.g. http://localhost:4318.")] = "",
    trace_share: Annotated[float, typer.Option(min=0, max=1, help="Of requests without a parent, with --traces.")] = 0.01,
    trace_slow_s: Annotated[float, typer.Option(min=0, help="Who takes longer is traced in any case, as errors are.")] = 1.0,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background; `slotwise stop` ends it.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of the one that runs: no request is lost.")
    ] = False,
    as_json: Json = False,
    handed: Handed = "{}",
) -> None:
    """Serve the page, REST and metrics in front of a model server."""
    _check_installed(*PACKAGES, *(["grpc"] if grpc_port >= 0 else []))
    if public:
        from slotwise.frontend.http.access import PUBLIC

        unknown = sorted(set(public) - set(PUBLIC))
        if unknown:
            raise typer.BadParameter(f"{unknown[0]}: not one of {', '.join(PUBLIC)}", param_hint="--public")
    if multi_model and keys:
        raise typer.BadParameter("SageMaker sends no key: without --keys", param_hint="--multi-model")
    from slotwise.frontend.process import check_takes_effect, running, start_detached

    options, typed = _options(ctx)
    if detach:
        record = None if replace else running(name)
        if record is not None:
            check_takes_effect(record, typed)
        else:
            arguments = ["--name", name, "--options", json.dumps(typed), *(["--replace"] if replace else [])]
            record = start_detached(name, arguments)
        address = {"page": record.page, "url": record.url, "pid": record.pid} | ({"grpc": record.grpc} if record.grpc else {})
        emit(address, as_json, record.listening)
        return
    from slotwise.frontend.keeper import keep
    from slotwise.frontend.listening import ListenAddress
    from slotwise.frontend.process import was_up
    from slotwise.frontend.succession import Starting

    listen = ListenAddress(host, port, translation_port, drain_delay_s, grpc_port)
    starting = Starting(name, options, replace=replace)
    kept = keep(starting.sockets(listen), lambda pid: was_up(name, pid))  # what follows runs in the gateway's own process

    from slotwise.backends.remote.remote_backend import RemoteBackend
    from slotwise.backends.remote.server_view import server_view
    from slotwise.deploy.on_demand import loader
    from slotwise.frontend.serve import serve
    from slotwise.host import gateway_link
    from slotwise.host.front_options import front_settings

    if multi_model is None and gateway_link.offered(name):
        gateway_link.serve(name, options, say, kept, starting)
        return
    backend = RemoteBackend(server_view(name), timeout_s, loader(multi_model) if multi_model else None)
    serve(name, backend, front_settings(options, kept.restarts), say, kept, starting)


def _options(ctx: typer.Context) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the gateway is started with, as JSON has it, and what of it was typed."""

    def plain(value: Any) -> Any:
        if isinstance(value, Path):
            return str(value.resolve())
        return sorted(value) if isinstance(value, list | tuple) else value

    options = {key: plain(value) for key, value in ctx.params.items() if key not in NOT_ITS_OWN}
    sources = {key: ctx.get_parameter_source(key) for key in options}
    return options, {key: options[key] for key, source in sources.items() if source and source.name == "COMMANDLINE"}


def _check_installed(*packages: str) -> None:
    """Raise SlotwiseError here, not in the log of a detached gateway; nothing is imported, for the keeper stays small."""
    from importlib.util import find_spec

    from slotwise.errors import missing_package

    for package in packages:
        if find_spec(package) is None:
            raise missing_package(package, "slotwise gateway")


def top(
    name: Name = "default",
    once: Annotated[bool, typer.Option("--once", help="Print it once.")] = False,
    every_s: Annotated[float, typer.Option(min=0.2, help="How often it is shown.")] = 2.0,
    as_json: Json = False,
) -> None:
    """Show models, workers, queues, batches, answers a second, p50, p99, and errors by cause; as it goes on."""
    from slotwise.frontend.observing.printed import top_table

    if once or as_json:
        while True:
            status = _asked(name, "/status/top")
            emit(status, as_json, partial(top_table, status))
            if once:
                return
            sys.stdout.flush()  # a pipe would keep it until there is more
            time.sleep(every_s)
    from rich.live import Live

    from slotwise.console import out

    with Live(top_table(_asked(name, "/status/top")), console=out(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(top_table(_asked(name, "/status/top")), refresh=True)


def trace(
    request_id: Annotated[str, typer.Argument(help="The x-request-id of its answer.")],
    name: Name = "default",
    as_json: Json = False,
) -> None:
    """Print what became of one of the last requests: when it came, waited, its batch, what ran and how often, what it got."""
    from urllib.parse import quote

    from slotwise.frontend.observing.printed import trace_lines

    seen = _asked(name, f"/status/requests/{quote(request_id, safe='')}")
    emit(seen, as_json, lambda: "\n".join(trace_lines(seen)))


def _asked(name: str, path: str) -> dict[str, Any]:
    """What the gateway of that name says, else our own host without one. Raises SlotwiseError."""
    from slotwise.client.tokens import auth_headers
    from slotwise.errors import SlotwiseError
    from slotwise.frontend import process
    from slotwise.server.lifecycle import need

    gateway = process.running(name)
    if gateway is not None:
        return gateway.asked(path)
    server = need(name)
    if server.kind not in ("slotwise", "ray"):
        raise SlotwiseError(f"no gateway stands before the server {name!r}", "`slotwise gateway` remembers requests")
    return process.asked(f"{server.inference_url}{path}", auth_headers(server))
