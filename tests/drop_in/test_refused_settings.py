"""What would change answers and is not there is refused by one line, by its name, at the start and when it is registered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drop_in.stores import archive
from tests.support.deployments import OURS, deployed
from tests.support.waiting import until

REFUSED = {
    "parallelType": "minWorkers: 1\nparallelType: pp\nparallelLevel: 2\n",
    "continuousBatching": "minWorkers: 1\ncontinuousBatching: true\n",
}


@pytest.mark.parametrize("option", [(), ("--no-guard",)], ids=["guarded", "bare"])
def test_each_is_one_line_by_its_name(tmp_path: Path, option: tuple[str, ...]) -> None:
    store = tmp_path / "store"
    for key, text in REFUSED.items():
        (tmp_path / "model-config.yaml").write_text(text)
        archive(store, key, "echo", config_file=tmp_path / "model-config.yaml")
    archive(store, "echo", "echo")
    lines = ("default_workers_per_model=1",)
    with deployed(OURS, tmp_path / "d", store, lines, ("--ncs", "--enable-model-api", "--models", "all", *option)) as running:
        running.wait_ready("echo")
        until(lambda: "Model server started." in running.printed(), "it does not load all of them")  # one comes after echo
        for key in REFUSED:
            (line,) = [line for line in running.printed().splitlines() if f"Failed to load model: {key}.mar" in line]
            refused = running.call("POST", "/models", url=f"{key}.mar")
            message = str(refused.json()["message"])
            assert (refused.status_code, "\n" in message) == (400, False)
            assert f"its config has {key}: " in message
            assert line.endswith(message)
            assert ("cannot be guarded" in message) == (not option)
        assert [one["modelName"] for one in running.call("GET", "/models").json()["models"]] == ["echo"]
