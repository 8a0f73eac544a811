"""Decide when a worker starts how many rows may run at once: those that were proven to be kept apart (two_batches.py).

A build proves every engine that it finds, and the archive carries the verdicts in slotwise.json. A start takes over the one
about its own engine, version and processor, if it was proven in batches as large as its own. Where there is none it proves
again, for `proof_s` seconds at most, and leaves the verdict beside the extracted archive for the next worker with batches of
that size; in a read-only folder every worker proves for itself.

What mixes rows runs row by row, and so does what is not deterministic. Where the time was too short, no larger batches run than
were proven. Where there is nothing to prove it with, batches run, and the log says that nothing is known. Where trying fails,
rows run one by one until a start finds out more.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from functools import reduce
from pathlib import Path
from typing import Any

from slotwise.worker.batch import Row
from slotwise.worker.engines import samples
from slotwise.worker.engines.choice import key_of, recall, remember
from slotwise.worker.environment.digests import content
from slotwise.worker.environment.settings import json_object
from slotwise.worker.familiar.own_state import kept_by
from slotwise.worker.handler import BatchHandler
from slotwise.worker.hooks import Hooks
from slotwise.worker.padding import Padding
from slotwise.worker.separability.about import NOBODY, About, identity
from slotwise.worker.separability.bits import bits
from slotwise.worker.separability.lengths import Pair, with_lengths
from slotwise.worker.separability.mates import Company, company, unvaried, without_numbers
from slotwise.worker.separability.same_bytes import padded, same_bytes
from slotwise.worker.separability.two_batches import PADDING, PADDING_ROUNDED, Attempt, fills_up, prove, within
from slotwise.worker.separability.verdict import PROOF, Verdict

logger = logging.getLogger(__name__)

SETTINGS, KEY = "slotwise.json", "separability"
FILE = ".separability.json"
SIZES = (2, 3, 4, 8, 16)  # larger batches run the same kernels
ROWS = ("ordinary", "tiny")  # further rows to try
FAILED = "the handler's hooks fail"  # how such a cause begins: another start may find out more


def keep_rows_apart(handler: BatchHandler, model_dir: Path) -> Verdict:
    """Run no more rows of this handler at once than are known to keep apart: sets its `max_rows` and its padding.

    Its engine is loaded.
    """
    verdict, settings = settled(handler, caller(handler), model_dir), handler.settings
    requested = Padding(settings.padding, handler.max_rows or settings.batch_size)
    padding = padded(verdict, requested, settings.deterministic)
    if padding.max_rows < requested.max_rows:
        vars(handler)["max_rows"] = padding.max_rows  # of this handler, not of its class
    if padding.kind != requested.kind:
        handler.settings = settings.but(padding=padding.kind)
    return verdict


def caller(handler: BatchHandler) -> Attempt:
    """What runs its model once on a list of items, with nothing kept of earlier ones: outputs, or the row's SlotError."""
    hooks = Hooks(handler, handler.settings.max_response_bytes)

    def attempt(items: list[Any], size: int) -> list[Any]:
        rows = [Row(0, item) for item in items]
        hooks.attempt(rows, size)
        return [row.output if row.error is None else row.error.error() for row in rows]

    return kept_by(handler).each_time(attempt)


def settled(handler: BatchHandler, attempt: Attempt, model_dir: Path, clock: Callable[[], float] = time.monotonic) -> Verdict:
    """What is known of this handler's engine, which is loaded; where nothing is, it is proven now.

    Says once in the log what is not separable, and what that costs. Raises ValueError where the archive requires a proof and
    there is none.
    """
    settings = handler.settings
    most = handler.max_rows or settings.batch_size
    separable = settings.model.get("separable", "auto")
    if most == 1 or (not settings.proof_s and separable != "required" and not settings.deterministic):
        return Verdict(None, "a batch has one row" if most == 1 else "it was not tried")
    if settings.deterministic:  # the number of threads counts, too, so no other worker's verdict is taken over
        return same_bytes(proven(handler, attempt, model_dir, most, settings.proof_s, thorough=True, clock=clock), most)
    about = identity(handler, model_dir)
    verdict = kept(model_dir, about, most)
    if verdict is None:
        verdict = proven(handler, attempt, model_dir, most, settings.proof_s, clock=clock)
        if not verdict.cause.startswith(FAILED):
            _keep(model_dir, about, most, verdict)
    _report(verdict, most, separable)
    return verdict


