"""The tuner on servers made of arithmetic, whose best setting is known."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from slotwise.archive.archive_info import ArchiveInfo
from slotwise.bench.load import LoadResult
from slotwise.bench.load_plan import LoadPlan
from slotwise.bench.offline import LinearTime, environment, fit
from slotwise.cli import build_app
from slotwise.client.management import RegisteredModel
from slotwise.commands.options import pairs
from slotwise.errors import SlotwiseError
from slotwise.files.project import profile_file
from slotwise.profiles.profile import load_profile
from slotwise.server.record import ServerRecord
from slotwise.tune import cleanup, tuning
from slotwise.tune.finals import ROUNDS, Finalist, decide, play
from slotwise.tune.goal import Goal
from slotwise.tune.live_bench import LiveBench
from slotwise.tune.search import Search, hopeless
from slotwise.tune.simulate import ServiceTimes, simulate
from slotwise.tune.space import SearchSpace, TrialSetting
from slotwise.tune.tuning import FINALISTS, TuneRequest, baselines, sweep
from tests.support.records import server_record
from tests.tune.simulated import DEFAULT, PROFILE, Simulated

SPACE = SearchSpace((1, 2, 4, 8, 16, 32), (0, 1, 2, 5, 10, 20, 50), ((1, 1), (1, 2), (2, 1), (4, 1)))


def drawn(case: int) -> tuple[ServiceTimes, ServiceTimes, Goal, float]:
    """A server, what the tuner knows of it (neither the server's overhead nor how well threads scale), a target, and the most
    answers a second that any setting in the whole grid gives within it.
    """
    draw = random.Random(case)

    def between(low: float, high: float) -> float:
        return float(low * (high / low) ** draw.random())

    line = LinearTime(between(0.02, 20), between(0.2, 20))
    truth = ServiceTimes(line, 2, draw.uniform(0.3, 0.95), draw.uniform(0, 2), draw.uniform(0.1, 1))
    known = ServiceTimes(LinearTime(line.a_ms * draw.uniform(0.8, 1.2), line.b_ms * draw.uniform(0.8, 1.2)), 2)
    clients = draw.choice((8, 32, 64))
    grid = [simulate(truth, setting, clients, 300) for setting in SPACE]
    goal = Goal(min(measured.p99_ms for measured in grid) * draw.uniform(1.2, 4), clients)
    return truth, known, goal, max(measured.req_s for measured in grid if goal.met(measured))


@pytest.mark.parametrize("case", range(20))
def test_within_5_percent_of_the_best_in_30_trials(case: int) -> None:
    truth, known, goal, most = drawn(case)
    search = Search(Simulated(truth), SPACE, goal, max_trials=30, seed=case)
    trials = search.run([DEFAULT, PROFILE], known)
    found = simulate(truth, search.best()[0].setting, goal.clients, 300)
    assert len(trials) <= 30
    assert goal.met(found)
    assert found.req_s >= 0.95 * most


@pytest.mark.parametrize("case", range(20))
def test_and_where_every_round_is_disturbed_by_a_fifth(case: int) -> None:
    """The final decides by pairs: what disturbs a round disturbs all settings in it, but for 3% that each has for itself."""
    truth, known, goal, most = drawn(case)
    goal = replace(goal, slo_p99_ms=2 * goal.slo_p99_ms)  # a target that noise alone does not miss
    most = max(found.req_s for setting in SPACE if goal.met(found := simulate(truth, setting, goal.clients, 300)))
    bench = Simulated(truth, noise=0.2, each_own=0.03, seed=case)
    search = Search(bench, SPACE, goal, max_trials=30, seed=case)
    assert len(search.run([DEFAULT, PROFILE], known)) <= 30
    decision = play(bench, [trial.setting for trial in search.best(FINALISTS)], goal, seconds=1, rounds=ROUNDS)
    assert decision.winner is not None
    found = simulate(truth, decision.winner.setting, goal.clients, 300)
    assert found.req_s >= 0.95 * most


def test_without_a_line_it_still_searches() -> None:
    truth, _, goal, _ = drawn(1)
    search = Search(Simulated(truth), SPACE, goal, max_trials=30)
    search.run([DEFAULT], None)
    assert search.best()[0].measured.req_s > 2 * simulate(truth, DEFAULT, goal.clients).req_s  # type: ignore[union-attr]


def test_few_clients_of_a_small_model_want_batch_1_and_more_workers() -> None:
    """Where a batch cannot fill, waiting for one costs more than it saves."""
    service = ServiceTimes(LinearTime(0.9, 0.05), 4, parallel=0.3, request_ms=0.1)
    space = SearchSpace((1, 2, 4, 8, 16), (1, 2, 5, 10), ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)))
    search = Search(Simulated(service), space, Goal(50, clients=4), max_trials=30)
    search.run([DEFAULT], service)
    assert (search.best()[0].setting.batch_size, search.best()[0].setting.workers) == (1, 4)


def test_a_setting_that_cannot_be_served_is_a_failed_trial() -> None:
    truth, known, goal, _ = drawn(2)
    heard: list[str] = []
    search = Search(Simulated(truth, [PROFILE]), SPACE, goal, max_trials=5, on_trial=lambda trial: heard.append(trial.state))
    search.run([DEFAULT, PROFILE], known)
    assert heard[:2] == ["measured", "failed"]
    assert search.trials[1].note == "does not fit into memory"
    assert search.best()


def test_a_target_out_of_reach_names_the_closest() -> None:
    truth, known, _, _ = drawn(3)
    search = Search(Simulated(truth), SPACE, Goal(0.001, 32), max_trials=12)
    search.run([DEFAULT], known)
    assert search.best() == []
    closest = search.closest()
    assert closest is not None
    assert closest.measured.p99_ms == min(t.measured.p99_ms for t in search.trials)  # type: ignore[union-attr]


def measured(req_s: float, p99_ms: float = 10.0, lost: int = 0) -> LoadResult:
    return LoadResult(8, None, 1.0, 100, req_s, 1, 2, 3, p99_ms, p99_ms, 4, 1, 1, {"503": lost} if lost else {})


def test_a_trial_that_cannot_win_is_pruned() -> None:
    goal, best = Goal(50, 8), measured(100)
    assert hopeless(measured(60), best, goal)
    assert hopeless(measured(200, lost=1), best, goal)
    assert hopeless(measured(200, p99_ms=101), best, goal)
    assert not hopeless(measured(75, p99_ms=60), best, goal)


SIMPLE, LARGE = TrialSetting(8, 5, 1), TrialSetting(32, 5, 2)


def finalist(setting: TrialSetting, *req_s: float, p99_ms: float = 10.0) -> Finalist:
    return Finalist(setting, tuple(measured(value, p99_ms) for value in req_s))


def test_a_lead_in_every_round_wins_however_much_the_rounds_differ() -> None:
    told = decide([finalist(SIMPLE, 90, 110, 50, 95, 105), finalist(LARGE, 95, 115, 54, 99, 108)], Goal(50))
    assert told.winner is not None
    assert told.winner.setting == LARGE
    low, high = told.ratios[SIMPLE].low, told.ratios[SIMPLE].high
    assert 1 < low < told.ratios[SIMPLE].mean < high
    assert f"({low:.2f} to {high:.2f})" in told.reason


def test_a_lead_in_some_rounds_is_no_difference_and_the_simpler_wins() -> None:
    told = decide([finalist(SIMPLE, 100, 110, 100, 95, 90), finalist(LARGE, 95, 115, 104, 92, 108)], Goal(50))
    assert told.winner is not None
    assert told.winner.setting == SIMPLE
    assert told.reason.startswith("no difference")
    assert told.equal == (LARGE,)
    assert not told.ratios[LARGE].is_a_difference


def test_a_finalist_that_misses_the_target_cannot_win() -> None:
    late = finalist(LARGE, 200, 200, 200, p99_ms=60)
    told = decide([finalist(SIMPLE, 100, 100, 100), late], Goal(50))
    assert told.winner is not None
    assert told.winner.setting == SIMPLE
    assert decide([late], Goal(50)).winner is None


def test_the_final_is_interleaved() -> None:
    bench = Simulated(ServiceTimes(LinearTime(1, 5), 2))
    told = play(bench, [SIMPLE, LARGE, DEFAULT], Goal(500, 32), seconds=1)
    assert bench.asked == [SIMPLE, LARGE, DEFAULT, DEFAULT, LARGE, SIMPLE] * 2 + [SIMPLE, LARGE, DEFAULT]
    assert bench.held == [SIMPLE, LARGE, DEFAULT]
    assert told.winner is not None
    assert told.winner.setting != DEFAULT
    assert len(told.finalists) == 3


def test_the_simulated_server_gives_the_shape_of_the_published_study() -> None:
    """ResNet-152 on 8 workers: throughput over clients by batch size, and over delay with 10 clients."""
    service = ServiceTimes(LinearTime(20, 20), cores=8, request_ms=0.3)

    def req_s(batch_size: int, clients: int, delay: int = 50) -> float:
        return simulate(service, TrialSetting(batch_size, delay, 8), clients, requests=max(600, 4 * clients)).req_s

    assert req_s(1, 10) > req_s(8, 10) > req_s(16, 10)
    for clients in (100, 500, 1000):
        assert min(req_s(8, clients), req_s(16, clients)) > req_s(1, clients)
    by_delay = [req_s(8, 10, delay) for delay in (0, 1, 10, 50, 100)]
    assert all(later <= earlier * 1.03 for earlier, later in itertools.pairwise(by_delay))


@given(st.floats(0.01, 100), st.floats(0, 100), st.integers(0, 4))
def test_the_fitted_line_is_not_bent_by_one_disturbed_point(a: float, b: float, disturbed: int) -> None:
    points = [(float(n), a * n + b) for n in (1, 8, 16, 32, 64)]
    points[disturbed] = (points[disturbed][0], points[disturbed][1] * 1.5)
    line = fit(points)
    assert line.at(40) == pytest.approx(a * 40 + b, rel=0.3)


@pytest.mark.parametrize("kind", ["torchserve", "mms", "ray", "triton", "slotwise"])
def test_a_plain_registration_is_what_its_server_makes_of_it(kind: str) -> None:
    profile = load_profile("cpu", {"num_replicas": "2"}, {}, cores=0)
    record = SimpleNamespace(kind=kind, overrides={}, effective_profile=lambda: profile)
    info = ArchiveInfo(Path("m.mar"), 1, "", {"model": {"modelName": "m"}}, {"name": "m"})
    plain, of_profile = baselines(record, info, cores=4)  # type: ignore[arg-type]
    assert plain == (of_profile if kind in ("ray", "triton", "slotwise") else TrialSetting(1, 100, 1, 4))
    assert of_profile.workers == (2 if kind == "ray" else 1)


@given(st.integers(1, 64), st.integers(1, 200))
def test_a_space_keeps_the_thread_budget_and_never_repeats_itself(cores: int, clients: int) -> None:
    space = SearchSpace.of_machine(cores, clients)
    settings = list(space)
    assert len(set(settings)) == len(settings)
    assert all(s.workers * s.threads <= cores for s in settings)
    assert any(s.workers == 2 * cores for s in SearchSpace.of_machine(cores, clients, oversubscribe=True))
    assert {s.max_batch_delay for s in settings} >= {0, 1}
    assert {s.threads for s in SearchSpace.of_machine(cores, clients, threads=1)} == {1}
    assert max(s.threads for s in SearchSpace.of_machine(cores, clients, shared_by=2)) <= max(1, cores // 2)
    for neighbour in space.neighbours(settings[-1]):
        assert neighbour in settings


@pytest.mark.parametrize(("answers", "asked"), [(80, ["warm-up", "wrk"]), (79, ["warm-up", "wrk", "slotwise"])])
def test_another_tool_meets_an_empty_queue_and_slow_models_are_measured_by_our_client(
    answers: int, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def ours(target: object, bodies: object, plan: LoadPlan) -> LoadResult:
        called.append("slotwise" if plan.warm_up_s else "warm-up")
        return simulate(ServiceTimes(LinearTime(1, 1), 1), SIMPLE, 8, 50)

    def theirs(tool: str, target: object, bodies: object, plan: LoadPlan) -> LoadResult:
        assert plan.warm_up_s == 0
        called.append(tool)
        return replace(simulate(ServiceTimes(LinearTime(1, 1), 1), SIMPLE, 8, 50), requests=answers)

    monkeypatch.setattr("slotwise.bench.load.measure", ours)
    monkeypatch.setattr("slotwise.bench.load_tools.measure", theirs)
    monkeypatch.setattr("slotwise.bench.http_connection.auth_headers", lambda record, for_s: {})
    bench = LiveBench.__new__(LiveBench)
    bench.record = SimpleNamespace(kind="torchserve", prediction_url=lambda model: "http://127.0.0.1:1")  # type: ignore[assignment]
    bench.bodies = []
    bench.serving, bench.tool, bench.timeout_s, bench.poison = {SIMPLE: "tune-x"}, "wrk", 30.0, 0.0
    bench.measure(SIMPLE, 8, 1.0)
    assert called == asked


def test_the_guard_asks_again_until_the_trial_models_stay_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "PAUSE_S", 0.0)

    class Server:
        """Refuses the first time; a registration that was under way comes up once more afterwards."""

        record = SimpleNamespace(alive=lambda: True)
        there, refusals, late = ["digits", "tune-digits-1"], 1, 1

        def list(self) -> list[RegisteredModel]:
            names = [RegisteredModel(name, f"{name}.mar") for name in self.there]
            if "tune-digits-1" not in self.there and self.late:
                self.late -= 1
                self.there.append("tune-digits-1")
            return names

        def unregister(self, model: str) -> None:
            if self.refusals:
                self.refusals -= 1
                raise SlotwiseError("busy")
            self.there.remove(model)

    server = Server()
    cleanup.clear(server, {"tune-digits-1"})  # type: ignore[arg-type]
    assert server.there == ["digits"]


@pytest.mark.parametrize(("there", "told"), [(["tune-x"], []), ([], ["tune-x"]), (None, [])])
def test_what_could_not_be_unregistered_is_not_reported_as_gone(
    there: list[str] | None, told: list[str], tmp_path: Path
) -> None:
    def unregister(model: str) -> None:
        raise SlotwiseError("busy")

    def listed() -> list[RegisteredModel]:
        if there is None:
            raise SlotwiseError("no answer")
        return [RegisteredModel(name, f"{name}.mar") for name in there]

    found: list[str] = []
    bench = LiveBench.__new__(LiveBench)
    bench.record = SimpleNamespace(model_store=tmp_path)  # type: ignore[assignment]
    bench.management = SimpleNamespace(unregister=unregister, list=listed)  # type: ignore[assignment]
    bench.cleanup = SimpleNamespace(unregistered=lambda name, archive: found.append(name))  # type: ignore[assignment]
    bench._unregister("tune-x")
    assert found == told


def test_what_the_figures_want_costs_no_winner() -> None:
    class Bench:
        def keep_ready(self, settings: object) -> None:
            pass

        def measure(self, setting: TrialSetting, clients: int, seconds: float) -> LoadResult:
            if setting.max_batch_delay >= 50:
                raise SlotwiseError("it does not become ready")
            return simulate(ServiceTimes(LinearTime(1, 1), 1), SIMPLE, 8, 50)

    said: list[str] = []
    request = SimpleNamespace(seconds=1.0, goal=SimpleNamespace(clients=8))
    outcome = SimpleNamespace(request=request, machine={"server": "torchserve"}, by_clients=[], by_delay=[])
    sweep(Bench(), outcome, SIMPLE, said.append)  # type: ignore[arg-type]
    assert outcome.by_clients
    assert outcome.by_delay
    assert any("left out of the figures" in line for line in said)


def test_offline_a_setting_without_a_value_is_wrong_usage() -> None:
    assert '"threads": 1' in environment("cpu", pairs(["threads=1"]))["SLOTWISE_OVERRIDES"]
    with pytest.raises(typer.BadParameter, match="'threads' is not KEY=VALUE"):
        pairs(["threads"])


def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerRecord:
    """The record of a server that the gateway swapped in: its files are in default-b, server.json is not."""
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    here, lives = tmp_path / "default", tmp_path / "default-b"
    here.mkdir()
    lives.mkdir()
    record = server_record(tmp_path, "mms", pid=0, state_dir=lives)
    (lives / "profile.json").write_text(load_profile("cpu", environ={}).model_dump_json(), "utf-8")
    record.save(here)
    return record


def test_the_guard_lives_also_after_a_profile_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "tune-digits-1.mar"
    archive.touch()
    (tmp_path / "json.py").write_text("raise SystemExit(1)")  # the operator's own, where he stands
    monkeypatch.chdir(tmp_path)
    with LiveBench(started(tmp_path, monkeypatch), SimpleNamespace(name="digits"), []) as bench:  # type: ignore[arg-type]
        bench.cleanup.registers("tune-digits-1", archive)
    assert not archive.exists()


@pytest.mark.parametrize("same", [True, False])
def test_apply_is_refused_before_the_search_where_another_file_of_that_name_was_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    def searched(*_: object, **__: object) -> None:
        raise SlotwiseError("searched")

    record = started(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("slotwise.server.record.need", lambda name: record)
    monkeypatch.setattr("slotwise.deploy.deploy.obtain", searched)
    (tmp_path / "profiles").mkdir()
    text = profile_file("cpu").read_text("utf-8")
    (tmp_path / "profiles" / "cpu.toml").write_text(
        text if same else re.sub("batch_size = .*", "batch_size = 77", text), "utf-8"
    )
    done = CliRunner().invoke(build_app(), ["tune", "digits", "--apply"])
    assert ("profiles/cpu.toml says" in str(done.exception)) is not same
    assert ("searched" in str(done.exception)) is same


def test_a_page_that_no_tuning_wrote_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("precious")
    line = ["tune", "digits", "--out", str(tmp_path), "--poison", "0.1", "--tool", "ab"]
    assert "no tuning wrote" in str(CliRunner().invoke(build_app(), line).exception)
    (tmp_path / "tune.json").write_text("{}")
    assert "no tuning wrote" not in str(CliRunner().invoke(build_app(), line).exception)


def test_apply_is_refused_before_the_trials_where_a_model_has_no_folder_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, searched = started(tmp_path, monkeypatch), list[str]()
    monkeypatch.setattr("slotwise.server.record.need", lambda name: record)
    monkeypatch.setattr("slotwise.deploy.deploy.obtain", lambda *_, **__: SimpleNamespace(name="digits", path=tmp_path))
    monkeypatch.setattr("slotwise.tune.profile_edit.check_own", lambda record: None)
    monkeypatch.setattr("slotwise.tune.tuning.tune", lambda *_: searched.append("digits"))
    monkeypatch.setattr("slotwise.commands.tune._served", lambda name: ["digits", "theirs"])
    monkeypatch.setattr(ServerRecord, "need_model_api", lambda record, what: None)
    monkeypatch.setattr("slotwise.files.project.models", dict)
    for what in ("digits", "shared/digits.mar", "--all"):
        done = CliRunner().invoke(build_app(), ["tune", what, "--apply"])
        assert "has no folder in this project" in str(done.exception)
    assert not searched
    monkeypatch.setattr("slotwise.files.project.models", lambda: {"digits": Path.cwd()})
    CliRunner().invoke(build_app(), ["tune", "shared/digits.mar", "--apply", "--body", __file__])
    assert searched == ["digits"]


@pytest.mark.parametrize(("lives", "words"), [(False, "ended during the final"), (True, "could serve no setting: .*gone")])
def test_a_final_in_which_nothing_could_be_served_is_no_target_not_met(
    lives: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bench(Simulated):
        def __enter__(self) -> Bench:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def measure(self, setting: TrialSetting, clients: int, seconds: float) -> LoadResult:
            if self.held:
                raise SlotwiseError("the server is gone")
            return super().measure(setting, clients, seconds)

    bench = Bench(ServiceTimes(LinearTime(1, 1), 1))
    monkeypatch.setattr(tuning, "LiveBench", lambda *_, **__: bench)
    monkeypatch.setattr(tuning, "baselines", lambda *_: (DEFAULT, PROFILE))
    monkeypatch.setattr(tuning, "space_of", lambda *_: SearchSpace((1, 8), (0, 1), ((1, 1),)))
    monkeypatch.setattr(tuning, "time_handler", lambda *_: ([], None))
    monkeypatch.setattr(tuning, "machine", lambda record: {})
    monkeypatch.setattr(tuning, "warmed_up", lambda *_: [])
    record = SimpleNamespace(name="default", state_dir=Path(), alive=lambda: lives or not bench.held)
    request = TuneRequest("digits", Goal(1000.0, 4), max_trials=3, seconds=0.1, cores=1)
    with pytest.raises(SlotwiseError, match=words):
        tuning.tune(request, record, SimpleNamespace(), [], str, lambda trial: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("overrides", "alike"),
    [
        ({"initial_workers": "auto"}, {}),
        ({"threads": '"auto"'}, {}),
        ({"initial_workers": "2", "threads": "1"}, {"shared_by": 2, "threads": 1}),
    ],
)
def test_auto_fixes_no_number_of_workers_or_threads(overrides: dict[str, str], alike: dict[str, int]) -> None:
    profile = load_profile("cpu", overrides, {}, cores=0)
    record = SimpleNamespace(overrides=overrides, kind="slotwise", effective_profile=lambda: profile)
    space = tuning.space_of(record, TuneRequest("digits", Goal(200.0, 4)), 4)  # type: ignore[arg-type]
    assert list(space) == list(SearchSpace.of_machine(4, 4, kind="slotwise", **alike))


def test_all_goes_on_with_the_next_model_where_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tuned(model: str, *_: object, **__: object) -> SimpleNamespace:
        if model == "first":
            raise SlotwiseError("its workers do not start", "look")
        return SimpleNamespace(winner=None)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("slotwise.commands.tune._served", lambda name: ["first", "second"])
    monkeypatch.setattr("slotwise.commands.tune._tuned", tuned)
    monkeypatch.setattr("slotwise.commands.tune._kept", lambda *_: {"model": "second"})
    done = CliRunner().invoke(build_app(), ["tune", "--all", "--json"])
    assert "second" in done.stdout
    assert str(done.exception) == "not tuned: first: its workers do not start"
