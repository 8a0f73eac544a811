"""What a worker finds out about its server's limits: from `slotwise serve`, else from the server's own configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slotwise.worker.hosts.java.server_limits import (
    DEFAULT_RESPONSE_BYTES,
    DEFAULT_TIMEOUT_S,
    MMS_TIMEOUT_S,
    ServerLimits,
    limits_of,
)

PLAIN = SimpleNamespace()


def test_what_slotwise_serve_says_counts() -> None:
    environ = {"SLOTWISE_WORKER": '{"response_timeout_s": 7, "max_response_bytes": 70000}'}
    assert limits_of(PLAIN, environ) == ServerLimits(7.0, 70_000)


def test_a_models_own_config_is_nearer_than_the_servers() -> None:
    environ = {"SLOTWISE_WORKER": '{"response_timeout_s": 7}'}
    assert limits_of(SimpleNamespace(model_yaml_config={"responseTimeout": 3}), environ).response_timeout_s == 3.0
    for odd in ({"responseTimeout": "soon"}, ["x"], None):
        assert limits_of(SimpleNamespace(model_yaml_config=odd), {}).response_timeout_s == DEFAULT_TIMEOUT_S


def test_without_a_configuration_the_servers_defaults_hold(tmp_path: Path) -> None:
    assert limits_of(PLAIN, {}) == ServerLimits(DEFAULT_TIMEOUT_S, DEFAULT_RESPONSE_BYTES)
    assert limits_of(PLAIN, {"TS_CONFIG_FILE": str(tmp_path / "missing")}) == ServerLimits()


def configured(tmp_path: Path, text: str, server: str, **environ: str) -> ServerLimits:
    file = tmp_path / "config.properties"
    file.write_text(text)
    return limits_of(PLAIN, {"MMS_CONFIG_FILE" if server == "mms" else "TS_CONFIG_FILE": str(file), **environ}, server)


def test_a_key_without_a_value_does_not_hide_the_next_line(tmp_path: Path) -> None:
    """A server that is set to less than its default would end the worker for a longer answer, and with it the batch."""
    text = "load_models=\nmax_response_size=70000\ndefault_response_timeout :\n\n  # none\n vmargs\t=\t-Xmx1g\n"
    assert configured(tmp_path, text, "torchserve") == ServerLimits(DEFAULT_TIMEOUT_S, 70_000)


def test_mms_counts_minutes_or_has_a_key_for_seconds(tmp_path: Path) -> None:
    assert configured(tmp_path, "", "mms").response_timeout_s == MMS_TIMEOUT_S
    assert configured(tmp_path, "default_response_timeout=2", "mms").response_timeout_s == 120.0
    both = "default_response_timeout=2\ndefault_response_timeout_seconds=30\n"
    assert configured(tmp_path, both, "mms").response_timeout_s == 30.0
    assert configured(tmp_path, both.replace("30", "-1"), "mms").response_timeout_s == 120.0
    assert configured(tmp_path, both, "torchserve").response_timeout_s == 2.0


def test_variables_count_by_each_servers_own_names_where_the_file_says_so(tmp_path: Path) -> None:
    environ = {"TS_MAX_RESPONSE_SIZE": "7", "MMS_MAX_RESPONSE_SIZE": "8"}
    sizes = [
        configured(tmp_path, text, server, **environ).max_response_bytes
        for text in ("enable_envvars_config=true", "")
        for server in ("torchserve", "mms")
    ]
    assert sizes == [7, 8, DEFAULT_RESPONSE_BYTES, DEFAULT_RESPONSE_BYTES]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc to look at")
def test_the_configuration_is_the_one_that_the_server_was_started_with(tmp_path: Path) -> None:
    """As the servers start their workers: the file's name stands on the command line of a parent."""
    config = "# ours\ndefault_response_timeout=77\nmax_response_size = 655350000\nenable_envvars_config=true\n"
    (tmp_path / "config.properties").write_text(config)
    ask = "from slotwise.worker.hosts.java.server_limits import limits_of as f; print(f(None))"
    server = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    command = [sys.executable, "-c", server, ask, "-f", "config.properties"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("SLOTWISE", "TS_"))}
    environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.stdout.strip() == str(ServerLimits(77.0, 655_350_000)), done.stderr
    done = subprocess.run(command, cwd=tmp_path, env={**environ, "TS_MAX_RESPONSE_SIZE": "9"}, capture_output=True, text=True)
    assert done.stdout.strip() == str(ServerLimits(77.0, 9)), done.stderr


def test_where_no_process_can_be_looked_at_nobody_knows_what_leaves_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert limits_of(PLAIN, {}) == ServerLimits(DEFAULT_TIMEOUT_S, None)
    assert limits_of(PLAIN, {"SLOTWISE_WORKER": '{"max_response_bytes": 7}'}).max_response_bytes == 7
