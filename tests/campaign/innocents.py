"""Sixteen clients that ask well, in a process of their own, so that what is measured is not this side's own hurry.

python -m tests.campaign.innocents        the place as JSON on stdin, what became of them as JSON on stdout
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
import grpc
import grpc.aio

from slotwise.frontend.grpc.open_inference_messages import CLASSES, SERVICE
from slotwise.host.torchserve_grpc.torchserve_messages import INFERENCE, INFERENCE_SERVICE, MANAGEMENT, MANAGEMENT_SERVICE

HERE = "127.0.0.1"
TIMEOUT_S = 65.0  # the gateway's deadline and 5 s
PAUSE_S = 0.05  # between an answer and the next request
READY_EVERY_S = 0.5
RECORDS = 8
MOST_LISTED = 5
KINDS = ("plain",) * 12 + ("v1",) * 2 + ("grpc",) * 2  # of the clients; each has a key of its own


@dataclass
class Innocents:
    """What became of their requests. waits_s: of those that were answered rightly. unready: answers of /ready but 200."""

    waits_s: list[float] = field(default_factory=list)
    lost: int = 0
    refused: int = 0
    wrong: int = 0
    unready: int = 0
    failures: list[str] = field(default_factory=list)

    def count(self, status: str, right: bool, wait_s: float, what: str) -> None:
        """One answer, or what came in its place."""
        if status == "200" and right:
            self.waits_s.append(wait_s)
            return
        if status == "200":
            self.wrong += 1
        elif status in ("429", "RESOURCE_EXHAUSTED"):
            self.refused += 1
        else:
            self.lost += 1
        if len(self.failures) < MOST_LISTED:
            self.failures.append(f"after {wait_s:.1f} s: {status} {what}"[:200])


def answer_to(number: int) -> dict[str, float]:
    """What the model says to a number."""
    return {"answer": 2.0 * number + 1}


@dataclass(frozen=True)
class Operator:
    """One more client, at the other ports of `slotwise torchserve`. credential: what it shows there."""

    management: str
    metrics: str
    grpc_address: str
    credential: tuple[str, str]


async def ask(
    url: str, grpc_address: str, credentials: list[tuple[str, str]], seconds: float, operator: Operator | None = None
) -> Innocents:
    """All of them, so long; a request that is under way then is waited for.

    credentials: a header and its value for each. operator: where there is one, 7070's gRPC is asked, too; nobody has a key of
    its own there, so each has an address of its own.
    """
    found, numbers, until = Innocents(), itertools.count(1), time.monotonic() + seconds
    over_http, over_grpc = {"plain": _plain, "v1": _v1}, _predictions if operator else _model_infer

    async def client(kind: str, credential: tuple[str, str], address: str) -> None:
        async with _session(url, address) as http, _channel(grpc_address, address) as channel:
            while time.monotonic() < until:
                number, began = next(numbers), time.monotonic()
                if kind == "grpc":
                    asked = over_grpc(channel, credential, number)
                else:
                    asked = over_http[kind](http, dict([credential]), number)
                status, right, what = await _settled(asked)
                found.count(status, right, time.monotonic() - began, f"{kind}: {what}")
                await asyncio.sleep(PAUSE_S)

    async def readiness() -> None:
        async with _session(url, HERE) as http:
            while time.monotonic() < until:
                status, _, _ = await _settled(_ready(http, "/ping" if operator else "/ready"))
                found.unready += status != "200"
                await asyncio.sleep(READY_EVERY_S)

    async def operate(operator: Operator, address: str) -> None:
        async with _session(url, address) as http, _channel(operator.grpc_address, address) as channel:
            while time.monotonic() < until:
                for one in (_described(http, operator), _scraped(http, operator), _listed(channel, operator)):
                    began = time.monotonic()
                    status, right, what = await _settled(one)
                    found.count(status, right, time.monotonic() - began, f"operator: {what}")
                await asyncio.sleep(PAUSE_S)

    *addresses, operators = [f"127.1.0.{number + 1}" if operator else HERE for number in range(len(KINDS) + 1)]
    others = [operate(operator, operators)] if operator else []
    clients = [client(*each) for each in zip(KINDS, credentials, addresses, strict=True)]
    await asyncio.gather(readiness(), *others, *clients)
    return found


def _session(url: str, address: str) -> aiohttp.ClientSession:
    """One that comes from this address."""
    connector = aiohttp.TCPConnector(limit=0, local_addr=(address, 0))
    return aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), connector=connector)


@asynccontextmanager
async def _channel(target: str, address: str) -> AsyncIterator[grpc.aio.Channel]:
    """One that comes from this address: through a relay, because gRPC's library chooses its address itself."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def relayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = target.rsplit(":", 1)
        far_reader, far_writer = await asyncio.open_connection(host, int(port), local_addr=(address, 0))
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    if address == HERE:
        async with grpc.aio.insecure_channel(target) as channel:
            yield channel
        return
    async with (
        await asyncio.start_server(relayed, HERE, 0) as relay,
        grpc.aio.insecure_channel(f"{HERE}:{relay.sockets[0].getsockname()[1]}") as channel,
    ):
        yield channel


