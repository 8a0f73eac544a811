"""What a worker's death writes can be run again, and decides the same again; it holds nothing of anybody's request."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from slotwise.backends.exchange import BackendRequest
from slotwise.backends.local import queue_history
from slotwise.backends.local.model_queue import ModelQueue
from slotwise.backends.local.queue_history import QueueHistory
from slotwise.backends.local.queue_members import BatchWorker
from tests.backends.simulation.bugs import ConvictedAtOnce, LostRequeue, NoBalance, SuspectsAmongOthers
from tests.backends.simulation.history import History
from tests.backends.simulation.recorded import again
from tests.backends.simulation.virtual_loop import run


class Written(ModelQueue):
    """Writes a history after each death."""

    folder: Path

    def ended(self, worker: BatchWorker) -> None:
        super().ended(worker)
        dispatcher = self.dispatcher
        about = {
            "batch_size": dispatcher.batch_size,
            "max_batch_delay_s": dispatcher.max_batch_delay_s,
            "response_timeout_s": self.response_timeout_s,
            "job_queue_size": dispatcher.job_queue_size,
            "linger": dispatcher.linger,
            "target_s": dispatcher.target_s,
        }
        kept = self.history.kept(self.open_requests, self.workers)
        queue_history.write(self.folder / f"{self.loop.time():012.6f}.jsonl", about, kept)


def histories(folder: Path, seed: int) -> list[Path]:
    """The files of one random history."""
    Written.folder = folder / str(seed)
    run(History(seed, Written).run(), seed)
    return sorted(Written.folder.glob("*.jsonl"))


def test_what_a_death_wrote_runs_again_and_decides_the_same(tmp_path: Path) -> None:
    files = [file for seed in range(6) for file in histories(tmp_path, seed)]
    results = {file: again(file) for file in files}
    assert {file: problems for file, (problems, _, _) in results.items() if problems} == {}
    then, same = sum(then for _, then, _ in results.values()), sum(same for _, _, same in results.values())
    assert len(files) > 15
    assert same == then > 0


def test_what_begins_in_the_middle_runs_again_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_history, "KEPT", 12)
    files = [file for seed in range(6) for file in histories(tmp_path, seed)]
    in_the_middle = [file for file in files if '"at": -' in file.read_text()]
    assert len(in_the_middle) > 5
    assert {file: problems for file in files if (problems := again(file)[0])} == {}


@pytest.mark.parametrize("bug", [LostRequeue, ConvictedAtOnce, SuspectsAmongOthers, NoBalance])
def test_a_bug_shows_when_a_history_runs_again(tmp_path: Path, bug: type[ModelQueue]) -> None:
    files = [file for seed in range(6) for file in histories(tmp_path, seed)]
    assert any(again(file, bug)[0] for file in files)


def test_a_file_holds_nothing_that_is_anybodys(tmp_path: Path) -> None:
    async def dies() -> None:
        queue = ModelQueue(4)
        worker = BatchWorker(lambda batch: None, lambda why: None)
        queue.joined(worker)
        request = BackendRequest(
            "secret-model", 100.0, "secret-id", "/secret", {"x-secret": "secret"}, b"secret", sender="secret-key"
        )
        waiting = asyncio.ensure_future(queue.answer(request))
        await asyncio.sleep(0.1)
        queue.ended(worker)
        queue_history.write(tmp_path / "all" / "one.jsonl", {}, queue.history.kept(queue.open_requests, queue.workers))
        waiting.cancel()

    run(dies(), 1)
    text = (tmp_path / "all" / "one.jsonl").read_text()
    assert "secret" not in text
    events = [json.loads(line) for line in text.splitlines()[1:]]
    assert [(event["event"], event.get("ids", event.get("id"))) for event in events] == [
        ("joined", None),
        ("arrived", 1),
        ("sent", [1]),
        ("died", [1]),
        ("requeued", 1),
    ]
    assert (events[1]["bytes"], events[1]["sender"], events[1]["left_s"]) == (6, 1, 100.0)


def test_only_so_many_files_are_kept(tmp_path: Path) -> None:
    for i in range(queue_history.FILES + 3):
        queue_history.write(tmp_path / f"{i:03}.jsonl", {}, QueueHistory().kept([], []))
    assert [file.name for file in sorted(tmp_path.iterdir())] == [f"{i:03}.jsonl" for i in range(3, queue_history.FILES + 3)]


def test_a_disk_that_takes_nothing_ends_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    queue_history.write(tmp_path / "file" / "one.jsonl", {}, QueueHistory().kept([], []))
    assert "cannot be written" in caplog.text
