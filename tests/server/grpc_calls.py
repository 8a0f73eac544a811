"""Calls of TorchServe's gRPC, in an order in which each finds the same state there and on our own host; and how the two differ.

`faults` 1.0 and 2.0 and `spare` are in the model store; nothing is registered at first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from tests.support.answer_shapes import covers, shape
from tests.support.torchserve_client import Outcome, TorchServeClient

# Why a call may end otherwise here: each of these stands in docs/host-apis.md.
LIST = "nobody asks for a list of none"
LAST = "there is no further page"
EMPTY = "TorchServe fails without a word"
STORE = "archives come from the model store"
WORKERS = "our profile's number of workers; TorchServe's default is none"
NUMBER = "what is no number that can be is refused"
SLOT = "an error of a request is not OK"
NO_WORKER = "a client may try again later"
STREAM = "TorchServe's worker dies of it"
LARGE = "the limit has a code that says so"
CUSTOMIZED = "handlers are not asked what they are"
WORDS = "grpcio's own words"
MORE = "a description says more"
REASONS = (LIST, LAST, EMPTY, STORE, WORKERS, NUMBER, SLOT, NO_WORKER, STREAM, LARGE, CUSTOMIZED, WORDS)


@dataclass(frozen=True)
class GrpcCall:
    """One call. token: as `ask` takes it, or a kind of token that is not the right one. own: why ours may end otherwise.

    code: how ours has to end where it ends otherwise.
    """

    method: str
    fields: dict[str, Any] = field(default_factory=dict)
    token: str | None = None
    message: bytes | None = None
    own: str = ""
    code: str = "OK"

    def __str__(self) -> str:
        fields = ", ".join(f"{name}={value!r:.40}" for name, value in self.fields.items())
        return f"{self.method}({fields})" + ("" if self.token is None else f" with {self.token!r}")


def call(method: str, own: str = "", code: str = "OK", **fields: Any) -> GrpcCall:
    """A call with the right token."""
    return GrpcCall(method, fields, own=own, code=code)


def predict(own: str = "", code: str = "OK", model: str = "spare", version: str = "", **inputs: bytes) -> GrpcCall:
    """A prediction for these inputs."""
    fields = {"model_name": model, "input": inputs} | ({"model_version": version} if version else {})
    return GrpcCall("Predictions", fields, own=own, code=code)


FAULTS = {"model_name": "faults"}
STRAY = b"\xff\xff\xff"  # no message
CALLS = (
    # who is let in
    call("Ping"),
    GrpcCall("Ping", token=""),
    GrpcCall("Ping", token="guessed"),
    GrpcCall("Predictions", {"model_name": "spare"}, token=""),
    GrpcCall("Predictions", {"model_name": "spare"}, token="guessed"),
    GrpcCall("Predictions", {"model_name": "spare"}, token="management"),
    GrpcCall("StreamPredictions", {"model_name": "spare"}, token=""),
    GrpcCall("ListModels", token=""),
    GrpcCall("ListModels", token="guessed"),
    GrpcCall("ListModels", token="inference"),
    *(GrpcCall(f"{name}Model", token="") for name in ("Describe", "Register", "Unregister")),
    *(GrpcCall(name, token="") for name in ("ScaleWorker", "SetDefault")),
    # register
    call("RegisterModel"),
    call("RegisterModel", url="gone.mar"),
    call("RegisterModel", url="../faults.mar"),
    call("RegisterModel", STORE, "NOT_FOUND", url="http://127.0.0.1:9/m.mar"),
    call("RegisterModel", STORE, "NOT_FOUND", url="file:///etc/passwd"),
    call("RegisterModel", url="spare.mar", runtime="python4"),
    call("RegisterModel", NUMBER, "INVALID_ARGUMENT", url="faults.mar", model_name="negative", batch_size=-1),
    call("UnregisterModel", NUMBER, "NOT_FOUND", model_name="negative"),
    call("RegisterModel", url="faults.mar", initial_workers=1, synchronous=True),
    call("RegisterModel", EMPTY, "ABORTED", url="faults.mar", initial_workers=1),
    call("RegisterModel", WORKERS, url="faults-2.0.mar"),
    call("RegisterModel", url="spare.mar", initial_workers=1, synchronous=True, batch_size=4, max_batch_delay=20),
    # scale
    call("ScaleWorker", **FAULTS, model_version="2.0", min_worker=1, synchronous=True),
    call("ScaleWorker", **FAULTS, min_worker=2, synchronous=True),
    call("ScaleWorker", **FAULTS, model_version="1.0", min_worker=1, max_worker=1, synchronous=True),
    call("ScaleWorker", **FAULTS, min_worker=1),
    call("ScaleWorker", **FAULTS),
    call("ScaleWorker", NUMBER, "INVALID_ARGUMENT", **FAULTS, min_worker=-1),
    call("ScaleWorker", **FAULTS, min_worker=3, max_worker=1),
    call("ScaleWorker", model_name="nobody", min_worker=2),
    call("ScaleWorker", **FAULTS, model_version="9", min_worker=2),
    call("ScaleWorker", EMPTY, "NOT_FOUND", min_worker=1),
    # describe and list
    call("DescribeModel", **FAULTS),
    call("DescribeModel", **FAULTS, model_version="2.0"),
    call("DescribeModel", **FAULTS, model_version="all"),
    call("DescribeModel", CUSTOMIZED, **FAULTS, customized=True),
    call("DescribeModel", model_name="nobody"),
    call("DescribeModel", **FAULTS, model_version="9.9"),
    call("DescribeModel"),
    call("ListModels", LIST),
    call("ListModels", limit=1),
    call("ListModels", LAST, limit=1, next_page_token=1),
    call("ListModels", limit=100),
    GrpcCall("ListModels", message=STRAY, own=EMPTY, code="INVALID_ARGUMENT"),
    GrpcCall("RegisterModel", message=STRAY, own=EMPTY, code="INVALID_ARGUMENT"),
    # predictions
    predict(data=b"4"),
    predict(version="1.0", data=b"4"),
    predict(body=b"5"),
    predict(anything=b"6"),
    predict(model="faults", version="2.0", data=b"7"),
    predict(SLOT, "INVALID_ARGUMENT", one=b"6", other=b"7"),
    predict(SLOT, "INVALID_ARGUMENT"),
    predict(SLOT, "INVALID_ARGUMENT", data=b"word"),
    predict(SLOT, "INTERNAL", data=b"raise"),
    predict(SLOT, "INTERNAL", data=b"silent"),
    call("Predictions", input={"data": b"4"}),
    predict(model="nobody", data=b"4"),
    predict(version="9", data=b"4"),
    GrpcCall("Predictions", message=STRAY, own=EMPTY, code="INVALID_ARGUMENT"),
    call("StreamPredictions", model_name="nobody", input={"data": b"4"}),
    call("StreamPredictions2", model_name="spare", input={"data": b"4"}),
    predict(LARGE, "RESOURCE_EXHAUSTED", data=b"x" * 2**25),
    # versions and the end
    call("SetDefault", **FAULTS, model_version="9"),
    call("SetDefault", model_name="nobody", model_version="1.0"),
    call("SetDefault", **FAULTS),
    call("SetDefault", **FAULTS, model_version="2.0"),
    call("DescribeModel", **FAULTS),
    call("UnregisterModel"),
    call("UnregisterModel", model_name="nobody"),
    call("UnregisterModel", **FAULTS, model_version="9"),
    call("UnregisterModel", EMPTY, "PERMISSION_DENIED", **FAULTS, model_version="2.0"),
    call("UnregisterModel", **FAULTS, model_version="1.0"),
    call("UnregisterModel", **FAULTS),
    call("StreamPredictions", STREAM, model_name="spare", input={"data": b"4"}),
    call("UnregisterModel", model_name="spare", model_version="1.0"),
    call("ListModels", limit=100),
    GrpcCall("ListModel", message=b"", own=WORDS, code="UNIMPLEMENTED"),
    call("Ping"),
)


def unexpected(theirs: TorchServeClient, ours: TorchServeClient, moot: Collection[str] = ()) -> list[str]:
    """The calls that end otherwise than on TorchServe without a reason, or as there in spite of one.

    moot: reasons that do not hold for this host of ours, so that it has to answer as TorchServe does.
    """
    wrong = []
    for each in CALLS:
        their, our = [_asked(client, each) for client in (theirs, ours)]
        same = (their.code, their.details) == (our.code, our.details) and _says_as_much(their, our)
        own = each.own not in moot and each.own
        if (same and own) or (not same and not (own and our.code == each.code)):
            wrong.append(f"{each}: {their} there, {our} here")
        if our.code != "OK":
            assert our.details
            assert "secret" not in our.details
            assert str(ours.folder) not in our.details
    return wrong


def _asked(client: TorchServeClient, each: GrpcCall) -> Outcome:
    token = client.token(each.token) if each.token in ("inference", "management") else each.token
    return client.ask(each.method, each.message, token, **each.fields)


def _says_as_much(their: Outcome, our: Outcome) -> bool:
    if their.code != "OK":
        return True
    there, here = their.value, our.value
    return bool(there == here) if isinstance(there, str) or "answer" in there else covers(shape(there), shape(here))
