"""benchmarks/compare.py: its parts, what is kept between runs, and the tables of what it measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare import summed
from benchmarks.comparison.kept import Clock, earlier, left_out, one_round, readings
from benchmarks.comparison.parts import DEFAULT, ON_TRITON, PARTS, SPECIAL
from benchmarks.comparison.programs import PROGRAMS, form, v2_head, v2_json
from benchmarks.comparison.results import kind, ratios
from benchmarks.comparison.systems import Http, ModelServer
from benchmarks.measuring.rounds import Cell, Reading, rows
from benchmarks.pages.comparison import OURS, TABLES
from benchmarks.pages.tables import command
from slotwise.bench.http_connection import Target
from slotwise.files.project import state_dir

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"processes": 2, "threads": 1, "batch_size": 4, "delay_ms": 10, "log_level": "ERROR", "form": "natural"}


@pytest.mark.parametrize("program", sorted((ROOT / "benchmarks" / "comparison").glob("*_app.py")), ids=lambda path: path.stem)
def test_a_peers_program_is_short_and_of_a_peer(program: Path) -> None:
    own_batches, own_streams = (
        ("fastapi_batched_app",),
        ("litserve_streams_app", "torchserve_streams_app"),
    )  # who keeps them itself
    most = 50 if program.stem in own_batches else 70 if program.stem in own_streams else 40
    assert len(program.read_text("utf-8").splitlines()) <= most
    assert program.stem.removesuffix("_app") in (*PROGRAMS, "torchserve", "torchserve_streams")


@pytest.mark.parametrize("name", PARTS)
def test_every_system_of_a_part_can_be_made(name: str) -> None:
    for system in PARTS[name].systems:
        base = system.partition(", batch ")[0]
        first, _, rest = base.partition("-")
        assert base in (DEFAULT, *SPECIAL) or first in (*PROGRAMS, "stock", "torchserve") or len(rest.split("-")) == 2
        expected = {"slotwise": "ours", "raw": "raw", "stock": "stock"}.get(first, "peer")
        assert kind(system) == expected


@pytest.mark.parametrize("name", PARTS)
def test_every_system_can_be_the_name_of_a_server(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTWISE_HOME", str(tmp_path))
    servers = [ModelServer(system, "m", tmp_path, {}).server_name for system in PARTS[name].systems]
    assert len({state_dir(server) for server in servers}) == len(PARTS[name].systems)


def test_bodies_are_what_each_protocol_wants() -> None:
    assert b'name="request"' in form(b"\xff\xd8", "image/jpeg").data
    assert json.loads(v2_json(b"a", "").data)["inputs"][0]["data"] == ["YQ=="]
    assert json.loads(v2_head(5))["inputs"][0]["shape"] == [1, 5]


def measured(rounds: int) -> list[Any]:
    cells: dict[Cell, list[str]] = {("720", 8): ["stock", "litserve-engine", OURS], ("720", 32): [OURS]}
    speed = {"stock": 10.0, "litserve-engine": 25.0, OURS: 30.0}
    done = []
    for turn in range(rounds):
        done.append(one_round(turn, cells, lambda cell, name: Reading(speed[name] + cell[1], 1.0, 2.0), lambda text: None))
    return done


def test_a_round_asks_every_system_once_and_turns() -> None:
    first, second = measured(2)
    assert [row["system"] for row in first] == ["stock", "litserve-engine", OURS, OURS]
    assert [row["system"] for row in second] == ["litserve-engine", OURS, "stock", OURS]


def test_rounds_are_kept_only_for_the_same_plan(tmp_path: Path) -> None:
    file, plan = tmp_path / "part.json", {"part": "vision", "systems": ("stock",)}
    assert earlier(file, plan) == {}
    file.write_text(json.dumps({"plan": plan, "readings": measured(2)}), "utf-8")
    kept = earlier(file, plan)["readings"]
    assert rows(readings(kept)) == rows(readings(measured(2)))
    assert earlier(file, {**plan, "seconds": 3}) == {}


def test_a_system_that_missed_a_round_has_no_row() -> None:
    first, second = measured(2)
    table = rows(readings([first, [row for row in second if row["system"] != "stock"]]))
    assert {row["system"] for row in table} == {"litserve-engine", OURS}


def test_a_system_that_missed_a_round_of_any_run_is_said_to_be_left_out() -> None:
    first, second = measured(2)
    without = [row for row in second if row["system"] != "stock"]
    came, went = left_out([without, first], {}), left_out([first, without], {"stock": "it ended", "mosec": "not here"})
    assert came == {"stock": "it is in 1 of 2 rounds"}
    assert went == {**came, "mosec": "not here"}
    assert left_out([first, second], {"stock": "it ended"}) == {}
    assert summed({"left_out": {}}, [first, without])["left_out"] == came


def test_no_round_begins_without_time() -> None:
    assert Clock(1).time_left()
    assert not Clock(0).time_left()


class Answering(Http):
    """Refuses what is cut off; every third other one is lost."""

    target = Target("http://127.0.0.1:1/", {})
    seen = 0

    def status(self, body: bytes, content_type: str) -> int:
        if body != b"good body":
            return 400
        self.seen += 1
        return 503 if self.seen % 3 == 0 else 200


def test_the_table_of_bad_requests_counts_both() -> None:
    counts = Answering().poison(b"good body", "text/plain")
    assert (counts["innocent"], counts["bad"], counts["bad_refused"], counts["statuses"]) == (56, 8, 8, {"400": 8})
    assert 0 < counts["innocent_lost"] < 56


def test_every_part_has_its_tables() -> None:
    table = rows(readings(measured(2)))
    setting = {**SETTINGS, "front": "HTTP in Java", "packages": ["litserve==1"]}
    counts = {"innocent": 56, "innocent_lost": 0, "bad": 8, "bad_refused": 8, "statuses": {"400": 7, "0": 1}}
    part = {"rows": table, "ratios": ratios(table), "command": "python scripts/compare.py engines"}
    part |= {"settings": {"litserve-engine": {**setting, "form": "engine", "engine": "openvino-fp32"}, "stock": setting}}
    part |= {"poison": {"stock": counts, "slotwise": counts}, "left_out": {"ray-engine": "it ended"}}
    figures = {name: part for name in PARTS}
    assert "| stock | 2.11 (2.11 to 2.11) |  |" in TABLES["engines.same"](figures)
    assert "our decoder, openvino-fp32" in TABLES["engines.settings"](figures)
    assert "* ray-engine is left out: it ended" in TABLES["engines.settings"](figures)
    assert "| stock | 56 | 0 | 8 | 8 | 7 x 400, 1 x none |" in TABLES["vision.poison"](figures)
    assert "    python -m benchmarks.compare engines" in command("vision")(figures)
    assert "| 720 | 8 |" in TABLES["vision.ratios.fp32"](figures)


def test_slotwise_on_triton_has_columns_of_its_own_where_it_was_measured() -> None:
    cells: dict[Cell, list[str]] = {("720", 8): ["triton-engine", OURS, ON_TRITON["fp32"]]}
    speed = {"triton-engine": 20.0, OURS: 18.0, ON_TRITON["fp32"]: 21.0}
    done = [one_round(0, cells, lambda _cell, name: Reading(speed[name], 1.0, 2.0), lambda text: None)]
    lines = TABLES["engines.same"]({"engines": {"rows": rows(readings(done))}}).splitlines()
    assert lines[0] == "| Slotwise to | on TorchServe, 8 clients | on Triton, 8 clients |"
    assert lines[2:] == ["| triton-engine | 0.9 (0.9 to 0.9) | 1.05 (1.05 to 1.05) |"]


def test_every_server_stands_beside_the_loop_without_one() -> None:
    cells: dict[Cell, list[str]] = {("720", clients): ["mosec-engine", "raw-openvino-int8"] for clients in (8, 32)}
    speed = {"mosec-engine": 18.0, "raw-openvino-int8": 20.0}
    done = [one_round(0, cells, lambda _cell, name: Reading(speed[name], 1.0, 2.0), lambda text: None)]
    lines = TABLES["engines-int8.of_raw"]({"engines-int8": {"rows": rows(readings(done))}}).splitlines()
    assert lines[0] == "| to the raw loop | 8 clients | 32 clients |"
    assert lines[2:] == ["| mosec-engine | 0.9 (0.9 to 0.9) | 0.9 (0.9 to 0.9) |"]


def test_steps_and_batch_sizes_are_rendered() -> None:
    def row(system: str, clients: int, rps: float) -> dict[str, Any]:
        return {"workload": "720", "concurrency": clients, "system": system, "rps": rps, "rounds": [rps, rps]}

    steps = [row(f"mosec-{form}", 8, rps) for form, rps in (("natural", 10), ("decoder", 20), ("engine", 40))]
    figures: dict[str, Any] = {"ablation": {"rows": [*steps, row(OURS, 8, 60)]}}
    assert "| 8 | mosec | 10 | 2 (2 to 2) | 2 (2 to 2) | 1.5 (1.5 to 1.5) | 6 (6 to 6) |" in TABLES["ablation.steps"](figures)
    sizes = [row(f"{system}, batch {n}", clients, n) for system in ("stock", OURS) for n in (1, 8, 16) for clients in (10, 100)]
    table = TABLES["resnet152.by_batch"]({"resnet152": {"rows": sizes}})
    assert "| 8 | 95 | 338 | 8 (8 8) | 8 (8 8) | 8 (8 8) | 8 (8 8) |" in table
