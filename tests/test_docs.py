"""Pages of docs/ that say so are run: every command of their console blocks, on real servers, and its output compared."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slotwise.profiles.ports import Ports, problem
from tests.support.pages import Command, commands, missing, typed
from tests.support.torchvision_stub import SITECUSTOMIZE

ROOT = Path(__file__).resolve().parents[1]
MARK = "every command here is run by tests/test_docs.py"
PAGES = sorted(page.stem for page in (ROOT / "docs").glob("*.md") if MARK in page.read_text("utf-8"))
NEEDED = {
    "triton": ["pytriton"],
    "leaving-torchserve": ["pytriton", "ray"],
    "leaving-sagemaker": [],
    "rollout": [],
    "observe": [],
}  # pages of the slow tests, and the packages that only `make full` installs
LONG = ("tune", "bench")  # they measure for minutes; what they start is started by other tests, too
USUAL = Ports()
# Pages of which only the first commands are run: what they show is in words. Those of the laboratory run in the checkout.
LABORATORY = ["architecture", "campaign", "measured", "neighbours", "originals", "reliability"]
FIRST = ["decisions", "design", "host-apis", "inside-the-worker", "scale", "separability", "server-facts"]
FIRST += ["stream-handlers", "streams", "trouble"]
ELSEWHERE = {
    "archives": "tests/archive/test_archive_docs.py",
    "handlers": "tests/archive/test_archive_docs.py",
    "own-model": "tests/archive/test_archive_docs.py",
    "kubernetes": "tests/k8s/test_page.py",
    "kserve": "tests/drop_in/test_kserve.py",
    "vision": "tests/zoo/test_vision_docs.py",
    "installing": "tests/test_wheel.py",
    "containers": "tests/test_containers.py",
}  # whose tests run a page's commands, or hold what it says where they need a cluster, Docker or an index
REFERENCE = [
    "api",
    "commands",
    "metrics",
    "thirty",
    *(f"measured-{part}" for part in ("crowds", "neighbours", "originals", "pictures", "servers", "streams", "tuning")),
]
FIRST_SCREEN = 40  # lines


def _marks(page: str) -> list[pytest.MarkDecorator]:
    if page in LONG:
        return [pytest.mark.long]
    if page not in NEEDED:
        return []
    absent = [package for package in NEEDED[page] if importlib.util.find_spec(package) is None]
    return [pytest.mark.slow, pytest.mark.skipif(bool(absent), reason=f"not installed: {absent}; make full")]


def base_port() -> int:
    """A port whose neighbours are free as well: inference, management, metrics, the two of gRPC and the gateway's three.

    The page's server starts long after this: no server of another test takes a port below 20,000, and each process of
    tests has its own.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8
    bases = range(3_000 + 20 * process, 6_300, 160)
    return next(
        base
        for base in random.SystemRandom().sample(bases, len(bases))  # not of the seed: others may run beside it
        if not any(problem(port) for port in [*vars(Ports.at(base)).values(), base + 3, base + 4, base + 5])
    )


def with_ports(text: str, ports: Ports) -> str:
    """The same text with these ports instead of the usual ones; the gateway's are the next three."""
    text = text.replace("8001", str(ports.inference + 5))  # before another port that may hold these digits
    for name, usual in vars(USUAL).items():
        text = text.replace(str(usual), str(getattr(ports, name)))
    return text.replace(":8000", f":{ports.inference + 3}").replace(":9527", f":{ports.inference + 4}")


def on_ports(said: list[Command], ports: Ports) -> list[str]:
    """The commands of a page as they are typed here."""
    texts = [with_ports(command.text, ports) for command in said]
    texts = [text.replace("slotwise serve", f"slotwise serve --port {ports.inference}") for text in texts]
    gateway = f"slotwise gateway --port {ports.inference + 3} --translation-port {ports.inference + 4}"
    return [text.replace("slotwise gateway", gateway) for text in texts]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with models, profiles and README, as after a clone; what was trained before is trained for it, too."""
    for name in ("models", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    (tmp_path / ".slotwise").mkdir()
    (ROOT / ".slotwise" / "cache").mkdir(parents=True, exist_ok=True)
    (tmp_path / ".slotwise" / "cache").symlink_to(ROOT / ".slotwise" / "cache")
    (tmp_path / "tmp").mkdir()
    return tmp_path


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder before PATH: where torchvision cannot be imported, an archiver that gives an archive what mends that."""
    folder = tmp_path_factory.mktemp("tools")
    if subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True).returncode:
        (folder / "sitecustomize.py").write_text(SITECUSTOMIZE, "utf-8")
        archiver = folder / "torch-model-archiver"
        mended = f'"${{@/#index_to_name.json/index_to_name.json,{folder}/sitecustomize.py}}"'
        archiver.write_text(f'#!/bin/bash\nexec "{sys.executable}" -m model_archiver.model_packaging {mended}\n', "utf-8")
        archiver.chmod(0o755)
    return folder