def kept(model_dir: Path, about: About, most: int) -> Verdict | None:
    """The verdict about this engine that the archive carries, or that an earlier worker left. None where there is neither.

    most: rows of a batch. One about nobody's engine says that none shall be tried: then rows run one by one.
    """
    verdicts = [one for one in carried(json_object(model_dir / SETTINGS)) if holds_for(one, most)]
    if left_here := recall(model_dir / FILE, _key(model_dir, about, most)):
        verdicts += carried({KEY: [left_here]})
    verdict = next((one for subject in (about, NOBODY) for one in verdicts if one.about == subject), None)
    return replace(verdict, most_rows=1) if verdict is not None and verdict.about == NOBODY else verdict


def holds_for(verdict: Verdict, most: int) -> bool:
    """Whether it holds for batches of `most` rows: what keeps rows apart may mix them in larger ones than were tried.

    Of a proof that took for kept apart what mixes rows nothing holds but that rows run one by one, or that none shall be tried.
    """
    if verdict.cause.startswith(FAILED):
        return False
    if verdict.proof < PROOF:
        return verdict.most_rows == 1 or verdict.about == NOBODY
    return not verdict.separable or (2 in verdict.sizes and max(verdict.sizes) >= _largest(most))


def carried(settings: Mapping[str, Any]) -> list[Verdict]:
    """The verdicts in an archive's slotwise.json."""
    verdicts = []
    listed = settings.get(KEY, [])
    for data in listed if isinstance(listed, list) else []:
        try:
            verdicts.append(Verdict.from_json(data))
        except ValueError:
            logger.warning("slotwise.json holds a verdict that cannot be read")
    return verdicts


