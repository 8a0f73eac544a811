"""Why some calls are answered otherwise than by TorchServe. docs/torchserve-differences.md has the same table."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.server import grpc_calls


class Reason(NamedTuple):
    """One reason. pattern: of the calls that it holds for, by their text. refused: for security."""

    pattern: str
    calls: str
    theirs: str
    ours: str
    why: str
    refused: bool = False


REASONS = (
    Reason(
        r"inference POST /predictions/errors \[(text/plain, )?(boom|short)\]",
        "a prediction whose handler raises, or gives too few answers",
        "503 for every request of the batch",
        "500 for this one (400 where its input is bad), the others' answers",
        "the guard finds out whose fault it was",
    ),
    Reason(r"inference GET /ping \[x\] \(", "`GET /ping` without a token", "400", "200", "probes have no tokens"),
    Reason(
        r"inference POST /predictions/a b", "a model's name that none can have", "404, the name", "404", "it is not repeated"
    ),
    Reason(r"inference GET /models$", "`GET /models` on the inference port", "404", "200", "what models take, for the page"),
    Reason(r"management GET /ping$", "`GET /ping` on the management port", "404", "200", "that it runs"),
    Reason(
        r"management POST .*(batch_size|response_timeout|max_batch_delay)=(0|-1|x|1\.5)&"
        r"|management .*(initial_workers|min_worker|limit|next_page_token)=x"
        r"|management PUT .*min_worker=-1|management POST .*initial_workers=-1",
        "`batch_size=0`, `min_worker=-1`, `limit=x` and the like",
        "takes another number in silence, or 500",
        "400",
        "nobody meant that",
    ),
    Reason(
        r"management GET /models\?limit=",
        "the page behind the last one",
        "empty, and announced",
        "not announced",
        "it is empty",
    ),
    Reason(
        r"management POST .*url=junk\.mar",
        "an archive that is no zip",
        "400: it has no name; with one it is registered, and its workers fail",
        "400, with what is wrong",
        "it could never answer",
    ),
    Reason(
        r"management POST .*url=file:",
        "`url=file:...`",
        "500: it cannot copy the file, or copies it",
        "404",
        "archives come from the model store",
        refused=True,
    ),
    Reason(
        r"management POST .*url=http:",
        "`url=http://...` without `allowed_urls`",
        "downloads it",
        "404, by TorchServe's words",
        "only what `allowed_urls` names",
        refused=True,
    ),
)


BY_GRPC = {  # what differs by gRPC alone: why, in the words of tests/server/grpc_calls.py, and the row
    grpc_calls.SLOT: ("a prediction that the handler answers with 400 or more", "`OK`, the error as its answer", "its code"),
    grpc_calls.NO_WORKER: ("a prediction without a worker", "`INTERNAL`", "`UNAVAILABLE`"),
    grpc_calls.STREAM: ("`StreamPredictions` where the handler sends none", "`INTERNAL`", "`OK` with one message"),
    grpc_calls.LARGE: ("a message over the limit", "the connection is reset", "`RESOURCE_EXHAUSTED`"),
    grpc_calls.EMPTY: ("what is no message, or can be done only once", "`UNKNOWN`, no words", "a code, and HTTP's words"),
    grpc_calls.LIST: ("`ListModels` without `limit`", "an empty list", "100 models"),
    grpc_calls.WORDS: ("an unknown method", "`UNIMPLEMENTED`", "`UNIMPLEMENTED`"),
}
AS_BY_HTTP = {grpc_calls.STORE, grpc_calls.NUMBER, grpc_calls.LAST}  # reasons above that hold for gRPC, too
MOOT = {grpc_calls.WORKERS, grpc_calls.CUSTOMIZED}  # where only `slotwise serve` differs


def reason_for(call: str) -> Reason | None:
    """Why this call may be answered otherwise; None where there is no reason."""
    return next((one for one in REASONS if re.match(one.pattern, call)), None)
