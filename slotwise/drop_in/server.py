"""The process of `slotwise torchserve --start`: our own host under TorchServe's addresses, tokens, logs and snapshots.

    python -m slotwise.drop_in.server --model-store store --models all ...

It works in the folder that it is started in, as TorchServe: key_file.json, logs/ and the files that config.properties names.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import shutil
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from slotwise import __version__
from slotwise.backends.management.bearer import NoTokens, Tokens
from slotwise.drop_in import daemon
from slotwise.drop_in.archive_source import DeployedArchives
from slotwise.drop_in.arguments import Arguments, parsed
from slotwise.drop_in.command_line import TORCHSERVE
from slotwise.drop_in.configuration import DEFAULT_BODY_BYTES, MOST_BYTES, Configuration, configured
from slotwise.drop_in.inference_api import (
    QUERY,
    DropInEntrance,
    DropInForward,
    cors_headers,
    error_of,
    names_of,
    to_client,
    to_model,
    torchserve_error,
)
from slotwise.drop_in.known_keys import remarks
from slotwise.drop_in.line_files import LogFiles, ToLogFiles
from slotwise.drop_in.model_table import DropInModels, shown_word
from slotwise.drop_in.one_port import OnePort
from slotwise.drop_in.own_host import CountedBackend, CountedVersions, DropInHost
from slotwise.drop_in.server_numbers import ServerNumbers
from slotwise.drop_in.snapshots import Snapshots
from slotwise.drop_in.web_apis import Took, access_to, grpc_line, management, metrics, metrics_text, printable
from slotwise.errors import SlotwiseError
from slotwise.frontend import replies
from slotwise.frontend.certificates import CertificateFiles
from slotwise.frontend.frontend import Gateway, GatewayOptions
from slotwise.frontend.http.app import build_app
from slotwise.frontend.inference_request import Scope
from slotwise.frontend.listening import with_port
from slotwise.frontend.serve import LARGE_BLOCK_BYTES
from slotwise.host.server import check_token, grpc_services, listening, live_models, loop_factory
from slotwise.profiles import memory
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import Profile
from slotwise.profiles.profile_keys import DAY_S
from slotwise.server import supervisor
from slotwise.server.processes import MARK, start_time
from slotwise.server.record import ServerRecord
from slotwise.worker.environment.cores import available_cores

log = logging.getLogger("org.pytorch.serve.ModelServer")  # whose lines these are

NAME = "torchserve"
LOOPBACKS = ("127.0.0.1", "localhost", "::1")
GRPC_PORTS = {"inference": 7070, "management": 7071}
MOST_MINUTES = 100 * 366 * 1440  # of a token: a hundred years, which a date can say
LAST_LINE = "Model server started."


def profile_of(configuration: Configuration) -> Profile:
    """What a model gets that nobody says anything of."""
    return Profile(
        name=NAME,
        batch_size=1,
        max_batch_delay_ms=100,
        initial_workers=1,
        response_timeout_s=min(DAY_S, max(1, configuration.number("default_response_timeout", 120))),
        job_queue_size=max(1, configuration.number("job_queue_size", 100)),
        max_request_bytes=configuration.number("max_request_size", DEFAULT_BODY_BYTES),
        max_response_bytes=min(MOST_BYTES - 1, max(65_536, configuration.number("max_response_size", DEFAULT_BODY_BYTES))),
        device="cuda" if configuration.gpus() else "cpu",
    )


def record_of(configuration: Configuration, folder: Path) -> ServerRecord:
    """This server as the rest of Slotwise knows servers."""
    ports = [configuration.address(api).port for api in ("inference", "management", "metrics")]
    ports += [configuration.number(f"grpc_{api}_port", port) for api, port in GRPC_PORTS.items()]
    return ServerRecord(
        name=NAME,
        pid=os.getpid(),
        started=start_time(os.getpid()),
        kind="slotwise",
        ports=Ports(*ports),
        profile=NAME,
        overrides={},
        model_store=configuration.model_store,
        state_dir=folder,
        tmp_dir=folder,
        run_id=uuid.uuid4().hex,
    )


async def serve(configuration: Configuration, files: LogFiles, folder: Path) -> None:
    """Serve until SIGTERM. folder: the server's own."""
    ended = supervisor.end_at_signals()
    record, profile = record_of(configuration, folder), profile_of(configuration)
    os.environ |= {"SLOTWISE_STATE": str(folder), MARK: record.run_id}
    tokens = Tokens(Path(), 60 * _minutes(configuration), at_once=False) if configuration.tokens else NoTokens()
    numbers = ServerNumbers(configuration, files)
    loaded = CountedVersions(numbers=numbers, patience_s=float(configuration.number("unregister_model_timeout", 120)))
    host = DropInHost(loaded, record, configuration, files, numbers)
    snapshots = Snapshots(_logs() / "config", configuration.kept) if configuration.snapshots else None
    models = DropInModels(host, configuration, profile, DeployedArchives(configuration, folder / "archives"), snapshots)
    memory.give_back_blocks(LARGE_BLOCK_BYTES)
    try:
        async with AsyncExitStack() as open_:
            took = _took(files, numbers)
            backend = CountedBackend(loaded, record, profile.max_request_bytes, lambda: live_models(models, record))
            backend.numbers = numbers
            gateway = await open_.enter_async_context(_front(configuration, profile, backend, models, tokens, took))
            if not configuration.one_port:
                await open_.enter_async_context(management(configuration, gateway, models, tokens, took))
            certificate = configuration.certificate if configuration.flag("enable_grpc_ssl") else None
            opened = {
                "inference_host": configuration.grpc_host("inference"),
                "management_host": configuration.grpc_host("management"),
                "changeable": configuration.flag("enable_model_api"),
                "certificate": CertificateFiles(*certificate) if certificate else None,
                "sequences": host.sequence_headers,
                "told": grpc_line(files),
            }
            await open_.enter_async_context(grpc_services(gateway, models, loaded, tokens, record.ports, **opened))
            if configuration.flag("enable_metrics_api", default=True):
                await open_.enter_async_context(metrics(configuration, gateway, numbers, took))
            tokens.write()  # not before: another server, which has these ports, may have its own there
            if await supervisor.done_before(ended, asyncio.to_thread(models.load)):
                measuring = asyncio.create_task(_measure(configuration, numbers))
                memory.leave_alone_what_is_there()
                files.print(LAST_LINE)
                await ended.wait()
                measuring.cancel()
                await asyncio.to_thread(models.save, "shutdown")
    finally:
        await asyncio.to_thread(host.close)
        tokens.remove()