def proven(
    handler: BatchHandler,
    attempt: Attempt,
    model_dir: Path,
    most: int,
    budget_s: float,
    *,
    thorough: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Verdict:
    """Try it: what is found out about this handler's engine, in batches of up to `most` rows.

    thorough: also look at every size whether its bits are those of the row alone, and with more rows than one, because of one
    row a softmax may hide which bits its logits had.
    """
    stop_at = clock() + budget_s
    tried = sorted({size for size in SIZES if size < most} | {most if thorough else _largest(most)})
    copies = range(2, tried[-1] + 1) if thorough and most <= SIZES[-1] else ()
    verdict = Verdict(None, "there is no example to try it with")

    def among(company: Company, row: Any, sizes: Sequence[int], copies: Sequence[int] = ()) -> Verdict:
        return prove(
            attempt,
            row,
            company.mates,
            sizes,
            copies=copies,
            longest=company.longest,
            tolerance=_tolerance(handler, row, company.longest),
            agree=within(rounding(handler)),
            settling=getattr(handler.engine, "warm_up_runs", 1),
            budget_s=stop_at - clock(),
            clock=clock,
        )

    try:
        if (whole := company(model_dir, handler)) is not None:
            whole = _joining(handler, attempt, with_lengths(_taken(attempt, whole), _pair(handler, attempt)))
            same_in_all = unvaried(whole, lambda mate: _takes(attempt, whole.row, mate))
            rows = [whole.row, *([whole.mates[kind] for kind in ROWS if kind in whole.mates] if thorough else [])]
            verdict = reduce(Verdict.both, [among(whole, row, tried, copies) for row in rows])
            if verdict.separable and (turned := _turned(handler, model_dir, whole)) is not None:
                other = among(turned, turned.row, (2,) if turned.longest is None else (3,))
                verdict = verdict.both(other) if other.separable is False else verdict
            if verdict.separable and any(_fills_up(handler, attempt, whole.row, empty) for empty in without_numbers(whole.row)):
                verdict = replace(
                    verdict, separable=False, cause="mixes rows: what is missing in one is made of others", most_rows=1
                )
            if same_in_all and verdict.separable:
                cause = f"a part of its items ({same_in_all}) is the same in all mates"
                verdict = replace(verdict, separable=None, cause=cause)
    except Exception as error:
        logger.warning("the handler's hooks make nothing to try", exc_info=True)
        verdict = Verdict(None, f"{FAILED}: {type(error).__name__}", most_rows=1)
    return replace(verdict, about=identity(handler, model_dir))


def _largest(most: int) -> int:  # the largest batch that is tried where up to `most` rows run at once
    return min(most, SIZES[-1])


def _taken(attempt: Attempt, whole: Company) -> Company:
    """The company without a longest that the model refuses: then the row is the longest, and what is shorter the row."""
    if whole.longest is None or _takes(attempt, whole.longest):
        return whole
    mates = dict(whole.mates)
    if (shorter := mates.pop("shorter", None)) is None or not mates or not _takes(attempt, shorter):
        return replace(whole, longest=None)
    return Company(shorter, mates, whole.row)


def _joining(handler: BatchHandler, attempt: Attempt, whole: Company) -> Company:
    """The company without those whom the model refuses beside the row, and who are never in a batch with it."""

    def joins(mate: Any) -> bool:
        return _together(handler, whole.row, mate) or _takes(attempt, whole.row, mate)

    mates, longest = {kind: mate for kind, mate in whole.mates.items() if joins(mate)}, whole.longest
    if longest is not None and not _takes(attempt, longest, whole.row) and ("zero" in mates or not joins(longest)):
        whole, longest = replace(whole, same="whole numbers" if joins(longest) else ""), None  # two lengths fail together
    return replace(whole, mates=mates, longest=longest)


def _turned(handler: BatchHandler, model_dir: Path, whole: Company) -> Company | None:
    """Another example as the row, and the row as its mate: the one may end a batch's decoding before the other has ended."""
    others = (one for one in samples.examples(model_dir, handler) if bits(one) != bits(whole.row))
    if (other := next(others, None)) is None or not _together(handler, other, whole.row):
        return None
    longest = whole.longest if whole.longest is not None and _together(handler, whole.longest, other) else None
    return Company(other, {"the other example's": whole.row}, longest)


def _fills_up(handler: BatchHandler, attempt: Attempt, row: Any, empty: Any) -> bool:
    """Whether what is missing in a row is made of its mate's. empty: the row without its numbers.

    Not tried on a GPU: one that takes NaN for a place in a table is gone for good.
    """
    return handler.settings.device != "cuda" and _together(handler, row, empty) and fills_up(attempt, row, empty)


def _tolerance(handler: BatchHandler, row: Any, longest: Any) -> float:
    """How far padding may move a row: as far as its engine rounds, or at will where no two lengths run together."""
    if longest is not None and not _together(handler, longest, row):
        return math.inf
    return rounding(handler)


def rounding(handler: BatchHandler) -> float:
    """How far its engine's rounding may move a number, of the largest."""
    precision = getattr(handler.engine, "precision", handler.settings.precision)
    return PADDING_ROUNDED if precision in ("bf16", "int8") else PADDING


def _together(handler: BatchHandler, one: Any, other: Any) -> bool:
    """Whether both may run in one batch."""
    return any({0, 1} <= set(group) for group in handler.groups([deepcopy(one), deepcopy(other)]))


def _pair(handler: BatchHandler, attempt: Attempt) -> Pair:
    """What runs two items in one batch."""

    def pair(one: Any, other: Any) -> list[Any] | None:
        try:
            return deepcopy(attempt([deepcopy(one), deepcopy(other)], 2)) if _together(handler, one, other) else None
        except Exception:  # it does not take both
            return None

    return pair


def _takes(attempt: Attempt, *items: Any) -> bool:
    try:
        attempt(list(map(deepcopy, items)), len(items))
    except Exception:
        return False
    return True


def _report(verdict: Verdict, most: int, separable: str) -> None:
    engine = verdict.about
    if separable == "required" and verdict.separable is not True:
        raise ValueError(f"the archive requires that rows are kept apart: {verdict.cause} ({engine})")
    if verdict.most_rows:
        how = "one by one" if verdict.most_rows == 1 else f"at most {verdict.most_rows} at once"
        cost = most, -(-most // verdict.most_rows)
        logger.warning("%s: %s: rows run %s, so that a batch of %d takes %d calls", engine, verdict.cause, how, *cost)
    elif verdict.separable is None:
        logger.warning("%s: nobody knows whether a row's answer depends on its mates: %s", engine, verdict.cause)


def _keep(model_dir: Path, about: About, most: int, verdict: Verdict) -> None:
    if key := _key(model_dir, about, most):
        remember(model_dir / FILE, key, verdict.to_json())


def _key(model_dir: Path, about: About, most: int) -> str:
    """A digest of what the verdict is about and how large batches are, "" where nothing says what this folder holds."""
    listed = content(model_dir)
    return key_of([listed, asdict(about), _largest(most)]) if listed else ""
