"""Find the rows that make a batch fail, and give all other rows their outputs.

A group that fails is cut in halves, between owners as long as there are several, until each guilty row stands alone. Where one
half runs, the other must be guilty: it is cut without being run. With k guilty rows among n rows that takes at most about
2k*(log2(n/k) + 1) calls of the model. No row is convicted that did not fail alone.

Out of memory is the fault of no row. The group is then run in smaller pieces (memory_ceiling.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from slotwise.worker.answer import Refusal
from slotwise.worker.batch import NOBODY_WAITS, NOT_RUN, TOO_MANY_GUILTY, Row, Tally
from slotwise.worker.memory_ceiling import MemoryCeiling
from slotwise.worker.padding import Padding
from slotwise.worker.slot_errors import DeadlineExceeded, ModelFault, OutOfMemory, SlotError, StageFault

logger = logging.getLogger(__name__)

SAYS_NOTHING = (DeadlineExceeded, StageFault)  # of the engine: time was over, or a stage has tried its own
Attempt = Callable[[list[Row], int], None]


class EngineDead(Exception):
    """Even the warm-up input fails: no row is to blame, and no later batch will do better."""


@dataclass(frozen=True, slots=True)
class RanCall:
    """One call of the model. began: on time.perf_counter's clock. owners: of its rows. size: with padding. error: it raised."""

    began: float
    took_s: float
    owners: list[int]
    size: int
    error: BaseException | None


@dataclass(slots=True)
class Piece:
    """Rows that are still to be run, at most `limit` at once.

    guilty: whether one of them must be. rest: the other half, which must be guilty if this one is not.
    """

    rows: list[Row]
    limit: int
    guilty: bool = False
    rest: Piece | None = None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is MemoryError or a device's own out-of-memory error, known by its name or message."""
    names = {kind.__name__ for kind in type(error).__mro__}
    try:
        return bool(names & {"MemoryError", "OutOfMemoryError"}) or "out of memory" in str(error).lower()
    except Exception:  # an error that cannot be turned into text
        return False