Said = tuple[str, bool, str]  # the status, whether the answer is right, and its text


async def _settled(asked: Awaitable[Said]) -> Said:
    """What was said; in words where nothing was."""
    try:
        return await asked
    except TimeoutError:
        return "timeout", False, ""
    except grpc.aio.AioRpcError as error:
        return error.code().name, False, error.details() or ""
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return "connection", False, repr(error)


async def _read(answer: aiohttp.ClientResponse, due: Callable[[Any], bool]) -> Said:
    text = await answer.text()
    return str(answer.status), answer.status == 200 and due(json.loads(text)), text


async def _plain(http: aiohttp.ClientSession, credential: dict[str, str], number: int) -> Said:
    async with http.post("/predictions/killers", data=b"%d" % number, headers=credential) as answer:
        return await _read(answer, lambda said: bool(said == answer_to(number)))


async def _v1(http: aiohttp.ClientSession, credential: dict[str, str], number: int) -> Said:
    instances = [1000 * number + i for i in range(RECORDS)]
    due = {"predictions": [answer_to(one) for one in instances]}
    async with http.post("/v1/models/killers:predict", json={"instances": instances}, headers=credential) as answer:
        return await _read(answer, lambda said: bool(said == due))


async def _ready(http: aiohttp.ClientSession, path: str) -> Said:
    async with http.get(path) as answer:
        return await _read(answer, lambda said: True)


async def _described(http: aiohttp.ClientSession, operator: Operator) -> Said:
    async with http.get(f"{operator.management}/models/killers", headers=dict([operator.credential])) as answer:
        return await _read(answer, lambda said: bool(said[0]["modelName"] == "killers"))


async def _scraped(http: aiohttp.ClientSession, operator: Operator) -> Said:
    async with http.get(f"{operator.metrics}/metrics") as answer:
        text = await answer.text()
        return str(answer.status), "ts_inference_requests_total" in text, text


async def _listed(channel: grpc.aio.Channel, operator: Operator) -> Said:
    message = MANAGEMENT.classes["ListModelsRequest"](limit=10).SerializeToString()
    asked = channel.unary_unary(f"/{MANAGEMENT_SERVICE}/ListModels")
    data = await asked(message, timeout=TIMEOUT_S, metadata=(tuple(operator.credential),))
    text = MANAGEMENT.classes["ManagementResponse"].FromString(data).msg
    return "200", "killers" in text, text


async def _predictions(channel: grpc.aio.Channel, credential: tuple[str, str], number: int) -> Said:
    message = INFERENCE.classes["PredictionsRequest"](model_name="killers", input={"data": b"%d" % number})
    asked = channel.unary_unary(f"/{INFERENCE_SERVICE}/Predictions")
    data = await asked(message.SerializeToString(), timeout=TIMEOUT_S, metadata=(tuple(credential),))
    said = INFERENCE.classes["PredictionResponse"].FromString(data).prediction
    return "200", json.loads(said) == answer_to(number), said.decode()


async def _model_infer(channel: grpc.aio.Channel, credential: tuple[str, str], number: int) -> Said:
    message = CLASSES["ModelInferRequest"](model_name="killers")
    message.inputs.add(name="x", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"%d" % number)
    asked = channel.unary_unary(f"/{SERVICE}/ModelInfer")
    data = await asked(message.SerializeToString(), timeout=TIMEOUT_S, metadata=(tuple(credential),))
    (said,) = next(
        one.contents.bytes_contents for one in CLASSES["ModelInferResponse"].FromString(data).outputs if one.name == "answer"
    )
    return "200", json.loads(said) == answer_to(number), said.decode()


if __name__ == "__main__":
    told = json.load(sys.stdin)
    told["operator"] = Operator(**told["operator"]) if told.get("operator") else None
    json.dump(asdict(asyncio.run(ask(**told))), sys.stdout)
