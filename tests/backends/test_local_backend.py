"""What answers in a host's own process: a request goes to its version, as that is; and what its workers count."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from slotwise.backends.catalog import UNKNOWN, ModelCard
from slotwise.backends.exchange import AnsweredBy, BackendAnswer, BackendRequest, ReadFor, Refused
from slotwise.backends.local.model_settings import ModelSettings
from slotwise.backends.management.bearer import Tokens
from slotwise.frontend.inference_request import InferenceRequest
from slotwise.host import model_versions
from slotwise.host.local_backend import LocalBackend
from slotwise.host.model_versions import ModelVersions
from slotwise.host.server import front
from slotwise.profiles.ports import Ports
from slotwise.profiles.profile import Profile

from .test_served_model import settings  # noqa: F401  a fixture


class Served:
    """A version of a model that notes whether a request may be sent twice."""

    def __init__(self, of: ModelSettings) -> None:
        self.settings, self.asked, self.queue = of, list[bool](), SimpleNamespace(not_run=lambda request: None)

    async def answer(self, request: BackendRequest) -> BackendAnswer:
        assert request.answered_by == AnsweredBy(request.model, self.settings.version, self.settings.content)  # before a piece
        self.asked.append(request.repeatable)
        return BackendAnswer(200, [], b"")


@pytest.mark.parametrize("front", [False, True])
def test_a_request_is_sent_twice_only_where_its_own_version_allows_that(settings: ModelSettings, front: bool) -> None:  # noqa: F811
    """The front knows the default version only, and whether late requests are hedged, which is another matter."""
    once, twice = Served(replace(settings, version="2", repeatable=False)), Served(settings)
    loaded, nothing = ModelVersions({"m": {"1": twice, "2": once}}), None  # type: ignore[dict-item]
    anything: Any = nothing
    backend = LocalBackend(loaded, anything, 1, lambda: [])
    for version in ("", "1", "2"):
        asyncio.run(backend.answer(BackendRequest("m", 0.0, version=version, label="m", repeatable=front)))
    assert (twice.asked, once.asked) == ([True, True], [False])


def test_a_model_that_is_registered_next_is_waited_for_and_no_other(
    settings: ModelSettings,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, loaded = 0.0, ModelVersions()
    monkeypatch.setattr(model_versions.time, "monotonic", lambda: now)

    def status(name: str) -> int:
        with pytest.raises(Refused) as refused:
            loaded.find(name)
        return refused.value.status

    served: Any = Served(settings)
    name = settings.name
    assert (status(name), status("another")) == (404, 404)
    loaded.expect([name, "broken"])
    assert (status(name), status("broken"), status("another")) == (503, 503, 404)
    loaded.add(served, default=True)
    assert loaded.find(name) is served
    del loaded.by_name[name]  # it did not become ready
    assert (status(name), status("broken")) == (404, 503)
    now = model_versions.LOADING_S
    assert status("broken") == 404


def test_a_version_that_is_registered_next_is_waited_for_too(settings: ModelSettings) -> None:  # noqa: F811
    loaded, first, second = ModelVersions(), Served(settings), Served(replace(settings, version="2.0"))
    loaded.expect([settings.name, settings.name])
    loaded.add(first, default=True)  # type: ignore[arg-type]
    with pytest.raises(Refused) as refused:
        loaded.find(settings.name, "2.0")
    assert (refused.value.status, refused.value.retry_after_s) == (503, 1)
    loaded.add(second, default=False)  # type: ignore[arg-type]
    assert loaded.find(settings.name, "2.0") is second
    with pytest.raises(Refused) as refused:
        loaded.find(settings.name, "3.0")
    assert refused.value.status == 404


def test_a_gateway_that_follows_to_a_host_waits_for_what_comes_and_for_nothing_else(settings: ModelSettings) -> None:  # noqa: F811
    loaded, served = ModelVersions(), SimpleNamespace(settings=settings, wanted=1, failure="", asleep=False)
    served.queue = SimpleNamespace(workers=[])
    assert loaded.waits_for(settings.name)  # nobody has said what comes
    loaded.expect([settings.name])
    assert (loaded.waits_for(settings.name), loaded.waits_for("gone")) == (True, False)
    loaded.add(served, default=True)  # type: ignore[arg-type]
    assert loaded.waits_for(settings.name)
    served.wanted = 0  # as somebody has scaled it
    assert not loaded.waits_for(settings.name)


@pytest.mark.parametrize("status", [400, 404, 429])
def test_an_answer_of_ours_is_a_workers_whatever_its_headers_say(settings: ModelSettings, status: int) -> None:  # noqa: F811
    """Another tool's handler, behind a guard, has no headers of ours. What is not there is refused."""

    class Guarded(Served):
        async def answer(self, request: BackendRequest) -> BackendAnswer:
            return BackendAnswer(status, [], b"its own words")

    anything: Any = None
    backend = LocalBackend(ModelVersions({"m": {"1": Guarded(settings)}}), anything, 1, lambda: [])  # type: ignore[dict-item]
    answer = asyncio.run(backend.answer(BackendRequest("m", 0.0)))
    assert (answer.status, answer.from_slot, answer.good) == (status, True, True)


