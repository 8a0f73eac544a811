"""Step engines of a tiny decoder, as authors write them: with a cache for each slot or one memory for all, right and wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from slotwise.worker.steps.step_engine import End, Next, StepEngine, StepRow, StepState
from slotwise.worker.steps.step_loop import LEFTOVERS, StepLoop
from slotwise.worker.steps.streams import Stream, StreamPiece
from tests.support.seed import SEED
from tests.worker.idioms import tiny

torch = pytest.importorskip("torch")

TOGETHER, ROW_BY_ROW, ONE_BY_ONE, NOT_AT_ALL = (
    "",
    "every row of a step runs alone",
    "streams run one after the other",
    LEFTOVERS,
)
PROMPTS = [[7 + i * k % 20 for i in range(2 + k * 3 % 8)] for k in range(1, 8)]
LONG, SHORT = [9, 8, 7, 12, 11, 10, 14], [11, 7]


class Author:
    """Always takes the likeliest token, eight in all."""

    def example(self) -> Any:
        return SHORT

    def others(self) -> list[Any]:
        return [LONG]

    def advance(self, state: StepState, output: Any) -> Next | End:
        token = int(output.argmax())
        return End({"token": token}) if len(state.tokens) == 7 else Next(token, {"token": token})


class Slots(StepEngine):
    """A cache of transformers for each slot; the rows of a step run one after the other within it."""

    goes = TOGETHER
    slots = 4

    def __init__(self) -> None:
        self.model = tiny.gpt2()
        self.caches: dict[int, Any] = {}
        self.lengths: dict[int, int] = {}

    def tokens(self, item: Any) -> int:
        return len(item)

    def new_cache(self, slot: int) -> Any:
        return tiny.transformers().DynamicCache(config=self.model.config)

    @torch.no_grad()
    def prefill(self, slot: int, item: Any) -> Any:
        cache = self.new_cache(slot)
        found = self.model(input_ids=torch.tensor([item]), past_key_values=cache, use_cache=True)
        self.caches[slot], self.lengths[slot] = cache, len(item)
        return found.logits[0, -1]

    def go_back(self, cache: Any, length: int) -> None:
        if (more := cache.get_seq_length() - length) > 0:
            cache.crop(-more)

    @torch.no_grad()
    def step(self, rows: Sequence[StepRow]) -> Any:
        outputs = []
        for slot, token, position in rows:
            self.go_back(self.caches[slot], self.lengths[slot] + position)
            found = self.model(input_ids=torch.tensor([[token]]), past_key_values=self.caches[slot], use_cache=True)
            outputs.append(self.penalized(slot, token, position, found.logits[0, -1]))
        return torch.stack(outputs)

    def penalized(self, slot: int, token: int, position: int, scores: Any) -> Any:
        return scores

    def free(self, slot: int) -> None:
        self.caches.pop(slot, None)
        self.lengths.pop(slot, None)


class AppendsToTheCache(Slots):
    """Never goes back to the position that a row names, so a step may not be run again."""

    goes = ROW_BY_ROW

    def go_back(self, cache: Any, length: int) -> None:
        pass


class PenalizesRepetition(Slots):
    """Makes tokens less likely that this slot has had, each kept at its position."""

    def __init__(self) -> None:
        super().__init__()
        self.had: dict[int, list[int]] = {}

    def prefill(self, slot: int, item: Any) -> Any:
        self.had[slot] = []
        return super().prefill(slot, item)

    def penalized(self, slot: int, token: int, position: int, scores: Any) -> Any:
        self.had[slot][position:] = [token]
        scores = scores.clone()
        scores[self.had[slot]] -= 1
        return scores


class PenalizesForEver(PenalizesRepetition):
    """Forgets no slot's tokens, so they weigh on the next stream there."""

    goes = NOT_AT_ALL

    def prefill(self, slot: int, item: Any) -> Any:
        had = self.had.get(slot, [])
        output = super().prefill(slot, item)
        self.had[slot] = had
        return output

    def penalized(self, slot: int, token: int, position: int, scores: Any) -> Any:
        self.had[slot].append(token)
        scores = scores.clone()
        scores[self.had[slot]] -= 1
        return scores


class ReadsOnTop(Slots):
    """Reads the next item on top of what a slot holds, which `free` leaves there."""

    goes = NOT_AT_ALL

    def new_cache(self, slot: int) -> Any:
        return self.caches.get(slot) or super().new_cache(slot)

    def free(self, slot: int) -> None:
        pass


class FreeForgetsNothing(Slots):
    """Leaves everything in a slot, and makes it new when the next item is read."""

    def free(self, slot: int) -> None:
        pass