class Isolation:
    """Runs rows through the model, so that a row that fails costs no other row its output.

    attempt(rows, size): pad the rows to `size`, run the model once, and give each row its output or its own refusal; or raise
    anything, and leave the rows as they are. alive(): whether the model still runs what it is known to run. release(): free
    what a failed call holds. clock: seconds that never go back. calls: where each call is put down; None: nobody asks.
    """

    calls: list[RanCall] | None = None

    def __init__(
        self,
        attempt: Attempt,
        padding: Padding,
        alive: Callable[[], bool] = lambda: True,
        release: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.attempt = attempt
        self.padding = padding
        self.alive = alive
        self.release = release
        self.clock = clock
        self.ceiling = MemoryCeiling(padding, clock)

    def run(
        self,
        rows: Sequence[Row],
        stop_at: float = float("inf"),
        tally: Tally | None = None,
        ids: Callable[[], str] = lambda: "",
        gone: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """Run the model on these rows: each then has its output, or an error.

        stop_at: a time on `clock`. No call is started after that, and rows that were not run keep the error that says so.
        ids(): the ids of the requests that sent the rows, for the log. gone(): the owners that nobody waits for any more: what
        has not run of theirs by then is not run.
        Raises EngineDead where the model fails on what it is known to run, too. Rows that have an output by then keep it.
        """
        if rows:
            _Bisection(self, tally if tally is not None else Tally(), ids, gone).run(list(rows), stop_at)

    def prepare(self, row: Callable[[], Row | None], runs: int = 1) -> None:
        """Warm up: run one good row at each of the padding's sizes, the largest first, `runs` times each.

        row(): a row of the warm-up input, None where there is none. A size that does not fit into memory lowers the ceiling.
        Raises what any other failure raises, because such an engine cannot serve.
        """
        for size in self.padding.sizes():
            try:
                for _ in range(runs):
                    if (ran := row()) is None:
                        return
                    self.attempt([ran], size)
            except Exception as error:
                if size == 1 or not is_out_of_memory(error) or not self.padding.shrinks:
                    raise
                self.release()
                self.ceiling.lower(size)
                continue
            if ran is not None and ran.error is not None:
                raise ValueError(f"the warm-up input fails: {ran.error.message}")


class _Bisection:
    """One group of rows on its way through the model.

    unsure: rows that failed alone since the model last ran anything: it may be the engine that fails.
    """

    def __init__(self, isolation: Isolation, tally: Tally, ids: Callable[[], str], gone: Callable[[], Collection[int]]) -> None:
        self.isolation, self.tally, self.ids, self.gone = isolation, tally, ids, gone
        self.padding = isolation.padding
        self.pieces: list[Piece] = []  # the next one last
        self.unsure: list[Row] = []
        self.engine_checked = False
        self.largest_run = 0
        self.too_many: int | None = None
        self.row_too_large = False

    def run(self, rows: list[Row], stop_at: float) -> None:
        self.pieces = [Piece(rows, self.isolation.ceiling.limit(len(rows)))]
        while self.pieces and self.isolation.clock() < stop_at:
            self._next(self.pieces.pop())
        if self.unsure:
            self._check_alive()
        self.isolation.ceiling.learn(self.largest_run, self.too_many, self.row_too_large, self.ids)

    def _next(self, piece: Piece) -> None:
        """Run a piece, or cut it."""
        piece.rows = self._without_the_hopeless(piece.rows)
        if not piece.rows:
            return
        if len(piece.rows) > piece.limit:
            first, second = piece.rows[: piece.limit], piece.rows[piece.limit :]
            self.pieces += [Piece(second, piece.limit), Piece(first, piece.limit)]
        elif piece.guilty and len(piece.rows) > 1:
            self._halve(piece)
        elif (error := self._attempt(piece)) is not None:
            self._failed(piece, error)
        elif piece.rest is not None:
            piece.rest.guilty = True

    def _attempt(self, piece: Piece) -> BaseException | None:
        """Run the model once. Returns what it raised."""
        size = self.padding.size(len(piece.rows), piece.limit)
        if self.isolation.calls is None:
            return self._call(piece, size)
        began = time.perf_counter()
        error = self._call(piece, size)
        owners = [row.owner for row in piece.rows]
        self.isolation.calls.append(RanCall(began, time.perf_counter() - began, owners, size, error))
        return error

    def _call(self, piece: Piece, size: int) -> BaseException | None:
        self.tally.rows += size
        self.tally.padding += size - len(piece.rows)
        try:
            self.isolation.attempt(piece.rows, size)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an author's sys.exit() is no reason to end the worker
            return error
        self.largest_run = max(self.largest_run, size)
        if all(row.error is not None for row in piece.rows):  # the state of the engine itself may be NaN
            self.unsure += [row for row in piece.rows if row.error and not isinstance(row.error.source, SAYS_NOTHING)]
        else:
            self.unsure = []
        return None

    def _failed(self, piece: Piece, error: BaseException) -> None:
        """Convict the row that stands alone, or cut the piece."""
        no_memory = is_out_of_memory(error)
        smaller = no_memory and self.padding.shrinks
        size = self.padding.size(len(piece.rows), piece.limit)
        alone = (size if smaller else len(piece.rows)) == 1  # padding rows take memory, but they cannot be guilty
        lives = False
        telling = alone or not no_memory  # that several rows do not fit into memory says nothing of the engine
        if not self._release() or (telling and not self.engine_checked):
            logger.warning("requests %s: a group of rows failed: %s", self.ids(), type(error).__name__, exc_info=error)
            self._check_alive()
            self.engine_checked = lives = True
        if alone:
            row = piece.rows[0]
            row.refuse(row_error(error, no_memory))
            self.tally.guilty[row.owner] = self.tally.guilty.get(row.owner, 0) + 1
            self.row_too_large = self.row_too_large or no_memory
            self.unsure += [] if lives else [row]
        elif smaller:
            self.tally.cuts += 1
            self.too_many = min(size, self.too_many or size)
            self.pieces.append(Piece(piece.rows, self.padding.next_limit(size)))
        else:
            self._halve(piece)

    def _halve(self, piece: Piece) -> None:
        """Put both halves in the place of a piece that holds a guilty row: half of its owners, or of its one owner's rows."""
        self.tally.cuts += 1
        by_owner: dict[int, list[Row]] = {}
        for row in piece.rows:
            by_owner.setdefault(row.owner, []).append(row)
        parts = list(by_owner.values()) if len(by_owner) > 1 else [[row] for row in piece.rows]
        middle = (len(parts) + 1) // 2
        second = Piece([row for part in parts[middle:] for row in part], piece.limit)
        first = Piece([row for part in parts[:middle] for row in part], piece.limit, rest=second)
        self.pieces += [second, first]

    def _without_the_hopeless(self, rows: list[Row]) -> list[Row]:
        """Refuse the rows of owners who have had their share of guilty ones, or whom nobody waits for; returns all others."""
        hopeless, gone = self.tally.hopeless(), self.gone()
        if not hopeless and not gone:
            return rows
        for row in rows:
            if row.owner in hopeless:
                row.refuse(TOO_MANY_GUILTY)
            elif row.owner in gone:
                row.refuse(Refusal.of(NOBODY_WAITS))
        return [row for row in rows if row.owner not in hopeless and row.owner not in gone]

    def _release(self) -> bool:
        """Whether what the failed call holds could be freed; after some failures a device frees nothing any more."""
        try:
            self.isolation.release()
        except Exception:
            logger.warning("requests %s: the engine cannot free what a failed call holds", self.ids(), exc_info=True)
            return False
        return True

    def _check_alive(self) -> None:
        """Raise EngineDead where the model fails on what it is known to run: whoever failed since it last ran is innocent."""
        if not self.isolation.alive():
            for row in self.unsure:
                row.refuse(NOT_RUN)
            raise EngineDead("the model fails on what it is known to run, too")
        self.unsure = []


def row_error(error: BaseException, no_memory: bool) -> Refusal:
    """What the one row that failed alone is answered with."""
    if no_memory:
        return Refusal.of(OutOfMemory("this input alone does not fit into the memory of the model's device"))
    return Refusal.of(error if isinstance(error, SlotError) else ModelFault("the model failed on this input"))