def test_what_was_read_for_a_version_is_answered_by_it_or_not_at_all(settings: ModelSettings) -> None:  # noqa: F811
    """Another one may have become the default meanwhile, which takes something else, or have come under the same version."""
    one, two, anything = Served(replace(settings, card="one")), Served(replace(settings, version="2", card="two")), None
    loaded = ModelVersions({"m": {"2": two, "1": one}})  # type: ignore[dict-item]
    backend = LocalBackend(loaded, anything, 1, lambda: [])  # type: ignore[arg-type]
    read = BackendRequest("m", 0.0, read_for=ReadFor("1", lambda card: card == "one"), target="/predictions/m?a=b")
    asyncio.run(backend.answer(read))
    asyncio.run(backend.answer(BackendRequest("m", 0.0)))
    assert (len(one.asked), len(two.asked)) == (1, 1)
    loaded.by_name["m"]["1"] = Served(replace(settings, card="another one"))  # type: ignore[assignment]
    with pytest.raises(Refused, match="takes something else"):
        asyncio.run(backend.answer(replace(read, version="1")))
    del loaded.by_name["m"]["1"]
    for version, status in (("", 503), ("1", 404), ("2", 503)):
        with pytest.raises(Refused) as refused:
            asyncio.run(backend.answer(replace(read, version=version)))
        assert refused.value.status == status
    asyncio.run(backend.answer(replace(read, read_for=ReadFor("1", lambda card: card == "two"))))
    assert (len(one.asked), len(two.asked)) == (1, 2)


def test_two_archives_of_one_version_are_told_apart(settings: ModelSettings) -> None:  # noqa: F811
    """One that is registered while a request of several records waits is another archive, though it has the same version."""
    loaded, anything, by = ModelVersions(), None, list[AnsweredBy]()
    backend = LocalBackend(loaded, anything, 1, lambda: [])  # type: ignore[arg-type]
    for content in ("one", "another", "one"):
        loaded.by_name["m"] = {"1": Served(replace(settings, card=ModelCard(content=content)))}  # type: ignore[dict-item]
        request = BackendRequest("m", 0.0)
        asyncio.run(backend.answer(request))
        by.append(request.answered_by)
    assert by[0] == by[2] != by[1]


def test_what_runs_says_what_it_takes_whatever_the_model_store_has(settings: ModelSettings) -> None:  # noqa: F811
    """`slotwise build` overwrites an archive that is registered, and nothing of it runs yet."""
    anything: Any = None
    backend = LocalBackend(ModelVersions({"m": {"1": Served(replace(settings, card="its own"))}}), anything, 1, lambda: [])  # type: ignore[dict-item]
    lives: list[Any] = [SimpleNamespace(name=name, version="1", archive="m.mar") for name in "mn"]
    assert (backend.card(lives[0]), backend.card(lives[1])) == ("its own", UNKNOWN)


