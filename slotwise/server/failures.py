"""Find out from a server's log why a model does not become ready."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotwise.server.lifecycle import ServerRecord

DEATHS = 2  # of each worker; the servers start a dying worker again and again, each time after a longer pause
SECOND_TRY = "No module named 'ts.torch_handler."  # TorchServe looks there for a handler that it could not import
DIED = "Backend worker process died"
RAISED = re.compile(r" - ((?:\w+\.)*\w*(?:Error|Exception|Exit)\b.*)")


class WorkerLog:
    """What the workers of one server printed since `mark` was last called."""

    def __init__(self, record: ServerRecord) -> None:
        self._path: Path = record.state_dir / "logs" / "model_log.log"
        self._from = 0
        self.mark()

    def mark(self) -> None:
        """Forget what was printed up to now."""
        self._from = self._path.stat().st_size if self._path.exists() else 0

    def failure(self, model: str, workers: int) -> str | None:
        """The last exception, once every worker has died twice while loading `model`; None before that.

        Where TorchServe only looked for the handler among its own, it is what kept that from being imported.
        """
        lines = self._lines(model)
        deaths = sum(DIED in line for line in lines)
        if deaths < DEATHS * max(1, workers):
            return None
        raised = [match[1] for match in map(RAISED.search, lines) if match]
        raised = [line for line in raised if SECOND_TRY not in line] or raised
        return raised[-1].strip() if raised else f"{deaths} workers died while loading it"

    def _lines(self, model: str) -> list[str]:
        """The log lines of this model's workers. Their threads: W-9000-NAME_VERSION-stdout, on MMS W-9000-NAME-stdout."""
        thread = re.compile(rf"\] W-(\d+-)?{re.escape(model)}([-_]\S*)?-std(out|err) ")
        try:
            with self._path.open("rb") as log:
                log.seek(self._from)
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if thread.search(line)]