@asynccontextmanager
async def _front(
    configuration: Configuration,
    profile: Profile,
    backend: CountedBackend,
    models: DropInModels,
    tokens: Tokens,
    took: Took,
) -> AsyncIterator[Gateway]:
    """Within, predictions are answered."""
    options = GatewayOptions(
        timeout_s=float(profile.response_timeout_s),
        model_wait_s=backend.loaded.full_queue_s,
        queued=profile.job_queue_size,
        to_model=to_model,
        to_client=to_client,
        error_of=error_of,
    )
    gateway = Gateway(backend, options)
    plain, forward = build_app(gateway), DropInForward(gateway)
    forward.versions = backend.loaded
    app = DropInEntrance(plain.app, forward, plain.checks)
    app.checks.append(partial(check_token, tokens))
    app.versions, app.cors = backend.loaded, bool(cors_headers(configuration))
    if configuration.one_port:
        app.shared = OnePort(configuration, models, tokens, partial(metrics_text, gateway, backend.numbers))
    app.names = names_of(bool(configuration.text("service_envelope")), backend.loaded)

    def told(scope: Scope, status: int, began: float) -> None:
        query = scope.get(QUERY, scope["query_string"]).decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        host, port = scope["client"] or ("", 0)
        took(f"{host}:{port}", scope["method"], target, status, began)

    app.took = told
    address = configuration.address("inference")
    async with listening(app, gateway, (address.host, address.port), access_to(configuration, address)):
        log.info("Inference API bind to: %s", address.url)
        yield gateway


def _took(files: LogFiles, numbers: ServerNumbers) -> Took:
    """What is told of every answer: client, method, target, status, and when it began on time.monotonic's clock."""

    def took(client: str, method: str, target: str, status: int, began: float) -> None:
        numbers.answered(status)
        ms = int((time.monotonic() - began) * 1000)
        files.access(f'/{client} "{method} {printable(target)} HTTP/1.1" {status} {ms}')

    return took