def test_nothing_that_a_handler_counts_ends_the_metrics_or_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_versions, "MOST_NAMES", 3)
    loaded, registry = ModelVersions(), CollectorRegistry()
    registry.register(loaded)
    for i in range(5):
        loaded.measured("m", f"of_request_{i}", i, "ms", None)
    loaded.measured("m", "", 1.0, "ms", None)
    anything: Any = "ten"
    with pytest.raises(ValueError, match="ten"):
        loaded.measured("m", "of_request_0", anything, "ms", None)
    loaded.measured("other", "of_request_4", 1.0, "", None)
    loaded.measured("long", "n" * 10_000, 1.0, "", 200)
    for code in ("200", 99, 600, True, 2.5):
        wrong: Any = code
        loaded.measured("coded", "of_code", 1.0, "", wrong)
    said = generate_latest(registry).decode()
    assert ("n" * 101 in said, "of_code" in said) == (False, False)
    assert f'{"n" * 100}{{Code="200",ModelName="long"}} 1.0' in said
    assert [i for i in range(5) if f'of_request_{i}{{Code="",ModelName="m"}}' in said] == [0, 1, 2]
    assert 'of_request_4{Code="",ModelName="other"} 1.0' in said


def test_it_names_the_versions_that_are_not_the_default() -> None:
    anything: Any = None
    lives: list[Any] = [SimpleNamespace(name=name, version=version) for name, version in (("m", "2"), ("m", "1"), ("n", "1"))]
    backend = LocalBackend(ModelVersions(), anything, 1, lambda: lives)
    asyncio.run(backend.look(0))
    assert (backend.models, backend.others) == ({"m": lives[0], "n": lives[2]}, {("m", "1"): lives[1]})


@pytest.mark.parametrize(
    ("version", "own_s", "sent_s", "left_s"), [("2", 999, 999, 60), ("1", 999, 999, 4), ("2", 2, 999, 2), ("2", 9, 3, 3)]
)
def test_a_request_waits_as_long_as_its_own_version_may_take_and_its_client_waits(
    settings: ModelSettings,  # noqa: F811
    tmp_path: Path,
    version: str,
    own_s: float,
    sent_s: float,
    left_s: float,
) -> None:
    """The front's own time is 4 s. own_s: what the call says, as a gRPC call does. sent_s: what its header says."""
    versions = {"1": Served(settings), "2": Served(replace(settings, version="2", response_timeout_s=60.0))}
    record: Any = SimpleNamespace(ports=Ports.free())
    backend = LocalBackend(ModelVersions({"m": versions}), record, 1, lambda: [])  # type: ignore[dict-item]

    async def left() -> float:
        async with front(backend, Profile(name="p", response_timeout_s=4), record, Tokens(tmp_path)) as gateway:
            now = time.monotonic()
            request = InferenceRequest("m", min(now + 4, now + own_s), gateway=gateway, client_deadline=now + own_s)
            sent = str(int((time.time() + sent_s) * 1000)).encode()
            named = {"headers": [(b"x-deadline-ms", sent)], "query_string": b"", "path_params": {"version": version}}
            request.read_head(named)
            return request.left_s

    assert asyncio.run(left()) == pytest.approx(left_s, abs=1)


@pytest.mark.parametrize("state_of", ["", "a sequence"])
@pytest.mark.parametrize("left_s", [0.5, 60.0])
@pytest.mark.parametrize("words", ["the deadline had passed when the request was read", "nothing came from there"])
def test_what_a_clock_took_for_late_goes_again(settings: ModelSettings, words: str, left_s: float, state_of: str) -> None:  # noqa: F811
    """A clock was set while it waited. Not where time is over, its handler says so, or others of its sequence have gone by."""

    class Late(Served):
        async def answer(self, request: BackendRequest) -> BackendAnswer:
            await super().answer(request)
            dates.append(int(request.headers["x-deadline-ms"]))
            return BackendAnswer(504 if len(dates) == 1 else 200, [], words.encode())

    dates = list[int]()
    anything: Any = None
    backend = LocalBackend(ModelVersions({"m": {"1": Late(settings)}}), anything, 1, lambda: [])  # type: ignore[dict-item]
    request = BackendRequest("m", time.monotonic() + left_s, label="m", headers={"x-deadline-ms": "1"}, state_of=state_of)
    again = left_s > 1 and "deadline" in words and not state_of
    assert asyncio.run(backend.answer(request)).status == (200 if again else 504)
    assert len(dates) == 1 + again
    assert dates[0] == 1
    assert abs(dates[-1] - (time.time() + left_s) * 1000) < 30_000 or not again
