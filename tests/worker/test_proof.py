"""The proof at a worker's start: which verdict holds, when it is found anew, and what follows for the rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch

from slotwise.worker import BatchHandler, Request, Settings
from slotwise.worker.engines import samples
from slotwise.worker.padding import pad_sequences
from slotwise.worker.separability.about import identity
from slotwise.worker.separability.proof import caller, keep_rows_apart, kept, proven, settled
from slotwise.worker.separability.verdict import Verdict

CALLS: WeakKeyDictionary[Counting, int] = WeakKeyDictionary()  # beside the handlers, where each call undoes the one before


class Counting(BatchHandler):
    """Doubles its rows, and counts how often it was called."""

    def __init__(self, mixes: bool = False, item: Any = np.zeros(4, np.float32), **changes: Any) -> None:
        self.settings = Settings(batch_size=8, proof_s=5.0).but(**changes)
        self.engine: Callable[[Any], Any] = self.run
        self.mixes, self.item = mixes, item
        CALLS[self] = 0

    @property
    def calls(self) -> int:
        return CALLS[self]

    def run(self, x: Any) -> Any:
        CALLS[self] += 1
        return 2 * x - (x.max() if self.mixes else 0)

    def example(self) -> Any:
        return self.item


def settle(handler: BatchHandler, folder: Path) -> Verdict:
    return settled(handler, caller(handler), folder)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An extracted archive, as far as a verdict asks for one."""
    (tmp_path / "MAR-INF").mkdir()
    (tmp_path / "MAR-INF" / "DIGESTS.json").write_text("{}", "utf-8")
    (tmp_path / "slotwise.json").write_text('{"model": {}, "profiles": {}}', "utf-8")
    return tmp_path


def carry(archive: Path, *verdicts: Any) -> None:
    (archive / "slotwise.json").write_text(json.dumps({"model": {}, "profiles": {}, "separability": list(verdicts)}), "utf-8")


def test_a_start_takes_over_the_verdict_that_the_archive_carries(archive: Path) -> None:
    handler = Counting()
    carried = Verdict(True, sizes=(2, 3, 4, 8), about=identity(handler, archive))
    carry(archive, "nonsense", carried.to_json())
    assert settle(handler, archive) == carried
    assert handler.calls == 0
    assert not (archive / ".separability.json").exists()


@pytest.mark.parametrize("other", [{"engine": "x"}, {"version": "numpy 0.1"}, {"processor": "another"}])
def test_a_verdict_about_another_engine_version_or_processor_does_not_count(archive: Path, other: dict[str, str]) -> None:
    handler = Counting(mixes=True)
    carry(archive, Verdict(True, sizes=(2, 8), about=replace(identity(handler, archive), **other)).to_json())
    assert settle(handler, archive).separable is False


def test_the_next_worker_finds_what_the_first_has_proven(archive: Path) -> None:
    first, second = Counting(mixes=True), Counting(mixes=True)
    assert settle(first, archive) == settle(second, archive)
    assert (first.calls > 5, second.calls) == (True, 0)
    (archive / "MAR-INF" / "DIGESTS.json").write_text('{"other": 1}', "utf-8")
    settle(second, archive)
    assert second.calls > 5, "another archive in the same folder"


class MixesThree(Counting):
    """Mixes rows where there are three and more."""

    def run(self, x: Any) -> Any:
        return super().run(x) - (x[-1] if len(x) > 2 else 0)


def test_what_was_proven_in_smaller_batches_is_tried_anew(archive: Path) -> None:
    assert settle(MixesThree(batch_size=2), archive).separable is True
    found = settle(MixesThree(batch_size=8), archive)
    assert (found.separable, found.cause) == (False, "mixes rows: a batch of 3, all kinds of mates")
    again = Counting(batch_size=2)
    assert settle(again, archive).sizes == (2,)
    assert again.calls == 0, "what was left for small batches is still there"


def test_what_the_archive_carries_counts_where_batches_as_large_were_tried(archive: Path) -> None:
    about = identity(MixesThree(), archive)
    carry(archive, Verdict(True, sizes=(2,), about=about).to_json())
    assert settle(MixesThree(batch_size=8), archive).separable is False
    large = Verdict(True, sizes=(2, 3, 4, 8, 16), about=about)
    carry(archive, large.to_json())
    for size in (8, 12, 64):
        assert settle(MixesThree(batch_size=size), archive) == large, "larger batches run the same kernels"
    for short in (Verdict(None, "no time", 4, about=about), Verdict(False, "mixes rows", 1, about=about)):
        carry(archive, short.to_json())
        assert settle(MixesThree(batch_size=16), archive) == short, "no more rows run at once than it says"


