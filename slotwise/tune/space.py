"""The settings that the tuner chooses from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slotwise.profiles.batch_delay import WHOLE_MS

if TYPE_CHECKING:
    from optuna.trial import Trial

DELAYS = (0, 1, 2, 5, 10, 20, 50)  # ms; with 0 a worker takes what is queued and waits for nothing
SHORT_DELAYS = (0.05, 0.15, 0.5)  # besides, where a server knows fractions of a millisecond
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class TrialSetting:
    """One way to serve a model. max_batch_delay in ms; threads: of one worker; engine, precision: "" takes the profile's."""

    batch_size: int
    max_batch_delay: float
    workers: int
    threads: int = 1
    engine: str = ""
    precision: str = ""

    @property
    def effort(self) -> tuple[int, int, int, float]:
        """A key that sorts simple settings first: few workers, small batches, few threads, short delays."""
        return (self.workers, self.batch_size, self.threads, self.max_batch_delay)

    def __str__(self) -> str:
        delay = "" if self.batch_size == 1 else f", {self.max_batch_delay} ms delay"
        runs = f", {self.engine} {self.precision}".rstrip() if self.engine else ""
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        return f"batch {self.batch_size}{delay}, {workers} of {self.threads} thread{'s' if self.threads > 1 else ''}{runs}"


@dataclass(frozen=True)
class SearchSpace:
    """All settings: batch sizes x delays x layouts (workers, threads) x engines (engine, precision)."""

    batch_sizes: Sequence[int] = BATCH_SIZES
    delays: Sequence[float] = DELAYS
    layouts: Sequence[tuple[int, int]] = ((1, 1),)
    engines: Sequence[tuple[str, str]] = (("", ""),)

    @classmethod
    def of_machine(
        cls,
        cores: int,
        clients: int,
        *,
        shared_by: int = 1,
        threads: int = 0,
        engines: Sequence[tuple[str, str]] = (),
        oversubscribe: bool = False,
        kind: str = "torchserve",
    ) -> SearchSpace:
        """The space of a machine: at most as many threads as cores; a batch is no larger than the clients could fill.

        oversubscribe: try twice as many workers of one thread as there are cores, too, since a worker waits for its server now
        and then. A server that was started with `--set` fixes what its workers may have: shared_by (initial_workers) and
        threads (0: free). kind: which server it is; some know delays below a millisecond.
        """
        powers = [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n < cores] + [cores]
        layouts = [(w, t) for w in powers for t in powers if w * t <= cores] + ([(2 * cores, 1)] if oversubscribe else [])
        share = max(1, cores // shared_by)
        layouts = list(dict.fromkeys((w, min(threads or t, share)) for w, t in layouts))
        sizes = [n for n in BATCH_SIZES if n <= max(2, clients)]
        delays = DELAYS if kind in WHOLE_MS else sorted((*SHORT_DELAYS, *DELAYS))
        return cls(sizes, delays, layouts, list(engines) or [("", "")])

    def __iter__(self) -> Iterator[TrialSetting]:
        """Every setting once; with batch size 1 the delay means nothing and is the shortest."""
        for engine in self.engines:
            for workers, threads in self.layouts:
                for size in self.batch_sizes:
                    for delay in self.delays if size > 1 else self.delays[:1]:
                        yield TrialSetting(size, delay, workers, threads, *engine)

    def suggest(self, trial: Trial) -> TrialSetting:
        """The setting that Optuna proposes in `trial`."""
        size = trial.suggest_categorical("batch_size", self.batch_sizes)
        delay = trial.suggest_categorical("max_batch_delay", self.delays)
        workers, threads = self.layouts[trial.suggest_categorical("layout", range(len(self.layouts)))]
        engine = self.engines[trial.suggest_categorical("engine", range(len(self.engines)))]
        return TrialSetting(size, delay if size > 1 else self.delays[0], workers, threads, *engine)

    def choices(self) -> dict[str, tuple[float, ...]]:
        """The values that Optuna may choose of each parameter; layouts and engines by their position."""
        return {
            "batch_size": tuple(self.batch_sizes),
            "max_batch_delay": tuple(self.delays),
            "layout": tuple(range(len(self.layouts))),
            "engine": tuple(range(len(self.engines))),
        }

    def params(self, setting: TrialSetting) -> dict[str, float]:
        """A setting as Optuna's parameters. Raises ValueError for one whose layout or engine is outside the space."""
        layout = list(self.layouts).index((setting.workers, setting.threads))
        engine = list(self.engines).index((setting.engine, setting.precision))
        return {
            "batch_size": setting.batch_size,
            "max_batch_delay": setting.max_batch_delay,
            "layout": layout,
            "engine": engine,
        }

    def neighbours(self, setting: TrialSetting) -> list[TrialSetting]:
        """The settings one step away: next batch size or delay, any other layout or engine."""
        near = [replace(setting, batch_size=int(n)) for n in _beside(self.batch_sizes, setting.batch_size)]
        if setting.batch_size > 1:
            near += [replace(setting, max_batch_delay=n) for n in _beside(self.delays, setting.max_batch_delay)]
        near += [replace(setting, workers=w, threads=t) for w, t in self.layouts]
        near += [replace(setting, engine=e, precision=p) for e, p in self.engines]
        shortest = self.delays[0]
        near = [replace(s, max_batch_delay=shortest) if s.batch_size == 1 else s for s in near]
        return [s for s in dict.fromkeys(near) if s != setting]


def _beside(values: Sequence[float], value: float) -> list[float]:
    """The next smaller and the next larger of the values."""
    ordered = sorted({*values, value})
    at = ordered.index(value)
    return [n for n in ordered[max(0, at - 1) : at + 2] if n != value]
