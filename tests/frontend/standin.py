"""A stand-in for a model server: TorchServe's answers and its ways to fail, without Java.

`script` holds what to do with the next requests, one word each, used up from the left; then every request is answered.
    answer     200 with a slot's headers; the body is {"sha256": of the request's body, ...}
    bad        a slot's own 400          fault    a slot's own 500
    late       a slot's own 504: the deadline has passed
    died       500 without a slot: its worker died; dead is 507, where SIGKILL ended it
    taken      the same: a scale-down ended it
    full       503 without a slot
    moved      404: the model has not the version that is named
    drop       close the connection without an answer
    slow       answer after `slow_s`
    hang       never answer, and keep the connection open
With `hang_every` every so many-th request hangs, whatever the script says; each answer takes a random time
between the two of `takes_s`. A body that starts with "killer" ends the worker of whatever batch it is in; there are
batches, of one worker, where `gathers` says how large they are at most.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from slotwise.server.lifecycle import Ports, ServerRecord
from tests.support.records import server_record

SLOT = {"x-batch-size": "4", "x-batch-slot": "1", "x-decode-ms": "1.50", "x-inference-ms": "2.50"}
DEAD = {"code": 507, "type": "InternalServerException", "message": "Worker died."}
FULL = {"code": 503, "type": "ServiceUnavailableException", "message": "no worker to serve inference request."}
MOVED = {
    "code": 404,
    "type": "ModelVersionNotFoundException",
    "message": "Model version: 1.0 does not exist for model: digits",
}
NO_NAME = {"code": 500, "type": "InternalServerException", "message": "java.lang.IllegalArgumentException: empty name"}
NO_TOKEN = {"code": 400, "type": "InvalidKeyException", "message": "Token Authorization failed."}


@dataclass
class Seen:
    """A request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    after: int = 0  # so many predictions were answered before it came