def test_items_with_lengths_are_tried_among_mates_where_there_is_room_for_them(archive: Path) -> None:
    class Lengths(MixesThree):
        def collate(self, items: list[Any]) -> Any:
            return np.array([[len(item), sum(item)] for item in items], np.float32)

    assert settle(Lengths(item=[5, 9, 11], batch_size=2), archive).cause == "there are no mates to try"
    assert settle(Lengths(item=[5, 9, 11], batch_size=8), archive).separable is False


class Mean(Counting):
    """The mean of each row's tokens and of its padding."""

    pads, most_tokens, alike = True, 99, False

    def groups(self, items: Any) -> list[list[int]]:
        return [[i] for i in range(len(items))] if self.alike else super().groups(items)

    def collate(self, items: list[Any]) -> Any:
        if max(map(len, items)) > self.most_tokens:
            raise ValueError("too long")
        return pad_sequences(items, 0)

    def predict(self, inputs: Any) -> Any:
        ids, mask = inputs
        return ids.sum(1, keepdims=True) / (np.float32(ids.shape[1]) if self.pads else mask.sum(1, keepdims=True))


def test_a_network_that_forgets_the_mask_gets_each_row_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mean = Mean(item=[5, 9, 11, 4])
    found = keep_rows_apart(mean, tmp_path)
    assert (found.separable, mean.max_rows) == (False, 1)
    assert "padding changes a row: a number moves by 3.6e+00 beside a longer one: rows run one by one" in caplog.text
    with pytest.raises(ValueError, match="requires that rows are kept apart: padding changes a row"):
        settle(Mean(item=[5, 9, 11, 4], model={"separable": "required"}), tmp_path)
    masked = Mean(item=[5, 9, 11, 4])
    masked.pads = False
    assert settle(masked, tmp_path).separable is True


def test_where_the_model_takes_none_that_is_longer_a_shorter_one_is_beside_the_row(tmp_path: Path) -> None:
    for pads in (True, False):
        mean = Mean(item=[5, 9, 11, 4])
        mean.most_tokens, mean.pads = 4, pads
        assert settle(mean, tmp_path).separable is not pads
    short = Mean(item=[5])
    short.most_tokens = 1
    assert settle(short, tmp_path).cause == "there are no mates to try"


def test_padding_is_no_matter_where_no_two_lengths_run_together(tmp_path: Path) -> None:
    mean = Mean(item=[5, 9, 11, 4])
    mean.alike = True
    assert settle(mean, tmp_path).separable is True


def test_an_engine_that_rounds_to_bf16_may_move_a_row_farther(tmp_path: Path) -> None:
    class Rounding(Mean):
        def predict(self, inputs: Any) -> Any:
            return inputs[0].max(1, keepdims=True) * (1 + 0.05 * (inputs[0].shape[1] > 4))

    found = {one: settle(Rounding(item=[5, 9, 11, 4], precision=one), tmp_path).separable for one in ("fp32", "auto", "bf16")}
    assert found == {"fp32": False, "auto": False, "bf16": True}


def test_a_verdict_of_a_release_that_did_not_look_at_padding_is_found_anew(archive: Path) -> None:
    mean = Mean(item=[5, 9, 11, 4])
    carry(archive, Verdict(True, sizes=(3, 4, 8), about=identity(mean, archive)).to_json())
    assert settle(mean, archive).separable is False


def test_of_an_earlier_proof_only_that_rows_run_one_by_one_is_taken_over(archive: Path) -> None:
    about = identity(Counting(), archive)
    believed = Verdict(True, sizes=(2, 3, 4, 8), about=about).to_json()
    del believed["proof"]  # as an archive of an earlier release has it, with today's worker in it
    for old in (believed, Verdict(None, "there are no mates to try", about=about, proof=1).to_json()):
        carry(archive, old)
        assert settle(Counting(mixes=True), archive).separable is False
    (archive / ".separability.json").unlink()
    for known in (Verdict(False, "mixes rows", 1, about=about, proof=1), Verdict(None, "it ends the worker", proof=1)):
        carry(archive, known.to_json())
        assert settle(Counting(), archive) == replace(known, most_rows=1)


def mixing(x: Any) -> Any:
    """A batch norm that was left in train mode."""
    return torch.as_tensor(x) - torch.as_tensor(x).mean(0)


@pytest.mark.parametrize("rows", [list, lambda x: [{"box": row} for row in x], lambda x: [{"box": [row]} for row in x]])
def test_tensors_in_a_list_are_looked_into(tmp_path: Path, rows: Callable[[Any], Any]) -> None:
    class Listing(Counting):
        def predict(self, inputs: Any) -> Any:
            return rows(self.engine(inputs))

    handler = Listing()
    handler.engine = mixing
    assert settle(handler, tmp_path).cause == "mixes rows: a batch of 2, loud mates"
    handler.engine = lambda x: 2 * torch.as_tensor(x)
    assert settle(handler, tmp_path).separable is True