@pytest.mark.server
@pytest.mark.parametrize("page", [pytest.param(page, marks=_marks(page)) for page in PAGES])
def test_the_commands_of_the_page_print_what_it_says(page: str, project: Path, tools: Path) -> None:
    ports = Ports.at(base_port())
    for file in (project / "profiles").glob("*.properties"):
        file.write_text(with_ports(file.read_text("utf-8"), ports), "utf-8")
    said = commands((ROOT / "docs" / f"{page}.md").read_text("utf-8"))
    texts = on_ports(said, ports)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    tmp = str(project / "tmp")
    environ = {"PATH": path, "TMPDIR": tmp, "TEMP": tmp}
    try:
        done = typed(texts, project, project / "output.txt", **environ)
    finally:
        stops = ["slotwise stop || true"]
        for program in ("slotwise torchserve", "torchserve"):
            stops += [f"{program} --stop || true"] if f"{program} --start" in "".join(texts) else []
        typed(stops, project, project / "stopped.txt", **environ)
    wrong = {
        command.text: (lost, printed)
        for command, printed in zip(said, done.printed, strict=False)
        if (lost := missing([with_ports(line, ports) for line in command.shown], printed))
    }
    assert wrong == {}
    assert done.code == 0, done.printed[-1]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all of them: what one page has built the next has, too."""
    folder = tmp_path_factory.mktemp("first")
    for name in ("models", "profiles"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".slotwise").mkdir()
    (folder / ".slotwise" / "cache").symlink_to(ROOT / ".slotwise" / "cache")
    return folder


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("page", [*FIRST, *LABORATORY, pytest.param("ray", marks=pytest.mark.long)])
def test_the_first_commands_of_the_page_run(page: str, shared: Path, tmp_path: Path) -> None:
    if page == "ray":
        pytest.importorskip("ray")
    folder = ROOT if page in LABORATORY else shared
    for name in ("mine", "words"):
        shutil.rmtree(shared / name, ignore_errors=True)
    block = (ROOT / "docs" / f"{page}.md").read_text("utf-8").partition("```console\n")[2].partition("```")[0]
    texts = on_ports(commands(f"```console\n{block}```"), Ports.at(base_port()))
    environ = {} if folder == ROOT else {"SLOTWISE_HOME": str(shared / ".slotwise")}
    try:
        done = typed(texts, folder, tmp_path / "output.txt", **environ)
    finally:
        if folder != ROOT:
            typed(["slotwise stop || true"], folder, tmp_path / "stopped.txt", **environ)
    assert done.code == 0, done.printed[-1]


def test_each_page_begins_with_a_command_that_is_run() -> None:
    """Within its first screen; reference that a program writes is looked up, not read."""
    pages = {page.stem: page.read_text("utf-8").splitlines()[:FIRST_SCREEN] for page in (ROOT / "docs").glob("*.md")}
    assert {*PAGES, *FIRST, *LABORATORY, "ray", *ELSEWHERE, *REFERENCE} == {*pages}
    assert [name for name in (*PAGES, *FIRST, *LABORATORY) if not any(line.startswith("$ ") for line in pages[name])] == []
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())


def test_lines_are_compared_but_for_their_numbers() -> None:
    assert missing(['{"7": 0.93, ...'], '{"7": 0.941234, "9": 0.02}') == []
    assert missing(["digits: 2 of 2 READY"], "waiting\ndigits: 1 of 1 READY\n") == []
    assert missing(["digits: 2 of 2 READY", "..."], "mnist: 2 of 2 READY") == ["digits: 2 of 2 READY"]
    assert missing(["a", "b"], "b\na") == ["b"]