async def _measure(configuration: Configuration, numbers: ServerNumbers) -> None:
    """Measure the machine again and again."""
    every_s = max(1, configuration.number("metric_time_interval", 60))
    while not configuration.flag("disable_system_metrics"):
        await asyncio.to_thread(numbers.measure_machine)
        await asyncio.sleep(every_s)


def _minutes(configuration: Configuration) -> float:
    text = configuration.text("token_expiration_min", "60")
    try:
        return max(0.01, min(int(float(text) * 100) / 100, MOST_MINUTES))  # int refuses inf and nan
    except (ValueError, OverflowError):
        raise SlotwiseError(f"token_expiration_min is no number: {text:.40}", "correct config.properties") from None


def _logs() -> Path:
    return Path(os.environ.get("LOG_LOCATION", "logs"))


def introduced(configuration: Configuration, arguments: Arguments, folder: Path) -> str:
    """What a server says of itself when it starts, by TorchServe's words."""
    lines = {
        "Torchserve version": f"{TORCHSERVE} (Slotwise {__version__})",
        "Current directory": Path.cwd(),
        "Temp directory": folder.parent,
        "Number of GPUs": configuration.gpus(),
        "Number of CPUs": available_cores(),
        "Python executable": sys.executable,
        "Config file": configuration.source or "N/A",
        "Inference address": configuration.address("inference").url,
        "Management address": configuration.address("management").url,
        "Metrics address": configuration.address("metrics").url,
        "Model Store": configuration.model_store,
        "Initial Models": ",".join(map(shown_word, configuration.text("load_models").split(","))) or "N/A",
        "Log dir": _logs().resolve(),
        "Metrics dir": Path(os.environ.get("METRICS_LOCATION", "logs")).resolve(),
        "Default workers per model": configuration.workers_at_start(),
        "Maximum Request Size": configuration.number("max_request_size", DEFAULT_BODY_BYTES),
        "Allowed Urls": configuration.text("allowed_urls") or "none: archives come from the model store",
        "Metrics mode": configuration.metrics_mode.upper(),
        "Model API enabled": str(configuration.flag("enable_model_api")).lower(),
    }
    said = "\n".join(f"{name}: {value}" for name, value in lines.items())
    ignored = "\n".join([*arguments.remarks(), *remarks(dict(configuration.keys)), *_open_to_all(configuration)])
    return f"\n{said}" + (f"\n{ignored}" if ignored else "")


def _open_to_all(configuration: Configuration) -> list[str]:
    """A line for every API that anybody who reaches this machine may call."""
    if configuration.tokens:
        return []
    said = []
    for api, port in GRPC_PORTS.items():
        address, host = configuration.address(api), configuration.grpc_host(api)
        said += [(address.host, address.url, f"the {api} API")]
        said += [(host, with_port(host, configuration.number(f"grpc_{api}_port", port)), f"the {api} API over gRPC")]
    return [f"whoever reaches {at} may use {api}: tokens are switched off" for host, at, api in said if host not in LOOPBACKS]


def main(words: list[str]) -> int:
    """Serve what the command line says; returns the exit code."""
    arguments = parsed(words)
    folder = daemon.own_folder()
    try:
        daemon.remember(folder)
        configuration = configured(arguments)
        files = LogFiles(_logs(), Path(os.environ.get("METRICS_LOCATION", "logs")))
        logging.basicConfig(level=logging.WARNING, handlers=[ToLogFiles(files)], force=True)
        for ours in ("slotwise", "org.pytorch.serve"):
            logging.getLogger(ours).setLevel(logging.DEBUG if ours.startswith("org") else logging.INFO)
        faulthandler.enable()
        replies.shape_errors(torchserve_error)
        log.info("%s", introduced(configuration, arguments, folder))
        asyncio.Runner(loop_factory=loop_factory()).run(serve(configuration, files, folder))  # it would wait for all threads
        files.flush()
        return 0
    except SlotwiseError as error:
        print(f"{error.message} ({error.hint})" if error.hint else error.message, flush=True)
        return 1
    except OSError as error:
        print(f"the server cannot start: {error}", flush=True)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(daemon.pid_file().read_text().splitlines()[0]) == os.getpid():
                daemon.pid_file().unlink()


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # a thread may still wait for a download