def filled_by_the_mean(x: Any) -> Any:
    there = ~np.isnan(x)
    return np.where(there, x, (np.where(there, x, 0).sum(0) + 0.5) / np.maximum(there.sum(0), 1))


def filled_by_the_mean_or_no_number(x: Any) -> Any:
    there = ~np.isnan(x)
    return np.where(there, x, np.where(there, x, 0).sum(0) if there.any() else np.nan)


def filled_by_the_mean_or_refused(x: Any) -> Any:
    if np.isnan(filled := filled_by_the_mean_or_no_number(x)).any():
        raise ValueError("Input contains NaN")
    return filled


def filled_by_the_row_before(x: Any) -> Any:
    for i in range(1, len(x)):
        x[i] = np.where(np.isnan(x[i]), x[i - 1], x[i])
    return np.nan_to_num(x)


FILLS = [filled_by_the_mean, filled_by_the_mean_or_no_number, filled_by_the_mean_or_refused, filled_by_the_row_before]


@pytest.mark.parametrize("fills", FILLS)
def test_what_is_missing_in_a_row_is_not_made_of_its_mates(tmp_path: Path, fills: Callable[[Any], Any]) -> None:
    handler = Counting()
    handler.engine = fills
    verdict = settle(handler, tmp_path)
    assert (verdict.separable, verdict.most_rows) == (False, 1)
    assert verdict.cause == "mixes rows: what is missing in one is made of others"


@pytest.mark.parametrize("number", [2, 2.5])
def test_none_in_a_row_is_not_made_of_its_mates(tmp_path: Path, number: float) -> None:
    class Records(Counting):
        def collate(self, items: list[Any]) -> Any:
            return items

        def run(self, x: Any) -> Any:
            known = [item["x"] for item in x if item["x"] is not None]
            return [sum(known) / max(len(known), 1) if item["x"] is None else item["x"] for item in x]

    assert settle(Records(item={"x": number}), tmp_path).separable is False


@pytest.mark.parametrize("item", [np.zeros(4, np.float32), {"x": [0.5, 1.0], "y": 2.0}])
def test_one_that_has_no_numbers_may_be_answered_or_refused(tmp_path: Path, item: Any) -> None:
    for engine in (np.nan_to_num, lambda x: x):
        handler = Counting(item=item)
        handler.engine = (lambda x: x) if isinstance(item, dict) else engine
        handler.collate = list if isinstance(item, dict) else np.stack  # type: ignore[method-assign]
        assert settle(handler, tmp_path).separable is True


def test_which_error_a_missing_number_makes_decides_nothing(tmp_path: Path) -> None:
    """A table of nothing but None holds objects, one of None and numbers NaN, as pandas has it."""

    class Table(Counting):
        def collate(self, items: list[Any]) -> Any:
            column = [item["x"] for item in items]
            return np.array(column, object if set(column) == {None} else np.float64)

        def run(self, x: Any) -> Any:
            return x * 2

    assert settle(Table(item={"x": 2.5}), tmp_path).separable is True


def test_whole_numbers_of_one_axis_go_in_batches_where_two_lengths_do_not(tmp_path: Path) -> None:
    verdict = settle(Counting(item=np.array([3, 1, 2])), tmp_path)
    assert (verdict.separable, verdict.most_rows) == (None, 0)  # of no mate the numbers are larger


def test_an_example_is_read_as_requests_are(tmp_path: Path) -> None:
    class Reading(Counting):
        """Has no `decode`, and one array for all requests."""

        filled = np.zeros(2, np.float32)

        def read(self, request: Request) -> list[Any]:
            self.filled[:] = json.loads(request.body)
            return [self.filled]

    (tmp_path / "examples").mkdir()
    for name in ("1.json", "2.json"):
        (tmp_path / "examples" / name).write_text(f"[{name[0]}, 7]", "utf-8")
    assert [item.tolist() for item in samples.examples(tmp_path, Reading())] == [[1, 7], [2, 7]]
    assert settle(Reading(mixes=True, item=None), tmp_path).separable is False


def test_who_ends_all_rows_with_the_first_that_ends_is_seen_by_another_example(tmp_path: Path) -> None:
    class EndsTogether(Counting):
        def run(self, x: Any) -> Any:
            steps = min(1 if text.startswith("a") else 3 for text in x)
            return [text[0] * steps for text in x]

        def read(self, request: Request) -> list[Any]:
            return [request.body.decode()]

        def collate(self, items: list[Any]) -> Any:
            return items

    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "0.txt").write_text("a text", "utf-8")
    assert settle(EndsTogether(), tmp_path).separable is True
    (tmp_path / "examples" / "1.txt").write_text("the other", "utf-8")
    verdict = settle(EndsTogether(), tmp_path)
    assert (verdict.separable, verdict.most_rows, verdict.cause) == (
        False,
        1,
        "mixes rows: a batch of 2, the other example's mates",
    )


