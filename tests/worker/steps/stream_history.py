"""One random history of streams: clients, workers that die, and what must hold after every turn.

Everything follows from the seed, so a history that fails is run again with one line (see test_stream_histories.py).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace

from slotwise.worker.padding import Padding
from slotwise.worker.steps.step_engine import StepRow
from slotwise.worker.steps.step_loop import StepLoop
from slotwise.worker.steps.streams import StreamPiece, TurnLimits
from tests.worker.steps.sim_engine import Cache, SimAuthor, SimEngine, SimItem
from tests.worker.steps.stream_clients import Client, drawn

MOST_TURNS = 6_000
EXAMPLE = SimItem("example", 2, 3)


class StreamHistory:
    """One history. problems: what did not hold."""

    def __init__(self, seed: int, kind: type[StepLoop] = StepLoop) -> None:
        self.random = draw = random.Random(seed)
        self.kind_of_loop = kind
        self.now = 0.0
        self.turn = 0
        self.problems: list[str] = []
        self.slots = draw.choice((1, 2, 3, 4, 6, 8))
        self.in_parts, self.together = draw.choice(((True, False), (True, False), (False, False), (False, True)))
        self.padding = draw.choice(("none", "none", "static", "bucketed", "fixed"))
        self.flaky = draw.choice((0.0, 0.0, 0.1))
        self.deaths = draw.choice((0.0, 0.0, 0.02))
        self.engine_deaths = draw.choice((0.0, 0.0, 0.01))
        self.example = EXAMPLE if self.padding != "none" or draw.random() < 0.5 else None
        self.limits = TurnLimits(
            turn_s=draw.choice((0.005, 0.03, 0.2, 10.0)),
            prefill_tokens=draw.choice((4, 16, 64)),
            gather_turns=draw.choice((0, 1, 4)),
            slow_readers=draw.choice(("park", "park", "end")),
            parked=draw.randint(0, 3),
            parked_s=draw.choice((1.0, 1000.0)),
        )
        self.memory = draw.choice((69, 90, 120, 10_000)) + self.slots * (self.padding == "fixed")
        self.clients = [drawn(i, draw) for i in range(draw.randint(4, 12))]
        self.by_name = {one.item.name: one for one in self.clients}
        self.start_worker()

    # Workers ---------------------------------------------------------------------------------------------------------

    def start_worker(self) -> None:
        """A new worker; the streams that were open in another one are offered to it, with the pieces that were sent."""
        self.engine = SimEngine(
            self, self.slots, in_parts=self.in_parts, memory=self.memory, flaky=self.flaky, together=self.together
        )
        self.offered: list[str] = []
        self.runner = self.kind_of_loop(
            self.engine, SimAuthor(self.example), self.limits, Padding(self.padding, self.slots), lambda: self.now
        )
        self.owed, self.turn_start, self.works = 0, self.now, False
        for one in self.clients:
            if one.here and not one.over:
                self.offer(one)
                if one.held_at is not None:
                    self.hold(one)

    def offer(self, one: Client) -> None:
        one.waits_since = self.turn
        self.offered.append(one.item.name)
        self.runner.offer([replace(one.stream, sent=tuple(one.got))])

    def hold(self, one: Client) -> None:
        one.held_at = self.now if one.held_at is None else one.held_at
        one.was_held = True
        self.runner.hold(one.stream.id)

    # What happens ----------------------------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """Let it happen; returns what did not hold."""
        while any(not one.over for one in self.clients):
            if self.turn > MOST_TURNS or len(self.problems) > 5:
                self.problem(f"after {self.turn} turns {[one.item.name for one in self.clients if not one.over]} are open")
                return self.problems
            self.let_clients_act()
            self.one_turn()
        if self.runner.slots.given or set(self.engine.caches) - {self.slots}:
            self.problem(f"slots are not freed: {self.runner.slots.given}, {self.engine.caches}")
        return self.problems

    def one_turn(self) -> None:
        self.turn += 1
        self.now += 0.001 if self.runner.busy else 0.05
        self.turn_start, self.prefilled, self.late_prefills, self.positions = self.now, dict[str, int](), 0, {}
        self.scratch_s, self.did_step = 0.0, False
        if self.random.random() < self.engine_deaths and self.works and not self.engine.dead:
            self.engine.dead = True
        try:
            events = self.runner.turn()
        except Exception as error:
            self.problem(f"a turn raised {error!r}")
            self.start_worker()
            return
        if self.random.random() < self.deaths:  # what it had to say is lost with it
            self.start_worker()
            return
        for event in events:
            self.take(event.id, event)
        self.check_turn()
        if self.runner.dead:
            if not self.engine.dead:
                self.problem("an engine that lives is called dead")
            self.start_worker()

    def let_clients_act(self) -> None:
        for one in self.clients:
            if not one.here and self.now >= one.at:
                one.here = True
                self.offer(one)
            if one.over or not one.here:
                continue
            if self.now >= one.leaves_at:
                one.over = True
                self.runner.cancel(one.stream.id)
                self.no_cache_of(one, "left")
            elif one.holds and self.now >= one.holds[0][0]:
                _, holds = one.holds.pop(0)
                if holds:
                    self.hold(one)
                else:
                    one.held_at = None
                    one.waits_since = self.turn
                    self.runner.go_on(one.stream.id)

    def no_cache_of(self, one: Client, why: str) -> None:
        if any(cache.item.name == one.item.name for slot, cache in self.engine.caches.items() if slot != self.slots):
            self.problem(f"{one.item.name} has {why}, and still a slot")

    # What the runner says --------------------------------------------------------------------------------------------

    def take(self, stream_id: Hashable, event: object) -> None:
        one = next(one for one in self.clients if one.stream.id == stream_id)
        name, place = one.item.name, len(one.got)
        if one.over:
            self.problem(f"{name} is over, and gets {event}")
        elif isinstance(event, StreamPiece):
            if tuple(one.whole.pieces[place : place + 1]) != (event.data,):
                self.problem(f"{name} gets {event.data!r} in the place {place} of {one.whole.pieces}")
            one.got.append(event.data)
        else:
            one.over = True
            error = getattr(event, "error", None)
            self.check_end(one, 200 if error is None else error.status)

    def check_end(self, one: Client, status: int) -> None:
        name = one.item.name
        deadline = one.stream.deadline
        if status == 504 and deadline is not None and self.turn_start > deadline:
            return
        if status == 408 and self.limits.slow_readers == "end" and one.was_held:
            return
        if status == 408 and one.held_at is not None and self.turn_start - one.held_at > self.limits.parked_s:
            return
        if status != one.whole.status or tuple(one.got) != one.whole.pieces:
            self.problem(f"{name} ends with {status} after {len(one.got)} pieces, not {one.whole}: {one.item}")

    def check_turn(self) -> None:
        """What must hold after a turn."""
        open_names = {one.item.name for one in self.clients if one.here and not one.over}
        held = 0
        for slot, cache in self.engine.caches.items():
            if slot == self.slots:
                continue
            if cache.item.name not in open_names:
                self.problem(f"{cache.item.name} is over, and has the slot {slot}")
            held += self.by_name[cache.item.name].held_at is not None
        if held > self.limits.parked and not self.runner.dead:
            self.problem(f"{held} parked streams have slots")
        for one in self.clients:
            deadline = one.stream.deadline
            if one.here and not one.over and deadline is not None and deadline < self.turn_start and not self.runner.dead:
                self.problem(f"{one.item.name} is open after its deadline")
            if one.here and not one.over and one.held_at is None and self.has_slot(one):
                if self.turn - one.waits_since > 20 + 12 * self.slots:
                    self.problem(f"{one.item.name} has a slot, and no step since {one.waits_since}, at {self.turn}")
            else:
                one.waits_since = self.turn
        self.check_budget()

    def check_budget(self) -> None:
        """No turn prefills more than its budget and what earlier turns left of it, but for one that is alone in its turn."""
        total, owed = sum(self.prefilled.values()), self.owed if self.did_step else 0
        most = max(0, self.limits.prefill_tokens - owed)
        if total > most and (self.in_parts or len(self.prefilled) > 1 or most == 0):
            self.problem(f"a turn prefills {self.prefilled}, not {most} tokens")
        self.owed = max(0, owed - self.limits.prefill_tokens) + max(0, total - most)

    def has_slot(self, one: Client) -> bool:
        return any(cache.item.name == one.item.name for slot, cache in self.engine.caches.items() if slot != self.slots)

    # What the engine is asked for ------------------------------------------------------------------------------------

    def took(self, slot: int, seconds: float) -> None:
        self.now += seconds
        self.scratch_s += seconds if slot == self.slots else 0.0

    def problem(self, text: str) -> None:
        self.problems.append(f"turn {self.turn}: {text}")

    @property
    def late(self) -> bool:
        return self.now - self.scratch_s >= self.turn_start + self.limits.turn_s

    def step_starts(self, rows: Sequence[tuple[StepRow, Cache | None]]) -> None:
        real = [(row, cache) for row, cache in rows if row.slot != self.slots]
        if any(cache is None for _, cache in rows):
            self.problem(f"a step of a slot that holds nothing: {rows}")
        if len({row.slot for row, _ in real}) < len(real):
            self.problem(f"a step of one slot twice: {rows}")
        if len(real) > 1 and self.late:
            self.problem("a step is begun after the turn's time")
        for row, cache in real:
            self.did_step = True
            if self.positions.setdefault(row.slot, row.position) != row.position:
                self.problem(f"two steps of the slot {row.slot} in a turn")
            if cache is not None and self.by_name[cache.item.name].held_at is not None:
                self.problem(f"{cache.item.name} is parked, and has a step")

    def stepped(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self.by_name:
                self.works = True
                self.by_name[name].waits_since = self.turn

    def prefill_starts(self, slot: int, item: SimItem, start: int, stop: int, place: int = 0) -> None:
        if slot == self.slots:
            return
        if self.late and place == 0:
            self.late_prefills += 1
            if self.prefilled:
                self.problem("a second prefill is begun after the turn's time")
        again = item.name in self.prefilled
        if again and not self.together:
            self.problem(f"{item.name} is prefilled twice in a turn")
        self.by_name[item.name].waits_since = self.turn
        if start == 0 and not again and not self.engine.dead:
            self.check_order(item)
        self.prefilled[item.name] = stop - start  # where a call fails, fewer are read again

    def check_order(self, item: SimItem) -> None:
        """Nobody who waits comes before: of an owner with fewer streams, or as many and offered sooner.

        Who was read together with others in this turn counts, too: that may have failed, and each is read by itself.
        """
        having = set(self.prefilled if self.together else ()) | {
            cache.item.name for slot, cache in self.engine.caches.items() if slot != self.slots
        }
        count = Counter(self.owner(name) for name in having if self.by_name[name].held_at is None)

        def rank(name: str) -> tuple[int, int]:
            return count[self.owner(name)], self.offered.index(name)

        for name in self.offered:
            other = self.by_name[name]
            waits = other.here and not other.over and other.held_at is None and name not in having and self.is_open(other)
            if waits and rank(name) < rank(item.name):
                self.problem(f"{item.name} joins before {name}")

    def is_open(self, one: Client) -> bool:
        """Whether its end is not among what this turn will give."""
        return one.stream.id in self.runner.open

    def owner(self, name: str) -> Hashable:
        stream = self.by_name[name].stream
        return stream.id if stream.owner is None else stream.owner
