"""Handlers that let a decoder of transformers generate, and what they set of a request for that."""

from __future__ import annotations

from typing import Any

import pytest

from slotwise.worker import TorchServeHandler
from tests.worker.idioms import tiny
from tests.worker.idioms.asked import apart, each_of, no_answer_is_wrong, together

torch = pytest.importorskip("torch")

TEXTS = [{"text": text} for text in tiny.TEXTS]
LENGTHS = [{"text": text, "tokens": i % 4 + 1} for i, text in enumerate(tiny.TEXTS)]
BANS = [{"text": text, "words": [7 + i, 8 + i, 12]} for i, text in enumerate(tiny.TEXTS)]


class Generates(TorchServeHandler):
    """Goes on with a text, always with the likeliest token."""

    def initialize(self, context: Any) -> None:
        self.tokenizer, self.model = tiny.tokenizer(padding_side="left"), tiny.gpt2()
        self.tokenizer.pad_token = self.tokenizer.eos_token
        self.prepare()

    def prepare(self) -> None:
        pass

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        texts = [row["body"]["text"] for row in data]
        return self.tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return self.model.generate(**data, do_sample=False, **self.options())

    def options(self) -> dict[str, Any]:
        return {"max_new_tokens": 5, "pad_token_id": self.tokenizer.eos_token_id}

    def postprocess(self, data: Any) -> Any:
        return [self.tokenizer.decode(row, skip_special_tokens=True) for row in data]


@together(TEXTS)
class Greedy(Generates):
    """Each text is tokenized by itself; those of one length run together."""


@together(TEXTS)
class PaddedOnTheLeft(Generates):
    """Tokenizes all texts at once in inference, padded on the left with a mask."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return [row["body"]["text"] for row in data]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return super().inference(self.tokenizer(data, padding=True, return_tensors="pt", return_token_type_ids=False))


@apart(TEXTS)
class SaysThePadding(Generates):
    """Decodes what its rows were filled up with, too: a short answer has the padding of a longer one beside it."""

    def options(self) -> dict[str, Any]:
        return {"max_new_tokens": 12, "eos_token_id": [*range(7, 16)]}

    def postprocess(self, data: Any) -> Any:
        return [{"text": self.tokenizer.decode(row), "tokens": len(row)} for row in data]


@apart(LENGTHS)
class TheLengthOnSelf(Generates):
    """Keeps how many tokens this request wants on itself."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.tokens = data[0]["body"]["tokens"]
        return super().preprocess(data)

    def options(self) -> dict[str, Any]:
        return {"max_new_tokens": self.tokens}


class OptionsOfEach(Generates):
    """Has how many tokens this request wants in the model's generation_config."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.set(data[0]["body"]["tokens"])
        return super().preprocess(data)

    def set(self, tokens: int) -> None:
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        return {}


@apart(LENGTHS)
class TheModelsOptions(OptionsOfEach):
    """Sets it as an attribute."""

    def set(self, tokens: int) -> None:
        self.model.generation_config.max_new_tokens = tokens


@apart(LENGTHS)
class TheModelsOptionsUpdated(OptionsOfEach):
    """Sets it by the generation_config's own method."""

    def set(self, tokens: int) -> None:
        self.model.generation_config.update(max_new_tokens=tokens)


@apart(LENGTHS)
class TheModelsOptionsInALoop(OptionsOfEach):
    """Sets whatever the request says, by its name, through another name of the generation_config."""

    def set(self, tokens: int) -> None:
        options = self.model.generation_config
        for name, value in {"max_new_tokens": tokens}.items():
            setattr(options, name, value)


@apart(TEXTS, late=LENGTHS)
class OptionsOfSome(Generates):
    """Has a GenerationConfig of its own, which some requests change in a function of the module."""

    def prepare(self) -> None:
        self.generation = tiny.transformers().GenerationConfig(max_new_tokens=5, do_sample=False)

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        changed(self.generation, {"max_new_tokens": data[0]["body"].get("tokens", 5)})
        return super().preprocess(data)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return self.model.generate(**data, generation_config=self.generation)


