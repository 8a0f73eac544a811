"""The record of a server that was started: enough to find it again, to talk to it and to stop it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import Profile
from slotwise.server.process_record import ProcessRecord, content_of

Kind = Literal["torchserve", "mms", "ray", "triton", "slotwise"]


@dataclass(frozen=True, kw_only=True)
class ServerRecord(ProcessRecord):
    """A server that was started. Stored as server.json in its folder.

    overrides: the keys that `--set` and the environment set. shares: the cores of each model, where there are several.
    tmp_dir: the server's own TMPDIR and TEMP. cluster: the address of the Ray that it joined, "" for its own.
    expected: the models that who starts it registers next. stopping: somebody stops it, so that it may be silent. logged: the
    variables that say how it writes its logs.
    """

    kind: Kind
    ports: Ports
    profile: str
    overrides: dict[str, str]
    model_store: Path
    state_dir: Path
    tmp_dir: Path
    run_id: str
    shares: dict[str, int] = field(default_factory=dict)
    cluster: str = ""
    expected: list[str] = field(default_factory=list)
    stopping: bool = False
    logged: dict[str, str] = field(default_factory=dict)

    @property
    def inference_url(self) -> str:
        """The address of predictions and /ping."""
        return f"http://127.0.0.1:{self.ports.inference}"

    def prediction_url(self, model: str) -> str:
        """The address of one model's predictions; on Triton of its V2 protocol."""
        route = f"v2/models/{model}/infer" if self.kind == "triton" else f"predictions/{model}"
        return f"{self.inference_url}/{route}"

    @property
    def management_url(self) -> str:
        """The address of models and workers."""
        return f"http://127.0.0.1:{self.ports.management}"

    @property
    def metrics_url(self) -> str:
        """The address of the server's /metrics; MMS has none."""
        if self.kind == "mms":
            return self.inference_url
        return f"http://127.0.0.1:{self.ports.metrics}"

    @property
    def urls(self) -> dict[str, str]:
        """Where its APIs are, by name."""
        addresses = {"inference": self.inference_url, "management": self.management_url}
        if self.kind == "triton" or (self.kind == "slotwise" and importlib.util.find_spec("grpc")):
            addresses["grpc"] = f"127.0.0.1:{self.ports.grpc_inference}"
        if "grpc" in addresses and self.kind == "slotwise":
            addresses["grpc_management"] = f"127.0.0.1:{self.ports.grpc_management}"
        return addresses | ({"metrics": f"{self.metrics_url}/metrics"} if self.kind != "mms" else {})

    def listening(self) -> str:
        """Where it listens, a line an API, for people."""
        width = max(10, *map(len, self.urls))
        return "\n".join(f"{api:{width}}  {url}" for api, url in self.urls.items())

    def effective_profile(self) -> Profile:
        """The profile that it was started with, overrides included, whatever has happened to the file since."""
        try:
            profile = Profile.model_validate_json((self.state_dir / "profile.json").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise SlotwiseError(f"what {self.name} was started with cannot be read", "stop and start it again") from error
        chosen = {key: getattr(profile, key) for key in self.overrides if key in Profile.model_fields}
        return profile.explicitly(chosen, f"what {self.name} was started with")

    def need_model_api(self, what: str) -> None:
        """Raise SlotwiseError where the server registers nothing while it runs. what: what cannot be done then."""
        if self.kind == "torchserve" and not self.effective_profile().model_api:
            raise SlotwiseError(
                f"{what} cannot be done: the server {self.name} keeps its model API off (model_api = false)",
                "`slotwise apply PROFILE --set model_api=true` restarts it with the model API on",
            )

    def save(self, folder: Path | None = None) -> None:
        """Write server.json; `folder` is another than state_dir after a swap."""
        self.write((folder or self.state_dir) / "server.json")

    @classmethod
    def load(cls, state_dir: Path) -> ServerRecord | None:
        """The record in `state_dir`; None where there is none, it cannot be read, or it is another folder's."""
        try:
            data = content_of(state_dir / "server.json")
            paths = {key: Path(data[key]) for key in ("model_store", "state_dir", "tmp_dir")}
            return cls(**{**data, **paths, "ports": Ports(**data["ports"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None


def running(name: str = "default") -> ServerRecord | None:
    """The server of that name, where one runs."""
    record = ServerRecord.load(project.state_root() / name)
    return record if record is not None and record.alive() else None


def in_its_place(record: ServerRecord) -> ServerRecord | None:
    """The server that has this one's name now, also one that is still starting; None where it is this one, or none."""
    stored = ServerRecord.load(project.state_root() / record.name)
    return stored if stored is not None and stored.run_id != record.run_id else None


def is_wanted(record: ServerRecord) -> bool:
    """Whether it has its name still, and nobody stops it."""
    stored = ServerRecord.load(project.state_root() / record.name)
    return stored is not None and stored.run_id == record.run_id and not stored.stopping


def need(name: str = "default") -> ServerRecord:
    """The running server of that name; SlotwiseError where none runs."""
    record = running(name)
    if record is None:
        raise SlotwiseError(f"no server named {name!r} is running", "`slotwise serve MODEL` starts one")
    return record


def all_running() -> list[ServerRecord]:
    """Every server that was started from here and runs."""
    records = [ServerRecord.load(file.parent) for file in sorted(project.state_root().glob("*/server.json"))]
    return [record for record in records if record is not None and record.alive()]