def test_a_read_only_folder_is_proven_each_time_and_nothing_is_written(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "write_text", refuse)
    for _ in range(2):
        handler = Counting()
        assert settle(handler, archive).separable is True
        assert handler.calls > 5
    assert not (archive / ".separability.json").exists()


def test_without_digests_nothing_is_kept(tmp_path: Path) -> None:
    assert settle(Counting(), tmp_path).separable is True
    assert list(tmp_path.iterdir()) == []


def test_what_mixes_rows_runs_one_by_one_and_one_warning_says_why_and_what_it_costs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        verdict = settle(Counting(mixes=True), tmp_path)
    assert (verdict.separable, verdict.most_rows) == (False, 1)
    assert len(caplog.messages) == 1
    assert "mixes rows: a batch of 2, loud mates: rows run one by one, so that a batch of 8 takes 8 calls" in caplog.messages[0]


def test_where_the_time_is_too_short_no_larger_batch_runs_than_was_proven(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    handler = Counting()
    attempt = caller(handler)

    def slow(items: list[Any], size: int) -> list[Any]:
        now[0] += 0.1 * size
        return attempt(items, size)

    verdict = settled(handler, slow, tmp_path, clock=lambda: now[0])
    assert (verdict.separable, verdict.cause, verdict.most_rows) == (None, "there was no time for batches of 8", 4)
    assert "at most 4 at once, so that a batch of 8 takes 2 calls" in caplog.text
    assert now[0] < 5.0


def test_a_required_proof_refuses_to_start_without_one(tmp_path: Path) -> None:
    required = {"model": {"separable": "required"}}
    assert settle(Counting(**required), tmp_path).separable is True
    with pytest.raises(ValueError, match=r"requires that rows are kept apart: mixes rows: a batch of 2, loud mates \(method "):
        settle(Counting(mixes=True, **required), tmp_path)
    with pytest.raises(ValueError, match=r"requires .*: there is no example to try it with"):
        settle(Counting(item=None, **required), tmp_path)
    with pytest.raises(ValueError, match=r"requires .*: there was no time"):
        settle(Counting(proof_s=0.0, **required), tmp_path)


def test_what_cannot_be_tried_runs_in_batches_and_the_log_says_that_nothing_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    verdict = settle(Counting(item=None), tmp_path)
    assert (verdict.separable, verdict.most_rows) == (None, 0)
    assert "nobody knows whether a row's answer depends on its mates: there is no example to try it with" in caplog.text


def test_rows_that_run_alone_anyway_and_starts_that_ask_for_no_proof_run_nothing(tmp_path: Path) -> None:
    for handler in (Counting(batch_size=1), Counting(proof_s=0.0)):
        assert settle(handler, tmp_path).most_rows == 0
        assert handler.calls == 0


def test_a_hook_that_fails_proves_nothing_and_the_next_start_tries_again(archive: Path) -> None:
    class Broken(Counting):
        def example(self) -> Any:
            raise KeyError("no")

    verdict = settle(Broken(), archive)
    assert (verdict.cause, verdict.most_rows) == ("the handler's hooks fail: KeyError", 1)
    assert settle(Counting(), archive).separable is True
    carry(archive, verdict.to_json())
    (archive / ".separability.json").unlink()
    assert settle(Counting(mixes=True), archive).separable is False, "a build's failure is no verdict either"


def test_every_size_is_looked_at_where_it_is_asked_for(tmp_path: Path) -> None:
    handler = Counting()
    attempt = caller(handler)
    assert proven(handler, attempt, tmp_path, 8, 5.0, thorough=True).same_bits == 8
    assert proven(handler, attempt, tmp_path, 8, 5.0).same_bits == 4
    assert proven(handler, attempt, tmp_path, 64, 5.0).sizes == (2, 3, 4, 8, 16)


def test_an_engine_of_the_authors_own_is_known_by_all_that_may_compute_for_it(tmp_path: Path) -> None:
    handler = Counting()
    assert "numpy " in identity(handler, tmp_path).version
    handler.engine = type("Onnx", (), {"name": "onnxruntime", "precision": "fp32", "device": "cpu"})()
    about = identity(handler, tmp_path)
    assert about.engine == "onnxruntime fp32 cpu"
    assert about.version.startswith("onnxruntime ")
    assert kept(Path("nowhere"), about, 8) is None
