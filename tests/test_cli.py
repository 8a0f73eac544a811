"""The command line as a whole: help everywhere, quick, and errors in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

from slotwise.cli import build_app

ROOT = Path(__file__).resolve().parent.parent


def commands(group: click.Command | None = None, name: str = "") -> dict[str, click.Command]:
    """Every command by its full name, those of sub-groups too."""
    group = group or typer.main.get_command(build_app())
    subcommands = getattr(group, "commands", None)
    if subcommands is None:
        return {name: group}
    return {full: c for key, sub in subcommands.items() for full, c in commands(sub, f"{name} {key}".strip()).items()}


def run(*args: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slotwise.cli", *args], capture_output=True, text=True, cwd=cwd, timeout=120, check=False
    )


def test_every_command_and_option_has_help() -> None:
    found = commands()
    assert found
    for name, command in found.items():
        assert command.help, f"slotwise {name} has no help"
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert parameter.help, f"slotwise {name} {parameter.opts} has no help"


def test_the_documented_commands_exist() -> None:
    wanted = {
        *("build", "inspect", "check", "new", "train", "serve", "stop", "register", "unregister", "scale", "list", "describe"),
        *("ready", "apply", "drift", "token", "java-home", "predict", "demo", "bench", "tune", "roofline", "gateway"),
        *("profile list", "profile show", "profile render"),
    }
    assert wanted <= set(commands())


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    done = subprocess.run([sys.executable, "scripts/commands.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_command_is_on_the_page() -> None:
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    assert [name for name in commands() if f" slotwise {name}\n" not in page] == []


@pytest.mark.parametrize("handed", ["no JSON", "5", "[" * 100_000, '{"port": {"a": 1}}'])
def test_what_a_gateway_is_handed_by_somebody_else_is_refused_in_one_line(handed: str) -> None:
    done = run("gateway", "--options", handed)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Invalid value for '--" in done.stderr


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from slotwise.cli import build_app; import typer; typer.main.get_command(build_app());"
        "print([m for m in ('torch', 'numpy', 'pydantic', 'httpx', 'fastapi', 'optuna', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "args",
    [
        ("build", "no-such-model"),
        ("inspect", "no-such.mar"),
        ("serve", "no-such-model"),
        ("serve", "digits", "--set", "batch_sise=8"),
        ("serve", "digits", "--profile", "no-such-profile"),
        ("describe", "digits", "--name", "nobody"),
        ("profile", "show", "no-such-profile"),
    ],
)
def test_bad_input_is_one_line_a_hint_and_exit_code_1(args: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*args, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith(("error: ", "hint: "))]
    assert [line.split(":")[0] for line in lines] == ["error", "hint"]


@pytest.mark.parametrize("server", ["torchserve", "mms", "triton"])
@pytest.mark.parametrize("option", [("--remember", "10"), ("--access-log", "json")])
def test_an_option_that_the_server_would_not_notice_is_refused(server: str, option: tuple[str, str], tmp_path: Path) -> None:
    done = run("serve", "no-such-model", "--server", server, *option, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        [
            f"error: {option[0]} is for --server slotwise or ray: {server} does not have it",
            f"hint: `slotwise gateway {' '.join(option)}` does it in front of {server}",
        ],
    )


@pytest.mark.parametrize("server", ["torchserve", "mms"])
def test_javas_servers_are_not_asked_for_logs_as_json(server: str, tmp_path: Path) -> None:
    done = run("serve", "no-such-model", "--server", server, "--log-format", "json", cwd=tmp_path)
    assert done.returncode == 1
    assert f"error: --log-format json is not for {server}" in done.stderr


@pytest.mark.parametrize(
    ("who", "package", "requirement", "args"),
    [
        ("this command", "optuna", '"slotwise[tune]"', ("tune", "digits")),
        ("slotwise gateway", "uvicorn", "slotwise", ("gateway",)),
    ],
)
def test_a_package_that_is_not_installed_is_one_line_and_a_hint(
    who: str, package: str, requirement: str, args: tuple[str, ...]
) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; sys.argv[1:] = {args!r}; from slotwise.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: {who} needs the Python package {package}",
        f"hint: {sys.executable} -m pip install {requirement}",
    ]


def test_a_file_that_cannot_be_written_is_one_line() -> None:
    done = run("new", "/proc/mine")
    assert done.returncode == 1
    assert done.stderr.startswith("error: /proc/mine cannot be written, and was removed: [Errno 2] No such file or directory")


def test_where_the_verdicts_cannot_be_written_nothing_is_checked(tmp_path: Path) -> None:
    done = run("check", "nosuch.mar", "--junit", "nowhere/out.xml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[0] == "error: nowhere/out.xml cannot be written: there is no folder nowhere"


def test_what_is_to_be_typed_next_can_be_typed_as_it_is(tmp_path: Path) -> None:
    done = run("new", "my models/stream", "--kind", "stream", cwd=tmp_path)
    assert done.stdout.splitlines()[-1].startswith("next: slotwise build 'my models/stream' && ")


@pytest.mark.parametrize("words", ["list", "build digits", "key add anna", "profile list"])
def test_a_folder_that_is_gone_is_one_line(words: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    environ = {name: value for name, value in os.environ.items() if name != "SLOTWISE_HOME"}
    script = f'rmdir "$PWD"; exec "{sys.executable}" -P -m slotwise.cli {words}'
    done = subprocess.run(["sh", "-c", script], cwd=gone, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if "getcwd" not in line] == [
        "error: the folder that this was started in is not there any more",
        "hint: go to another one, or name it with --home",
    ]


def test_wrong_usage_is_exit_code_2() -> None:
    assert run("serve", "--no-such-option").returncode == 2