@dataclass
class StandIn:
    """One stand-in server. `name` is part of every answer, so that a test sees who gave it."""

    name: str = "a"
    models: dict[str, int] = field(default_factory=lambda: {"digits": 1})  # and how many READY workers each has
    batch_size: int = 4
    script: deque[str] = field(default_factory=deque)
    slow_s: float = 0.2
    takes_s: tuple[float, float] = (0.0, 0.0)
    hang_every: int = 0
    token: str = "token"
    seen: list[Seen] = field(default_factory=list)
    answered: int = 0
    gate: asyncio.Event | None = None  # while set and not open, every prediction waits
    scores: bool = True  # where it answers as the models would, every score to who asks for them
    likely: bool = False  # answer as the models would: labels, captions, translations, a 400 for what is no picture
    port: int = 0
    renewals: int = 0
    vanishing: str = ""  # a model that is unregistered as soon as it was listed
    gathers: int = 1
    batches: list[list[bytes]] = field(default_factory=list)
    deaths: Counter[bytes] = field(default_factory=Counter)  # of workers, by the body
    loads_s: float = 0.0  # from a registration until the model's workers are READY; until then it answers 503
    loading: set[str] = field(default_factory=set)
    archives: dict[str, str] = field(default_factory=dict)  # that models were registered from
    broken: set[str] = field(default_factory=set)  # archives that cannot be registered
    stateful: set[str] = field(default_factory=set)  # models whose requests belong to sequences
    others: dict[str, str] = field(default_factory=dict)  # further versions of each model, and their archives

    async def __aenter__(self) -> StandIn:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, backlog=1000)
        self.port = self._server.sockets[0].getsockname()[1]
        self._queue: asyncio.Queue[tuple[bytes, asyncio.Future[bool]]] = asyncio.Queue()
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Refuse connections from now on, and cut those that are open."""
        self._server.close()
        self._worker.cancel()
        for writer in list(self._writers):
            writer.transport.abort()

    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def record(self, folder: Path) -> ServerRecord:
        """The record that a gateway in front of it reads."""
        ports = Ports(self.port, self.port, self.port)
        self._key_file = folder / "key_file.json"
        self.write_keys()
        return server_record(folder, pid=self.port, ports=ports, run_id=f"run-{self.name}")

    def write_keys(self, ends: str = "9999-01-01T00:00:00+00:00") -> None:
        """The file of tokens; the one for inference ends then."""
        inference = {"key": self.token, "expiration time": ends}
        self._key_file.write_text(json.dumps({"inference": inference, "management": {"key": "m"}, "API": {"key": "api"}}))

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ", 2)
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                answer = await self._answer(Seen(method, target, headers, body, self.answered))
                self.answered += method != "GET"
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, seen: Seen) -> bytes | None:
        if seen.method == "GET":
            return self._management(seen.target)
        if seen.target.startswith("/models"):
            return self._changed(seen)
        self.seen.append(seen)
        if seen.headers.get("authorization") != f"Bearer {self.token}":
            return _http(400, NO_TOKEN, {})
        action = self.script.popleft() if self.script else "answer"
        if self.gate is not None:
            await self.gate.wait()
        if action == "hang" or (self.hang_every and len(self.seen) % self.hang_every == 0):
            await asyncio.Event().wait()
        if self.takes_s[1] and self.gathers == 1:
            await asyncio.sleep(random.uniform(*self.takes_s))
        if action == "slow":
            await asyncio.sleep(self.slow_s)
        if action == "drop":
            return None
        model = seen.target.split("?")[0].split("/")[2]
        if model not in self.models:
            return _http(404, {"code": 404, "type": "ModelNotFoundException", "message": f"Model not found: {model}"}, {})
        if model in self.loading:
            action = "full"
        if action == "taken":
            self.models[model] -= 1
            action = "died"
        if action == "answer" and not await self._survives(seen.body):
            action = "died"
        failing = {
            "died": (500, {**DEAD, "code": 500}, {}),
            "dead": (507, DEAD, {}),
            "full": (503, FULL, {}),
            "moved": (404, MOVED, {}),
            "bad": (400, _error(400), SLOT),
            "fault": (500, _error(500), SLOT),
            "late": (504, {"error": {"code": 504, "message": "the deadline had passed when the request was read"}}, SLOT),
            "form": (500, NO_NAME, {}),
        }
        if action in failing:
            return _http(*failing[action])
        if self.likely:
            return _http(*_likely(model, seen.body, seen.headers.get("x-scores") == "all" and self.scores))
        given = {**SLOT, **{name: value for name, value in seen.headers.items() if name == "ts_request_sequence_id"}}
        sha256 = hashlib.sha256(seen.body).hexdigest()
        return _http(200, {"label": "7", "probabilities": {"7": 0.98, "1": 0.02}, "server": self.name, "sha256": sha256}, given)

    async def _work(self) -> None:
        """Take batches from the queue, as a worker does; say of each whether it survived."""
        while True:
            batch = [await self._queue.get()]
            if self.gathers > 1:
                await asyncio.sleep(0.002)
            while len(batch) < self.gathers and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            self.batches.append([body for body, _ in batch])
            killers = [body for body, _ in batch if body.startswith(b"killer")]
            self.deaths.update(killers)
            await asyncio.sleep(random.uniform(*self.takes_s) if self.gathers > 1 else 0)
            for _, survived in batch:
                if not survived.done():
                    survived.set_result(not killers)

    async def _survives(self, body: bytes) -> bool:
        survived: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((body, survived))
        return await survived

    def _changed(self, seen: Seen) -> bytes:
        """Register, unregister or scale a model."""
        path = urlsplit(seen.target)
        given = {key: values[0] for key, values in parse_qs(path.query).items()}
        name = given.get("model_name") or unquote(path.path.rpartition("/")[2])
        if seen.method == "POST" and (given["url"] in self.broken or name in self.models):
            return _http(
                400, {"code": 400, "type": "BadRequestException", "message": f"{given['url']} cannot be registered"}, {}
            )
        if seen.method == "POST":
            self.models[name], self.archives[name] = int(given["initial_workers"]), given["url"]
            self.loading.add(name)
            asyncio.get_running_loop().call_later(self.loads_s, self.loading.discard, name)
        elif name not in self.models:
            return _http(404, {"code": 404, "type": "ModelNotFoundException", "message": f"Model not found: {name}"}, {})
        elif seen.method == "DELETE":
            del self.models[name]
        else:
            self.models[name] = int(given["min_worker"])
        return _http(200, {}, {})

    def _management(self, target: str) -> bytes:
        path = target.split("?")[0]
        if path == "/models":
            listed = [{"modelName": name, "modelUrl": self._archive(name)} for name in self.models]
            self.models.pop(self.vanishing, None)
            return _http(200, {"models": listed}, {})
        name = unquote(path.split("/")[2]) if path.startswith("/models/") else path.rsplit("/", 1)[1]
        if name == "token":
            self.renewals += 1
            self.token = f"renewed-{self.renewals}"
            self.write_keys()
            return _http(200, {}, {})
        if name == "metrics":
            return _http(200, {}, {})
        if name not in self.models:
            return _http(404, {"code": 404, "type": "ModelNotFoundException", "message": f"Model not found: {name}"}, {})
        status = "UNLOADING" if name in self.loading else "READY"
        workers = [{"id": str(i), "pid": os.getpid(), "status": status, "memoryUsage": 1} for i in range(self.models[name])]
        described = {
            "modelName": name,
            "modelVersion": "1.0",
            "modelUrl": self._archive(name),
            "batchSize": self.batch_size,
            "maxBatchDelay": 10,
            "minWorkers": self.models[name],
            "stateful": name in self.stateful,
            "workers": workers or [{"id": "0", "pid": 0, "status": "UNLOADING"}],
        }
        others = [{**described, "modelVersion": version, "modelUrl": archive} for version, archive in self.others.items()]
        return _http(200, [*others, described] if path.endswith("/all") else [described], {})

    def _archive(self, name: str) -> str:
        return self.archives.get(name, f"{name}.mar")


def _likely(model: str, body: bytes, in_full: bool = False) -> tuple[int, Any, dict[str, str]]:
    if model == "translation":
        records = json.loads(body)["payload"]["records"]
        refused = {"code": 413, "message": "the text is longer than 20 characters"}
        return 200, {"result": [_translated(record, refused) for record in records]}, SLOT
    if body.startswith(b'{"b64"'):
        body = base64.b64decode(json.loads(body)["b64"])
    if len(body) < 100 or not body.startswith((b"\x89PNG", b"\xff\xd8")):
        return 400, {"error": {"code": 400, "message": "the body is not a picture"}}, SLOT
    if model == "captions":
        return 200, {"caption": "a red circle"}, SLOT
    answer = {"label": "7", "probabilities": {"7": 0.95, "1": 0.04, "9": 0.01}}
    return 200, {"answer": answer, "scores": [0.04, 0.95, 0.01], "outputs": [-1, 2.5, -3.0]} if in_full else answer, SLOT


def _translated(record: dict[str, str], refused: dict[str, Any]) -> dict[str, Any]:
    answer = {"error": refused} if len(record["text"]) > 20 else {"text": record["text"].upper()}
    return {"id": record["id"], **answer}


def _error(code: int) -> dict[str, Any]:
    return {"error": {"code": code, "message": "this slot's own error"}}


def _http(status: int, found: Any, headers: dict[str, str]) -> bytes:
    body = json.dumps(found).encode()
    lines = [f"HTTP/1.1 {status} Whatever", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


async def _forever(port: int) -> None:
    async with StandIn(port=port, models={"digits": 1, "translation": 1, "captions": 1}):
        await asyncio.Event().wait()


if __name__ == "__main__":
    import sys

    asyncio.run(_forever(int(sys.argv[1])))
