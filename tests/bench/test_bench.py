"""`slotwise bench` as a person calls it, against a stand-in server and on an archive."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slotwise.bench import offline
from slotwise.bench.bodies import examples, from_files, from_mix
from slotwise.bench.http_connection import Target
from slotwise.cli import build_app
from slotwise.errors import SlotwiseError
from tests.standin import answer, standin
from tests.support.sleeper import HANDLER, sleeper

RUN = CliRunner()


@pytest.fixture
def body(tmp_path: Path) -> Path:
    path = tmp_path / "good.txt"
    path.write_bytes(b"good")
    return path


def test_a_table_csv_and_figure(body: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with standin(answer) as url:
        files = ["--csv", str(tmp_path / "a.csv"), "--figure", str(tmp_path / "a.svg")]
        given = ["bench", "m", "--url", url, "--body", str(body), "--concurrency", "1,2", "--requests", "80", "--warm-up", "0"]
        told = RUN.invoke(build_app(), [*given, "--poison", "0.2", *files])
    assert told.exit_code == 0, told.output
    for word in ("clients", "req/s", "p50", "p99", "max", "batch", "lost", " got 400: ", "0 innocent ones lost"):
        assert word in told.output
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert [row["clients"] for row in rows] == ["1", "2"]
    assert rows[0]["refused"].startswith("400: ")
    assert "<svg" in (tmp_path / "a.svg").read_text("utf-8")


def test_json_for_programs_and_an_open_loop(body: Path) -> None:
    with standin(answer) as url:
        given = [
            "bench",
            "m",
            "--url",
            url,
            "--body",
            str(body),
            "--rate",
            "200",
            "--requests",
            "10",
            "--warm-up",
            "0",
            "--json",
        ]
        told = RUN.invoke(build_app(), given)
    assert told.exit_code == 0, told.output
    (load,) = json.loads(told.stdout)["loads"]
    assert (load["rate"], load["errors"], load["requests"]) == (200, {}, 10)


def test_nobody_there_and_nothing_answered_are_one_line(body: Path) -> None:
    given = ["bench", "m", "--body", str(body), "--requests", "2", "--concurrency", "1", "--warm-up", "0", "--url"]
    told = RUN.invoke(build_app(), [*given, "http://127.0.0.1:9/predictions/m"])
    assert isinstance(told.exception, SlotwiseError)
    assert "nothing answers at http://127.0.0.1:9" in told.exception.message
    with standin(lambda body, headers: (404, {}, b"no such model")) as url:
        told = RUN.invoke(build_app(), [*given, url])
    assert isinstance(told.exception, SlotwiseError)
    assert "404: 2" in told.exception.message


@pytest.mark.parametrize("numbers", ["", "0", "1,x", "-1"])
def test_a_wrong_list_of_numbers_is_wrong_usage(body: Path, numbers: str) -> None:
    assert RUN.invoke(build_app(), ["bench", "m", "--body", str(body), f"--concurrency={numbers}"]).exit_code == 2


def test_streams_take_neither_a_rate_nor_a_tool(body: Path) -> None:
    for more in ("--rate=1", "--interval=1", "--tool=wrk", "--poison=0.1"):
        assert RUN.invoke(build_app(), ["bench", "m", "--body", str(body), "--stream", more]).exit_code == 2


def test_arrivals_come_at_a_rate_or_at_an_interval(body: Path) -> None:
    given = ["bench", "m", "--body", str(body), "--warm-up", "0", "--requests", "3", "--json", "--url"]
    with standin(answer) as url:
        told = RUN.invoke(build_app(), [*given, url, "--interval", "0.01"])
    assert told.exit_code == 0, told.output
    assert [(load["rate"], load["requests"]) for load in json.loads(told.stdout)["loads"]] == [(100, 3)]
    assert RUN.invoke(build_app(), [*given, "http://127.0.0.1:1", "--interval", "0.01", "--rate", "5"]).exit_code == 2


def test_the_handler_without_a_server(body: Path, tmp_path: Path) -> None:
    archive = sleeper(tmp_path)
    given = ["bench", str(archive), "--offline", "--body", str(body), "--batch-sizes", "1,2,4", "--seconds", "0.1"]
    told = RUN.invoke(build_app(), [*given, "--json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert [batch["n"] for batch in found["batches"]] == [1, 2, 4]
    for batch in found["batches"]:  # it sleeps 20 n + 20 ms
        assert batch["model_ms"] >= 20 * batch["n"] + 20
        assert batch["batch_ms"] >= batch["decode_ms"] + batch["model_ms"]
    assert found["line"]["a_ms"] > 0
    assert "a batch of n takes" in RUN.invoke(build_app(), given).output


def test_without_a_server_the_environment_is_as_strong_as_with_one(
    body: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, str]] = []

    def measure(*_: object, environ: dict[str, str], **__: object) -> list[offline.BatchTiming]:
        asked.append(environ)
        return [offline.BatchTiming(n, 5, 1.0, 0.0, 1.0, 0.0) for n in (1, 2)]

    monkeypatch.setattr(offline, "measure", measure)
    monkeypatch.setenv("WORKERS", "2")
    given = ["bench", str(sleeper(tmp_path)), "--offline", "--body", str(body), "--set", "threads=1"]
    assert RUN.invoke(build_app(), given).exit_code == 0
    assert [json.loads(environ["SLOTWISE_OVERRIDES"]) for environ in asked] == [{"workers": 2, "threads": 1}]


def test_an_example_that_the_model_refuses_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "picky"
    folder.mkdir()
    (folder / "model.toml").write_text('name = "picky"\nhandler = "picky.py"\n')
    lines = HANDLER.replace("return [0]", 'raise BadRequest("too plain")').replace("import Batch", "import BadRequest, Batch")
    (folder / "picky.py").write_text(lines)
    from slotwise.archive.build import build

    archive = build(folder, tmp_path)
    (tmp_path / "x").write_bytes(b"x")
    told = RUN.invoke(build_app(), ["bench", str(archive), "--offline", "--body", str(tmp_path / "x"), "--batch-sizes", "1"])
    assert isinstance(told.exception, SlotwiseError)
    assert "400" in told.exception.message
    assert "too plain" in told.exception.message


@pytest.mark.parametrize(
    "option", [("--figure", "f.png"), ("--rate", "5"), ("--poison", "0.5"), ("--tool", "wrk"), ("--requests", "3")]
)
def test_offline_ignores_no_option(body: Path, option: tuple[str, str]) -> None:
    assert RUN.invoke(build_app(), ["bench", "m", "--offline", "--body", str(body), *option]).exit_code == 2


def test_a_model_without_examples_is_told_what_to_name(tmp_path: Path) -> None:
    assert from_files([]) == []
    (tmp_path / "model.toml").write_text('name = "m"\nhandler = "m.py"\n')
    (tmp_path / "m.py").write_text("")
    with pytest.raises(SlotwiseError, match="has no example bodies"):
        examples(str(tmp_path))


def test_a_pipe_is_no_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.mar")
    with pytest.raises(SlotwiseError, match="is no regular file"):
        examples(str(tmp_path / "m.mar"))


@pytest.mark.parametrize("url", ["http://[::1", "http://h:99999", "http://h:p/", "ftp://h", "http://"])
def test_an_address_that_cannot_be_measured_is_one_line(url: str) -> None:
    with pytest.raises(SlotwiseError, match="is no address that can be measured"):
        _ = Target(url, {}).address


@pytest.mark.parametrize(
    "line",
    [
        ("simulate", "--batch-ms", "1", "--request-ms", "1", "--rate", "inf"),
        *(("bench", "m", option, "inf") for option in ("--rate", "--interval", "--seconds", "--warm-up", "--timeout")),
        ("tune", "m", "--seconds", "inf"),
        ("register", "m", "--max-batch-delay", "inf"),
        ("check", "m.mar", "--timeout", "nan"),
        ("check", "m.mar", "--timeout", "inf"),
    ],
)
def test_a_number_without_an_end_is_wrong_usage(line: tuple[str, ...]) -> None:
    assert RUN.invoke(build_app(), line).exit_code == 2


def test_a_folder_without_a_file_is_no_body(tmp_path: Path) -> None:
    with pytest.raises(SlotwiseError, match="there is no file in"):
        from_files([tmp_path])
    (tmp_path / "mix.toml").write_text('body = "x"')
    with pytest.raises(SlotwiseError, match="tables"):
        from_mix(tmp_path / "mix.toml")
    (tmp_path / "mix.toml").write_text('[[body]]\nfile = "."')
    with pytest.raises(SlotwiseError, match="a body has a file"):
        from_mix(tmp_path / "mix.toml")
