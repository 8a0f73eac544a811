"""Triton's own model repository API: load and unload models, and see which ones serve."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx

from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.server.record import ServerRecord

LOAD_S = 900.0  # a large model with many instances, on a busy machine
START_S = 60.0
NOISE = re.compile(
    r"(load failed for model '[^']*': )?(version \d+ is at UNAVAILABLE state: )?(Internal: )?(TritonModelException: )?"
)


class TritonApi:
    """The API of one server. token: the one for management. Every call raises SlotwiseError with Triton's reason."""

    def __init__(self, record: ServerRecord, token: str) -> None:
        self.hint = f"see {record.state_dir / 'logs'}"
        headers = {"Authorization": f"Bearer {token}"}
        self.http = httpx.Client(base_url=record.inference_url, headers=headers, trust_env=False, timeout=LOAD_S)

    def load(self, model: str) -> None:
        """Load a model, or load it anew; returns when it serves."""
        self._call(f"/v2/repository/models/{model}/load")

    def unload(self, model: str) -> None:
        """Unload a model. Returns while it still answers what it has in hand."""
        self._call(f"/v2/repository/models/{model}/unload")

    def busy(self) -> set[str]:
        """The models that serve, or are still being unloaded."""
        return {one["name"] for one in self._call("/v2/repository/index") if one.get("state") in ("READY", "UNLOADING")}

    def wait_until_live(self, why_ended: Callable[[], str | None]) -> None:
        """Wait until the server answers. why_ended: its last words where it has ended, None while it runs."""
        deadline = time.monotonic() + START_S
        while True:
            problem = why_ended()
            if problem is not None:
                raise SlotwiseError(f"Triton ended: {problem}", self.hint)
            if time.monotonic() > deadline:
                raise SlotwiseError(f"Triton did not answer within {START_S:.0f} s", self.hint)
            try:
                if self.http.get("/v2/health/live").status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def _call(self, path: str) -> Any:
        try:
            response = self.http.post(path)
        except httpx.HTTPError as error:
            raise SlotwiseError(f"Triton does not answer: {error}", self.hint) from error
        try:
            answer = response.json() if response.content else {}
        except ValueError:
            answer = {"error": response.text}
        if response.status_code >= 400:
            reason = NOISE.sub("", str(answer.get("error", "")).partition("\n\nAt:")[0], count=1).strip().rstrip(";")
            raise SlotwiseError(reason or "Triton gave no reason", self.hint)
        return answer