def changed(options: Any, given: dict[str, Any]) -> None:
    vars(options).update(given)


@apart(TEXTS, late=LENGTHS)
class ADictOfOptions(Generates):
    """Has a dict of options, which some requests change under another name."""

    def prepare(self) -> None:
        self.given = {"max_new_tokens": 5}

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        given = self.given
        given["max_new_tokens"] = data[0]["body"].get("tokens", 5)
        return super().preprocess(data)

    def options(self) -> dict[str, Any]:
        return self.given


@apart([{"text": text, "seed": i} for i, text in enumerate(tiny.TEXTS)])
class SampledWithASeed(Generates):
    """Seeds everything with the request's seed, by the library's `set_seed`, and samples."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        from transformers import set_seed

        set_seed(data[0]["body"]["seed"])
        return super().preprocess(data)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return self.model.generate(**data, max_new_tokens=5, do_sample=True)


@apart(TEXTS)
class SampledWithOneSeed(Generates):
    """Samples with the same seed each time: a row alone always has that seed's first numbers."""

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        torch.manual_seed(42)
        return self.model.generate(**data, max_new_tokens=5, do_sample=True)


@apart([{"text": text, "target": ("en", "de")[i % 2]} for i, text in enumerate(tiny.TEXTS)])
class TheLanguageOfTheTokenizer(Generates):
    """Tells the tokenizer the request's language, as those of translators have it, and answers with it."""

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.tokenizer.src_lang = data[0]["body"]["target"]
        return super().preprocess(data)

    def postprocess(self, data: Any) -> Any:
        return [f"{self.tokenizer.src_lang}: {text}" for text in super().postprocess(data)]


class StopsAt:
    """A criterion that knows from where on it looks."""

    def __init__(self) -> None:
        self.start = 0

    def __call__(self, ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.tensor([bool((row[self.start :] == 9).any()) for row in ids])


class Bans:
    """Takes the words from the vocabulary that a request does not want."""

    def __init__(self) -> None:
        self.words: list[int] = []

    def __call__(self, ids: Any, scores: Any) -> Any:
        scores = scores.clone()
        scores[:, self.words] = -1e9
        return scores


@together(TEXTS)
class StopsAtAWord(Generates):
    """Sets in inference from where on its criterion looks: there it is the same for all rows of a batch."""

    def prepare(self) -> None:
        self.stops = StopsAt()

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        self.stops.start = data["input_ids"].shape[1]
        return super().inference(data)

    def options(self) -> dict[str, Any]:
        return {"max_new_tokens": 5, "stopping_criteria": [self.stops]}


class Words(Generates):
    """Has an object that changes scores as this request wants it."""

    def prepare(self) -> None:
        self.bans = Bans()
        self.processors = [self.bans]

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.ban(data[0]["body"]["words"])
        return super().preprocess(data)

    def ban(self, words: list[int]) -> None:
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        return {"max_new_tokens": 4, "logits_processor": tiny.transformers().LogitsProcessorList(self.processors)}


@apart(BANS)
class BannedWords(Words):
    """Tells the object what this request does not want."""

    def ban(self, words: list[int]) -> None:
        self.bans.words = words


@apart(BANS)
class BannedWordsInAList(Words):
    """Tells it by the list in which it is."""

    def ban(self, words: list[int]) -> None:
        self.processors[0].words = words


@apart(BANS)
class ANewListOfBannedWords(Words):
    """Makes a new list with another object at each request."""

    def ban(self, words: list[int]) -> None:
        bans = Bans()
        bans.words = words
        self.processors = [bans]


@apart(BANS)
class AllowedWords(Words):
    """Has the words that this request allows in a lambda."""

    def ban(self, words: list[int]) -> None:
        self.allowed = words

    def options(self) -> dict[str, Any]:
        return {"max_new_tokens": 4, "prefix_allowed_tokens_fn": lambda row, ids: self.allowed}


@each_of(__name__)
def test_no_answer_is_wrong(kind: type[TorchServeHandler], rows_at_once: list[int]) -> None:
    no_answer_is_wrong(kind, rows_at_once)
