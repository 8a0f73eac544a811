"""The Prometheus rules hold on made-up series, and name only metrics that the gateway, TorchServe and the worker have."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from slotwise.backends.remote.copy_metrics import CopyMetrics
from slotwise.frontend.metrics import GatewayMetrics
from slotwise.host.model_versions import ModelVersions
from tests.k8s import manifests
from tests.worker.serving import serving_entry
from tests.worker.toy import POISON, RawContext

FOLDER = manifests.K8S / "prometheus"
RULES = yaml.safe_load((FOLDER / "rules.yaml").read_text("utf-8"))["groups"]
ADAPTER = yaml.safe_load((FOLDER / "adapter.yaml").read_text("utf-8"))["rules"]
SERVER_METRICS = {"ts_queue_latency_microseconds"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not here (apt-get install prometheus): the rules are NOT checked"
)


def promtool(*arguments: str) -> None:
    found = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=180)
    assert found.returncode == 0, found.stdout + found.stderr


def asked(group_by: str, matchers: str) -> str:
    """What the adapter asks Prometheus."""
    query: str = ADAPTER[0]["metricsQuery"]
    return query.replace("<<.GroupBy>>", group_by).replace("<<.LabelMatchers>>", matchers)


@needs_promtool
def test_rules_are_valid() -> None:
    promtool("check", "rules", "--lint-fatal", str(FOLDER / "rules.yaml"))


@needs_promtool
def test_rules_do_what_they_say() -> None:
    promtool("test", "rules", str(FOLDER / "rules_test.yaml"))


@needs_promtool
def test_scrape_configuration_is_valid(tmp_path: Path) -> None:
    """Debian's promtool is built without Kubernetes; the rest of the configuration is what it checks."""
    config = yaml.safe_load((FOLDER / "scrape.yaml").read_text("utf-8"))
    for job in config["scrape_configs"]:
        assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
        job["static_configs"] = [{"targets": ["localhost:8000"]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")
    promtool("check", "config", str(tmp_path / "prometheus.yml"))


def test_the_autoscaler_asks_what_the_adapter_makes() -> None:
    made = [rule["name"]["as"] for rule in ADAPTER]
    with_gpus = list(yaml.safe_load_all((manifests.K8S / "deployment.yaml").read_text("utf-8")))
    for documents, count in ((manifests.base(), 1), (with_gpus, 2)):
        scalers = manifests.of_kind(documents, "HorizontalPodAutoscaler")
        wanted = [metric["pods"]["metric"]["name"] for metric in scalers[0]["spec"]["metrics"] if "pods" in metric]
        assert wanted == made[:count]


def test_what_the_adapter_asks_is_tested() -> None:
    tested = " ".join((FOLDER / "rules_test.yaml").read_text("utf-8").split())
    assert " ".join(asked("pod", 'pod=~"a"').split()) in tested


def test_every_metric_is_somebodys() -> None:
    raw = RawContext([{}] * 3, batch_size=3)
    bodies = (b"[1]", f"[{POISON}]".encode(), b"no")  # a batch that has every number to tell
    serving_entry(padding="static").handle([{"body": body} for body in bodies], raw)
    reported = raw.metrics.seen
    known = _gateway_metrics() | SERVER_METRICS | set(reported)
    rules = [rule for group in RULES for rule in group["rules"]]
    expressions = [*(rule["expr"] for rule in rules), asked("pod", ""), ADAPTER[0]["seriesQuery"]]
    named = {name for expression in expressions for name in _metric_names(expression)}
    assert {"slotwise_in_flight_requests", "ts_queue_latency_microseconds", "SlotErrors"} <= named
    assert named - known - {rule.get("record") for rule in rules} == set()


def _gateway_metrics() -> set[str]:
    ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    backend = CollectorRegistry()
    CopyMetrics(backend)
    backend.register(ModelVersions())
    return {family.name + end for family in GatewayMetrics(backend).registry.collect() for end in ends[family.type]}


def _metric_names(expression: str) -> list[str]:
    bare = re.sub(r"\{[^}]*\}|by \([^)]*\)", " ", expression)
    return re.findall(r"\b(?:slotwise[_:][\w:]+|ts_\w+|[A-Z]\w+)", bare)