class OneMemory(StepEngine):
    """One memory for the keys and values of all slots; a step is one call of the model with a mask."""

    goes = TOGETHER
    slots = 4
    length = 32

    def __init__(self) -> None:
        self.model = tiny.gpt2(attn_implementation="eager")
        configuration = self.model.config
        heads, size = configuration.n_head, configuration.n_embd // configuration.n_head
        self.memory = torch.zeros(configuration.n_layer, 2, self.slots + 1, heads, self.length, size)
        self.lengths = [0] * (self.slots + 1)

    def tokens(self, item: Any) -> int:
        return len(item)

    def place(self, slot: int) -> int:
        return slot

    def known_length(self, slot: int, item: Any) -> int:
        return len(item)

    @torch.no_grad()
    def prefill(self, slot: int, item: Any) -> Any:
        cache = tiny.transformers().DynamicCache(config=self.model.config)
        found = self.model(input_ids=torch.tensor([item]), past_key_values=cache, use_cache=True)
        for i, layer in enumerate(cache.layers):
            self.memory[i, 0, self.place(slot), :, : len(item)] = layer.keys[0]
            self.memory[i, 1, self.place(slot), :, : len(item)] = layer.values[0]
        self.lengths[slot] = self.known_length(slot, item)
        return found.logits[0, -1]

    def mask(self, lengths: list[int], longest: int) -> Any:
        mask = torch.zeros(len(lengths), longest + 1, dtype=torch.long)
        for row, length in zip(mask, lengths, strict=True):
            row[:length] = row[longest] = 1
        return mask

    def positions(self, lengths: list[int]) -> list[int]:
        return lengths

    @torch.no_grad()
    def step(self, rows: Sequence[StepRow]) -> Any:
        places = [self.place(row.slot) for row in rows]
        lengths = [self.lengths[row.slot] + row.position for row in rows]
        longest = max(lengths)
        cache = tiny.transformers().DynamicCache(config=self.model.config)
        for i, layer in enumerate(self.memory[:, :, places, :, :longest].clone()):
            cache.update(layer[0], layer[1], i)
        found = self.model(
            input_ids=torch.tensor([[row.token] for row in rows]),
            attention_mask=self.mask(lengths, longest),
            position_ids=torch.tensor(self.positions(lengths))[:, None],
            past_key_values=cache,
            use_cache=True,
        )
        for row, (place, length) in enumerate(zip(places, lengths, strict=True)):
            for i, layer in enumerate(cache.layers):
                self.memory[i, 0, place, :, length] = layer.keys[row, :, -1]
                self.memory[i, 1, place, :, length] = layer.values[row, :, -1]
        return found.logits[:, -1]

    def free(self, slot: int) -> None:
        pass


class NoMask(OneMemory):
    """Looks at the padding of shorter rows, too, so a row's output depends on the longest beside it."""

    goes = ROW_BY_ROW

    def mask(self, lengths: list[int], longest: int) -> Any:
        return torch.ones(len(lengths), longest + 1, dtype=torch.long)


class ThePositionOfTheLongest(OneMemory):
    """Gives all rows the position of the longest of them."""

    goes = ROW_BY_ROW

    def positions(self, lengths: list[int]) -> list[int]:
        return [max(lengths)] * len(lengths)


class ThePositionOfTheLast(OneMemory):
    """Gives all rows the position of the last of them."""

    goes = ROW_BY_ROW

    def positions(self, lengths: list[int]) -> list[int]:
        return [lengths[-1]] * len(lengths)


class OneSlotForAll(OneMemory):
    """Writes every slot's keys and values to one place."""

    goes = ONE_BY_ONE

    def place(self, slot: int) -> int:
        return 0


class TheLongestSoFar(OneMemory):
    """Takes for a slot's length the longest that was ever read into it."""

    goes = NOT_AT_ALL

    def known_length(self, slot: int, item: Any) -> int:
        return max(self.lengths[slot], len(item))


def run(loop: StepLoop, prompts: Sequence[Any], apart: int = 0) -> list[list[bytes]]:
    """What streams of these prompts give, each of which joins so many turns after the one before."""
    given: list[list[bytes]] = [[] for _ in prompts]
    waiting, turn = list(enumerate(prompts)), 0
    while waiting or loop.busy:
        while waiting and turn >= waiting[0][0] * apart:
            number, prompt = waiting.pop(0)
            loop.offer([Stream(number, list(prompt))])
        for event in loop.turn():
            if isinstance(event, StreamPiece):
                given[int(str(event.id))].append(event.data)
            else:
                assert event.error is None
        turn += 1
    return given


ENGINES = [kind for base in (Slots, OneMemory) for kind in (base, *base.__subclasses__())]
ENGINES.append(PenalizesForEver)


@pytest.mark.parametrize("kind", ENGINES, ids=lambda kind: kind.__name__)
def test_no_stream_is_wrong(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    if kind.goes == NOT_AT_ALL:
        with pytest.raises(ValueError, match="what a slot held before"):
            StepLoop.start(kind(), Author())
        return
    loop = StepLoop.start(kind(), Author())
    said = [one for one in (ROW_BY_ROW, ONE_BY_ONE) if one in caplog.text]
    assert said == {TOGETHER: [], ROW_BY_ROW: [ROW_BY_ROW], ONE_BY_ONE: [ROW_BY_ROW, ONE_BY_ONE]}[kind.goes]
    alone = {tuple(prompt): run(StepLoop(kind(), Author()), [prompt])[0] for prompt in PROMPTS}
    assert len({tuple(pieces) for pieces in alone.values()}) > 1, "whose piece is whose would not be seen"
    chance = random.Random(f"{SEED} {kind.__name__}")
    for apart in (0, 2):  # the same slots, again and again
        prompts = [chance.choice(PROMPTS) for _ in range(8)]
        assert run(loop, prompts, apart) == [alone[tuple(prompt)] for prompt in prompts]
