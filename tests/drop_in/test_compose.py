"""The compose file of a TorchServe deployment: what its commands and files say holds here, and its Prometheus reads ours."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from slotwise.drop_in.arguments import parsed
from slotwise.drop_in.configuration import configured
from slotwise.drop_in.known_keys import KEYS
from slotwise.profiles.ports import Ports
from tests.drop_in.stores import archive
from tests.support.deployments import OURS, deployed
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.torchserve.yaml").read_text("utf-8"))
SERVICE = COMPOSE["services"]["torchserve"]
CONTENTS = {name: one["content"].replace("$$", "$") for name, one in COMPOSE["configs"].items()}

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not here (apt-get install prometheus): the alerts are NOT checked"
)


def test_the_image_is_one_word_and_the_command_is_torchserves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SERVICE["image"] == "${IMAGE:-slotwise-torchserve}"
    assert "-t slotwise-torchserve -f Dockerfile.torchserve" in (ROOT / "Dockerfile.torchserve").read_text("utf-8")
    word, *words = shlex.split(SERVICE["command"])
    assert word == "torchserve"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.properties").write_text(CONTENTS["torchserve"])
    (tmp_path / "model-store").mkdir()
    configuration = configured(parsed(words), {})
    assert {key for key in configuration.keys if KEYS[key].use == "refused"} == set()
    published = {int(one.split(":")[1]) for one in SERVICE["ports"]}
    assert published == {configuration.address(api).port for api in ("inference", "management")} | {7070, 7071}


def test_every_file_goes_where_the_image_looks_for_it() -> None:
    dockerfile = (ROOT / "Dockerfile.torchserve").read_text("utf-8")
    for target in [one["target"] for one in SERVICE["configs"]] + [SERVICE["volumes"][0].split(":")[1]]:
        assert target in dockerfile
    used = {one["source"] for service in COMPOSE["services"].values() for one in service["configs"]}
    assert used == set(COMPOSE["configs"])
    assert (ROOT / SERVICE["volumes"][0].split(":")[0]).is_dir()


@needs_prometheus
@pytest.mark.timeout(900)
def test_its_prometheus_reads_it_and_its_alerts_tell(tmp_path: Path, program: str) -> None:
    """Ours, and with the old image TorchServe: the way back needs no other file."""
    archive(tmp_path / "store", "errors", "errors")
    lines = [line for line in CONTENTS["torchserve"].splitlines() if "address" not in line]
    web = Ports.free().inference
    with deployed(program, tmp_path / "d", tmp_path / "store", lines, ("--ncs", "--models", "all")) as deployment:
        deployment.wait_ready("errors")
        with prometheus(tmp_path, deployment.ports, web):

            def asked(query: str) -> Any:
                answer = httpx.get(f"http://127.0.0.1:{web}/api/v1/query", params={"query": query}, trust_env=False)
                return answer.raise_for_status().json()["data"]["result"]

            def served(body: bytes) -> int:
                headers = deployment.headers("inference")
                url = f"{deployment.inference}/predictions/errors"
                return deployment.asked("POST", url, headers=headers, content=body).status_code

            until(lambda: asked("up == 1"), "it is not scraped")
            assert [served(body) for body in (b"fine", b"boom")] == [200, 500 if program == OURS else 503]
            (one,) = until(lambda: asked("ts_inference_requests_total > 0"), "no requests are counted")
            assert (one["metric"]["model_name"], one["metric"]["model_version"]) == ("errors", "default")

            def fails() -> Any:
                served(b"boom")
                return asked('ALERTS{alertname="TorchServeFails"}')

            until(fails, "errors raise no alert")
            named = set(re.findall(r"\b(?:ts_\w+|[A-Z]\w+XX|MemoryUtilization|up)\b", str(expressions())))
            assert len(named) == 5
            for name in named:
                assert until(lambda name=name: asked(name), f"nobody has {name}")


def expressions() -> list[str]:
    return [rule["expr"] for group in yaml.safe_load(CONTENTS["alerts"])["groups"] for rule in group["rules"]]


@contextmanager
def prometheus(folder: Path, ports: Ports, web: int) -> Iterator[None]:
    """The compose file's Prometheus as a process, which looks a few times a second."""
    config = yaml.safe_load(CONTENTS["prometheus"])
    config["global"] = {"scrape_interval": "300ms", "scrape_timeout": "300ms", "evaluation_interval": "300ms"}
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["torchserve:8082"]}]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{ports.metrics}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / "alerts.yml").write_text(CONTENTS["alerts"])
    checked = subprocess.run(["promtool", "check", "config", str(folder / "prometheus.yml")], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    options = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{web}"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(["prometheus", *options], cwd=folder, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(120)
