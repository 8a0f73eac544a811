"""The calls that are sent to a real TorchServe and to ours, and why some are answered otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

Api = Literal["inference", "management", "metrics"]
NO_WORKERS = {"initial_workers": "0"}


@dataclass(frozen=True)
class Call:
    """One call. before: calls that make the state it needs. token: of key_file.json, "" for none, another text for a wrong one.

    compared: exactly (status, type, message, body), or the shape of a success only, or its status.
    """

    api: Api
    method: str
    path: str
    params: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    before: tuple[Call, ...] = ()
    token: str = "same"
    compared: Literal["exactly", "shape", "status"] = "exactly"

    def __str__(self) -> str:
        query = "&".join(f"{key}={value}" for key, value in self.params.items())
        body = self.body.decode() if self.body.isalnum() else f"{len(self.body)} bytes" if self.body else ""
        about = ", ".join([*self.headers.values(), *([body] if body else [])])
        token = "" if self.token == "same" else f" ({self.token or 'no'} token)"
        after = f" after {', '.join(map(str, self.before))}" if self.before else ""
        target = self.path + ("?" if query else "") + query
        return f"{self.api} {self.method} {target}{f' [{about}]' if about else ''}{token}{after}"


def manage(method: str, path: str, *before: Call, **params: str) -> Call:
    """A call of the management API."""
    return Call("management", method, path, params, before=before, compared="shape")


SPARE = manage("POST", "/models", url="spare.mar", **NO_WORKERS)
SECOND = manage("POST", "/models", url="echo-2.mar", model_name="echo", **NO_WORKERS)
BODIES = {
    "": b"raw \xff bytes",
    "text/plain": b"some text",
    "application/json": b'{"a": [1, 2.5, null], "b": "\xc3\xa9"}',
    "application/json; charset=utf-8": b'{"a": "\xc3\xa9"}',
    "application/octet-stream": bytes(range(256)),
    "application/x-www-form-urlencoded": b"data=one+two&more=3",
}
FORM = b'--edge\r\nContent-Disposition: form-data; name="data"; filename="a.txt"\r\n\r\nfrom a form\r\n--edge--\r\n'


def inference() -> Iterator[Call]:
    """Predictions in every form."""
    paths = ("/predictions/echo", "/predictions/echo/1.0", "/predictions/echo/1.0/a/path", "/models/echo/invoke")
    for path, (kind, body) in itertools.product(paths, BODIES.items()):
        headers = {"content-type": kind} if kind else {}
        for method in ("POST", "PUT") if "invoke" not in path else ("POST",):
            yield Call("inference", method, path, headers=headers, body=body)
    yield Call(
        "inference", "POST", "/predictions/echo", headers={"content-type": "multipart/form-data; boundary=edge"}, body=FORM
    )
    for kind in ("text/plain", "application/json; charset=utf-8"):  # what a file says of itself
        body = FORM.replace(b"\r\n\r\nfrom a form", f"\r\nContent-Type: {kind}\r\n\r\n[1, 2]".encode())
        yield Call("inference", "POST", paths[0], headers={"content-type": "multipart/form-data; boundary=edge"}, body=body)
    for typed in ("data=%C3%A9+b", "data=[1, 2]", "data=a b, \u00e9!&more=c:d"):  # as a browser sends it, and as `curl -d` does
        headers = {"content-type": "application/x-www-form-urlencoded"}
        yield Call("inference", "POST", paths[0], headers=headers, body=typed.encode())
    url_form = {"content-type": "application/x-www-form-urlencoded"}
    for kind, body in (({}, b"raw"), (url_form, b"more=1"), ({"content-type": "multipart/form-data; boundary=edge"}, FORM)):
        yield Call("inference", "POST", paths[0], headers=kind, body=body, params={"data": "by query"})
    for path in paths[:2]:
        for params in ({}, {"data": "by query"}, {"data": "1", "other": "2"}):
            yield Call("inference", "GET", path, params=params)
            yield Call("inference", "DELETE", path, params=params)
    for model in ("nobody", "echo/9.9", "never", "", "a b", "echo/"):
        yield Call("inference", "POST", f"/predictions/{model}", body=b"x")
    for kind, body in (("application/json", b"{broken"), ("text/plain", b"\xff\xfe"), ("application/json", b"")):
        yield Call("inference", "POST", "/predictions/echo", headers={"content-type": kind}, body=body)
    for status in ("200", "201", "400", "404", "418", "500", "503"):
        for color in ("red", "green"):
            yield Call("inference", "POST", "/predictions/headers", headers={"x-status": status, "color": color}, body=b"x")
    for body in (b"fine", b"boom", b"short"):
        yield Call("inference", "POST", "/predictions/errors", headers={"content-type": "text/plain"}, body=body)
        yield Call("inference", "POST", "/predictions/errors", body=body)
    for token in ("", "management", "API", "wrong"):
        for path in ("/predictions/echo", "/predictions/nobody", "/ping", "/models/echo/invoke", "/nothing"):
            yield Call("inference", "POST" if "ping" not in path else "GET", path, body=b"x", token=token)
    yield Call("inference", "POST", "/explanations/echo", body=b"x")
    yield Call("inference", "POST", "/explanations/nobody", body=b"x")
    yield Call(
        "inference", "POST", "/invocations", params={"model_name": "echo"}, headers={"content-type": "text/plain"}, body=b"x"
    )
    yield Call("inference", "POST", "/invocations", params={"model_name": "nobody"}, body=b"x")
    yield Call("inference", "POST", "/invocations", body=b"x")
    for method, path in (
        ("GET", "/ping"),
        ("POST", "/ping"),
        ("GET", "/nothing"),
        ("POST", "/wfpredict/flow"),
        ("GET", "/models"),
    ):
        yield Call("inference", method, path)
    for path in ("/", "/predictions/echo", "/predictions/nobody", "/ping"):
        yield Call("inference", "OPTIONS", path, compared="status")
    for token in ("same", ""):
        yield Call("inference", "GET", "/api-description", token=token, compared="status")
    yield Call("inference", "OPTIONS", "/", token="", compared="status")
    yield Call("inference", "POST", "/predictions/echo", body=bytes(7_000_000), compared="status")


def models() -> Iterator[Call]:
    """Registering, scaling, describing, defaults, unregistering."""
    batched = {"batch_size": "4", "max_batch_delay": "50", "response_timeout": "30", "startup_timeout": "60"}
    register = ("POST", "/models")
    for params in (
        {},
        {"model_name": "another"},
        batched,
        {"handler": "echo", "runtime": "PYTHON"},
        {"runtime": "python4"},
        {"s3_sse_kms": "false"},
        {"response_timeout": "1"},
    ):
        yield manage(*register, url="spare.mar", **params, **NO_WORKERS)
    for key, value in itertools.product(("batch_size", "max_batch_delay", "response_timeout"), ("0", "-1", "x", "1.5")):
        yield manage(*register, url="spare.mar", **{key: value}, **NO_WORKERS)
    for workers, synchronous in (*itertools.product(("1", "2", "x"), ("true", "false")), ("-1", "false")):
        yield manage(*register, url="spare.mar", initial_workers=workers, synchronous=synchronous)
    for url in ("never.mar", "echo.mar", "gone.mar", "junk.mar", "folded", "balled.tar.gz", "", "../echo.mar", "/etc/passwd"):
        yield manage(*register, url=url, initial_workers="1" if url == "never.mar" else "0", synchronous="true")
    yield manage(*register)
    yield manage(*register, url="file:///etc/passwd")
    yield manage(*register, url="http://127.0.0.1:9/m.mar")
    yield manage(*register, url="http://127.0.0.1:9/../m.mar")
    yield manage("POST", "/models", SECOND, url="echo-2.mar", model_name="echo", **NO_WORKERS)
    echo = "/models/echo"
    for params in (
        {"min_worker": "2", "synchronous": "true"},
        {"min_worker": "1", "max_worker": "1", "synchronous": "true"},
        {"min_worker": "1"},
        {"min_worker": "0", "synchronous": "true"},
        {"max_worker": "2", "min_worker": "1", "synchronous": "true"},
        {"min_worker": "3", "max_worker": "1"},
        {"min_worker": "-1"},
        {"max_worker": "-1"},
        {"min_worker": "x"},
        {"synchronous": "true"},
        {},
    ):
        yield manage("PUT", echo, **params)
        yield manage("PUT", f"{echo}/1.0", **params)
    for model in ("nobody", "echo/9.9", "nobody/1.0"):
        yield manage("PUT", f"/models/{model}", min_worker="1")
        yield manage("GET", f"/models/{model}")
        yield manage("DELETE", f"/models/{model}")
    for path in (echo, f"{echo}/1.0", f"{echo}/all", "/models/headers", "/models"):
        yield manage("GET", path)
        yield manage("GET", path, SECOND)
    for model in ("echo", "echo/1.0", "echo/all", "headers", "errors", "nobody", "echo/9.9"):
        yield manage("GET", f"/models/{model}", customized="true")
    yield manage("GET", "/models/spare", SPARE, customized="true")
    for limit, token in itertools.product(("1", "2", "0", "-1", "x"), ("0", "1", "-1", "x")):
        yield manage("GET", "/models", limit=limit, next_page_token=token)
    yield manage("PUT", f"{echo}/2.0/set-default", SECOND)
    yield manage("PUT", f"{echo}/9.9/set-default")
    yield manage("PUT", "/models/nobody/1.0/set-default")
    yield manage("DELETE", "/models/spare", SPARE)
    yield manage("DELETE", "/models/spare/1.0", SPARE)
    yield manage("DELETE", "/models/spare/", SPARE)
    yield manage("DELETE", "/models/nowhere/")
    yield manage("DELETE", f"{echo}/2.0", SECOND)
    yield manage("DELETE", f"{echo}/1.0", SECOND)
    for token in ("", "inference", "API", "wrong"):
        for method, path in (("GET", "/models"), ("POST", "/models"), ("GET", echo), ("DELETE", echo), ("GET", "/nowhere")):
            yield replace(manage(method, path), token=token)
    for kind, token in itertools.product(("inference", "management", "API", ""), ("API", "management", "")):
        yield replace(manage("GET", "/token", type=kind), token=token)
    for method, path in (
        ("OPTIONS", "/"),
        ("OPTIONS", "/models"),
        ("GET", "/api-description"),
        ("PATCH", echo),
        ("GET", "/nowhere"),
    ):
        yield replace(manage(method, path), compared="status" if "nowhere" not in path else "exactly")
    yield replace(manage("GET", "/ping"), compared="exactly")


def metrics() -> Iterator[Call]:
    """The metrics port."""
    for path in ("/metrics", "/nothing", "/ping"):
        yield Call("metrics", "GET", path, compared="status" if path == "/metrics" else "exactly")
        yield Call("metrics", "POST", path, compared="status" if path == "/metrics" else "exactly")
    for token in ("", "wrong", "management"):
        yield Call("metrics", "GET", "/metrics", token=token, compared="status")
    yield Call("metrics", "OPTIONS", "/", compared="status")
    yield Call("metrics", "GET", "/metrics", params={"name[]": "Requests2XX"}, compared="status")


CALLS = (*inference(), *models(), *metrics())
CLOSED = tuple(call for call in CALLS if call.api == "management" or call.token != "same" or call.method == "POST")
