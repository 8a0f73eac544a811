"""The page of metrics and the dashboards are what the code has, and every query gives data of a real stack."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server

from scripts import dashboards, metrics
from slotwise.backends.remote.copy_metrics import CopyMetrics
from slotwise.profiles.ports import Ports
from tests.backends.streaming_models import GENERATOR, streaming_archive
from tests.server.conftest import build_handler, started
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "k8s" / "prometheus" / "rules.yaml").read_text("utf-8"))["groups"]
GRAFANAS_SCHEMA = {"@grafana/schema": "13.2.3", "typescript": "7.0.2"}
TYPED = "import type {{ Dashboard }} from '@grafana/schema';\nexport const one: Dashboard = {};\n"
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not here (apt-get install prometheus): the queries are NOT run"
)


def queries() -> dict[str, str]:
    """Every query of every dashboard, by where it stands."""
    return {
        f"{name}: {panel.title} {legend}": expr
        for name, (_, panels) in dashboards.DASHBOARDS.items()
        for panel in panels
        for legend, expr in panel.queries.items()
    }


def described() -> list[metrics.Described]:
    return [*metrics.of_front(), *metrics.of_copies(), *metrics.of_host(), *metrics.of_workers()]


@pytest.mark.parametrize("script", ["metrics", "dashboards"])
def test_what_is_checked_in_is_what_would_be_written(script: str) -> None:
    done = subprocess.run([sys.executable, f"scripts/{script}.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_names_follow_the_conventions() -> None:
    for one in described():
        assert one.meaning.endswith("."), one.name
        if one.name.startswith("slotwise"):
            assert re.fullmatch(r"slotwise_[a-z_]+", one.name)
            assert one.name.endswith("_total") == (one.kind == "counter")
            assert not re.search(r"_(ms|seconds_total_|kb|mb|minutes)", one.name)
            assert set(one.labels) <= {"model", "version", "status", "outcome", "reason", "part"}


def test_every_metric_is_on_a_dashboard_and_every_query_is_about_one() -> None:
    known = {one.name for one in described()}
    asked = {name for expr in queries().values() for name in re.findall(r"\b(?:slotwise_\w+|[A-Z]\w+(?=\{))", expr)}
    asked = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert asked == known


def test_a_dashboard_is_whole() -> None:
    for name, (title, panels) in dashboards.DASHBOARDS.items():
        board = json.loads((ROOT / "k8s" / "grafana" / f"{name}.json").read_text("utf-8"))
        assert (board["title"], len(board["panels"])) == (title, len(panels))
        assert len({panel["id"] for panel in board["panels"]}) == len(panels)
        places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
        assert len(places) == len(panels)


def test_every_alert_has_a_summary_and_new_ones_a_runbook_that_is_there() -> None:
    for group in RULES:
        for rule in group["rules"]:
            if "alert" not in rule:
                continue
            assert rule["annotations"]["summary"]
            page, _, heading = rule["annotations"].get("runbook_url", "docs/gateway.md").partition("#")
            text = (ROOT / page).read_text("utf-8")
            headings = {
                re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
                for line in text.splitlines()
                if line[:1] == "#"
            }
            assert not heading or heading in headings, (rule["alert"], heading)


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[str]:
    """A Prometheus that looks twice a second; its address, once it answers queries."""
    web = Ports.free().inference
    jobs = [{"job_name": "slotwise", "static_configs": [{"targets": targets, "labels": {"namespace": "n", "pod": "p"}}]}]
    timing = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    config = {"global": timing, "scrape_configs": jobs, "rule_files": [str(ROOT / "k8s" / "prometheus" / "rules.yaml")]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    options = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{web}"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(["prometheus", *options], cwd=folder, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{web}"
    try:
        until(lambda: httpx.get(f"{address}/-/ready", trust_env=False).is_success, "Prometheus does not answer")
        yield address
    finally:
        process.terminate()
        process.wait(30)


def copies() -> int:
    """The numbers of a front before another server, going up: what a real one counts where workers die. Its port."""
    registry = CollectorRegistry()
    numbers, stop = CopyMetrics(registry), threading.Event()

    def count() -> None:
        while not stop.wait(0.2):
            for counter in (numbers.retries, numbers.hedges, numbers.alone):
                counter.labels("faults").inc()
            numbers.hedge_won("faults", 0.5)
            numbers.swaps.inc()

    threading.Thread(target=count, daemon=True).start()
    port = Ports.free().metrics
    start_http_server(port, "127.0.0.1", registry)
    return port


@needs_prometheus
@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(300)
def test_every_query_gives_data_of_a_real_stack(tmp_path: Path) -> None:
    """The host, workers, streams, poison and killers are real; the numbers of copies are made up."""
    store = tmp_path / "store"
    store.mkdir()
    for name in ("faults", "killers"):
        build_handler(name, store, tmp_path / "models", handler=name)
    streaming_archive(tmp_path, "words", GENERATOR, store)
    with started("slotwise", tmp_path / "home", store) as live:
        for model in ("faults", "killers", "words"):
            live.management.register(f"{model}.mar", batch_size=4, max_batch_delay=50, initial_workers=1, response_timeout=60)
        for model in ("faults", "killers", "words"):
            live.management.wait_ready(model)
        with live.front() as front, prometheus(tmp_path, [front.url.removeprefix("http://"), f"127.0.0.1:{copies()}"]) as web:
            stop = threading.Event()

            def ask(model: str, body: str, **headers: str) -> int:
                url = f"{front.url}/predictions/{model}"
                return httpx.post(url, content=body, headers=headers, timeout=100, trust_env=False).status_code

            def load(model: str, body: str, accept: str) -> None:
                while not stop.wait(random.uniform(0, 0.2)):  # in step, a bad one would never meet the others in a batch
                    ask(model, body, accept=accept)

            def result(query: str) -> Any:
                answer = httpx.get(f"{web}/api/v1/query", params={"query": query}, trust_env=False)
                assert answer.status_code == 200, (query, answer.text)
                return answer.json()["data"]["result"]

            def without_data(wanted: dict[str, str]) -> list[str]:
                return [where for where, query in wanted.items() if not result(query)]

            wanted = {
                where: expr.replace("$__rate_interval", "20s").replace("$model", ".*") for where, expr in queries().items()
            }
            for group in RULES:
                for rule in group["rules"]:
                    if "record" in rule and "ts_" not in rule["expr"]:
                        wanted[rule["record"]] = rule["record"]
                    for name in re.findall(r"slotwise_\w+|slotwise:\w+:\w+", rule["expr"]):
                        wanted[f"{rule.get('alert') or rule['record']}: {name}"] = name
            wanted = {where: query for where, query in wanted.items() if "queue_depth" not in query}  # of TorchServe
            with ThreadPoolExecutor(8) as pool:
                try:
                    for model, body in (
                        ("faults", "3"),
                        ("faults", "4"),
                        ("faults", "5"),
                        ("faults", "raise"),
                        ("killers", "7"),
                        ("words", "[4]"),
                    ):
                        pool.submit(load, model, body, "text/event-stream" if model == "words" else "*/*")
                    until(lambda: result('slotwise_killers_total{model="killers"} == 0'), "it is not scraped")
                    assert ask("killers", "exit 1") == 500
                    until(lambda: not without_data(wanted), "some queries have no data")
                    firing = 'count(ALERTS{alertname=~"SlotwiseKiller|SlotwiseErrorBudgetFast"}) > 1'
                    until(lambda: result(firing), "what should alert does not")
                except AssertionError as error:
                    error.add_note(f"without data: {without_data(wanted)}")
                    raise
                finally:
                    stop.set()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not here (apt-get install npm): Grafana's schema is NOT tried")
def test_grafanas_own_schema_takes_every_dashboard(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text(json.dumps({"private": True, "devDependencies": GRAFANAS_SCHEMA}))
    npm = ["npm", "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--cache", str(tmp_path / "cache")]
    subprocess.run(npm, cwd=tmp_path, check=True, timeout=300)
    for file in sorted((ROOT / "k8s" / "grafana").glob("*.json")):
        found = file.read_text("utf-8")
        (tmp_path / f"{file.stem}.ts").write_text(TYPED.format(found))
        (tmp_path / f"bad_{file.stem}.ts").write_text(TYPED.format(found.replace('"timeseries"', "7")))
    typed = [
        "node_modules/.bin/tsc",
        "--noEmit",
        "--strict",
        "--skipLibCheck",
        "--module",
        "esnext",
        "--moduleResolution",
        "bundler",
    ]
    names = sorted(file.name for file in tmp_path.glob("*.ts"))
    done = subprocess.run([*typed, *names], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    wrong = {line.partition("(")[0] for line in done.stdout.splitlines() if ": error " in line}
    assert wrong == {name for name in names if name.startswith("bad_")}, done.stdout
