"""Send a call to two deployments, each in the same state, and tell how the answers differ."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from tests.drop_in.calls import NO_WORKERS, Call, manage
from tests.support.answer_shapes import covers, shape
from tests.support.deployments import Deployment

SAME = {"management": "management", "inference": "inference", "metrics": "management"}


@dataclass(frozen=True)
class Side:
    """One deployment, whose state every call begins with: echo, headers and errors 1.0 with a worker each."""

    deployment: Deployment

    def ask(self, call: Call) -> httpx.Response:
        """One call."""
        kind = SAME[call.api] if call.token == "same" else call.token
        headers = dict(call.headers)
        if kind == "wrong":
            headers["authorization"] = "Bearer wrong"
        elif kind:
            headers |= self.deployment.headers(kind)
        url = getattr(self.deployment, call.api) + call.path
        return self.deployment.asked(call.method, url, params=call.params or None, headers=headers, content=call.body)

    def prepare(self, call: Call) -> None:
        """Make the state that a call needs."""
        for one in call.before:
            self.ask(one)

    def restore(self, call: Call, answer: httpx.Response) -> None:
        """Take back what a call may have changed; one that was refused changes nothing, but that it may have registered."""
        refused = answer.status_code >= 400 and call.method != "POST"
        if call.api != "management" or ((call.method == "GET" or refused) and not call.before):
            return
        if call.method == "DELETE":
            self.ask(manage("POST", "/models", url="echo.mar", **NO_WORKERS))
        if "echo-2" in str(call):
            self.ask(manage("PUT", "/models/echo/1.0/set-default"))
            self.ask(manage("DELETE", "/models/echo/2.0"))
        there = {one["modelName"] for one in self.ask(manage("GET", "/models")).json()["models"]}
        for name in there - {"echo", "headers", "errors"}:
            self.ask(manage("DELETE", f"/models/{name}"))
        self.ask(manage("PUT", "/models/echo", min_worker="1", max_worker="1", synchronous="true"))


def differences(call: Call, theirs: Side, ours: Side, both: ThreadPoolExecutor) -> str:
    """How our answer to a call differs from TorchServe's; "" where it does not. both: asks the two at once."""

    def answer(side: Side) -> httpx.Response:
        side.prepare(call)
        answered = side.ask(call)
        side.restore(call, answered)
        return answered

    their, our = (described(answered, call) for answered in both.map(answer, (theirs, ours)))
    if their[0] == our[0] and (their[1:] == our[1:] or _says_more(their[1], our[1], their[0], call)):
        return ""
    return f"{_short(their)}, ours {_short(our)}"


def described(answer: httpx.Response, call: Call) -> tuple[Any, ...]:
    """What is compared of an answer."""
    try:
        content: Any = answer.json()
    except ValueError:
        content = answer.text
    if call.compared == "status":
        return (answer.status_code, None)
    if answer.status_code >= 400:
        named = content if isinstance(content, dict) else {"text": content}
        return (answer.status_code, {key: named.get(key) for key in ("code", "type", "message")})
    if call.compared == "shape":
        return (answer.status_code, _shape_of(content))
    headers = {name: answer.headers.get(name) for name in ("content-type", "content-language", "x-made-by")}
    return (answer.status_code, content, headers)


def _shape_of(content: Any) -> Any:
    """The shape; what a handler says of itself stays as it is."""
    shaped = shape(content)
    if isinstance(content, list) and content and "customizedMetadata" in content[0]:
        shaped[0]["customizedMetadata"] = content[0]["customizedMetadata"]
    return shaped


def _says_more(theirs: Any, ours: Any, status: int, call: Call) -> bool:
    """Whether ours says what theirs says, and more: of a model, or why something failed."""
    if status < 400:
        return call.compared == "shape" and covers(theirs, ours)
    message, said = theirs.get("message"), ours.get("message")
    return {**theirs, "message": ""} == {**ours, "message": ""} and bool(message and said and said.startswith(message))


def _short(answer: tuple[Any, ...]) -> str:
    return f"{answer[0]} {json.dumps(answer[1:], default=str)[:240]}"
