"""TorchServe's documented management API as calls, and what of it `slotwise serve` answers otherwise on purpose.

Source: TorchServe's documentation, "Management API" and "TorchServe token authorization".
"""

from __future__ import annotations

from dataclasses import dataclass, field

STORE = "{store}"  # in a parameter: the model store's folder
NO_WORKERS = {"initial_workers": "0"}


@dataclass(frozen=True)
class Call:
    """One call. before: calls that make the state it needs. otherwise: why ours may answer differently; "" for never.

    own: why our own host may.
    """

    method: str
    path: str
    params: dict[str, str] = field(default_factory=dict)
    before: tuple[Call, ...] = ()
    otherwise: str = ""
    own: str = ""
    token: str = "management"

    def __str__(self) -> str:
        query = "&".join(f"{key}={value}" for key, value in self.params.items())
        return f"{self.method} {self.path}{'?' if query else ''}{query}"


def register(own: str = "", **params: str) -> Call:
    """POST /models with these parameters."""
    return Call("POST", "/models", params, own=own)


SPARE = register(url="spare.mar", **NO_WORKERS)
SECOND = register(url="faults-2.0.mar", **NO_WORKERS)
BATCHED = {"batch_size": "4", "max_batch_delay": "50", "response_timeout": "30", "startup_timeout": "60"}
NUMBER = "what is no number, or none that can be, is refused; TorchServe takes another one in silence"
DESCRIPTION = "the description is of the calls that there are"
ONLY_STORE = "allowed_urls: an archive comes from the model store and from nowhere else"
CALLS = (
    # register
    SPARE,
    register(url="spare.mar", model_name="another", **NO_WORKERS),
    register(url="spare.mar", **BATCHED, **NO_WORKERS),
    register(url="spare.mar", handler="spare_handler", runtime="PYTHON", **NO_WORKERS),
    register(url="spare.mar", initial_workers="1", synchronous="true"),
    register(url="spare.mar", initial_workers="1", synchronous="false"),
    register(NUMBER, url="spare.mar", batch_size="0", **NO_WORKERS),
    register(NUMBER, url="spare.mar", batch_size="-1", **NO_WORKERS),
    register(NUMBER, url="spare.mar", batch_size="x", **NO_WORKERS),
    register(url="spare.mar", s3_sse_kms="false", **NO_WORKERS),
    register(url="faults.mar", **NO_WORKERS),
    register(url="gone.mar"),
    register(url="../faults.mar"),
    register(),
    Call("POST", "/models", {"url": f"file://{STORE}/spare.mar", **NO_WORKERS}, own="TorchServe answers 500: it has the file"),
    Call("POST", "/models", {"url": "file:///etc/passwd"}, otherwise=ONLY_STORE),
    Call("POST", "/models", {"url": "http://127.0.0.1:9/m.mar"}, otherwise=ONLY_STORE),
    # scale
    Call("PUT", "/models/faults", {"min_worker": "2", "synchronous": "true"}),
    Call("PUT", "/models/faults", {"min_worker": "1", "max_worker": "1", "synchronous": "true", "timeout": "60"}),
    Call("PUT", "/models/faults", {"min_worker": "1"}),
    Call("PUT", "/models/faults/1.0", {"min_worker": "1", "synchronous": "true"}),
    Call("PUT", "/models/faults/9.9", {"min_worker": "1"}),
    Call("PUT", "/models/faults", {"min_worker": "3", "max_worker": "1"}),
    Call("PUT", "/models/faults", {"min_worker": "x"}, own=NUMBER),
    Call("PUT", "/models/nobody", {"min_worker": "1"}),
    # describe and list
    Call("GET", "/models/faults"),
    Call("GET", "/models/faults/1.0"),
    Call("GET", "/models/faults/all", before=(SECOND,)),
    Call("GET", "/models/faults", {"customized": "true"}, own="TorchServe answers 400, with the description"),
    Call("GET", "/models/faults/9.9"),
    Call("GET", "/models/nobody"),
    Call("GET", "/models"),
    Call("GET", "/models", {"limit": "1", "next_page_token": "0"}, before=(SPARE,)),
    Call("GET", "/models", {"limit": "-1"}),
    Call("GET", "/models", {"limit": "x"}, own=NUMBER),
    # versions
    Call("PUT", "/models/faults/2.0/set-default", before=(SECOND,)),
    Call("PUT", "/models/faults/9.9/set-default"),
    Call("PUT", "/models/nobody/1.0/set-default"),
    # unregister
    Call("DELETE", "/models/spare", before=(SPARE,)),
    Call("DELETE", "/models/spare/1.0", before=(SPARE,)),
    Call("DELETE", "/models/faults/2.0", before=(SECOND,)),
    Call("DELETE", "/models/faults/1.0", before=(SECOND,)),
    Call("DELETE", "/models/nobody"),
    Call("DELETE", "/models/faults/9.9"),
    # the API's description, tokens, and what is none of it
    Call("OPTIONS", "/", own=DESCRIPTION),
    Call("OPTIONS", "/models"),
    Call("GET", "/api-description", own=DESCRIPTION),
    Call("GET", "/models", token=""),
    Call("GET", "/models", token="inference"),
    Call("GET", "/token", {"type": "inference"}, token="API"),
    Call("GET", "/token", {"type": "management"}, token="API"),
    Call("GET", "/token", {"type": "x"}, token="API"),
    Call("GET", "/token", {"type": "inference"}, token=""),
    Call("PATCH", "/models/faults"),
    Call("GET", "/nowhere"),
)
