"""What a method leaves in a way that its source does not tell is seen when it is left, and goes to no other request."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image, ImageDraw

from slotwise.worker import Settings, SlotError, TorchServeHandler
from tests.worker.leaving import Base, Keeper, as_json
from tests.worker.test_guard_undoes import Frozen
from tests.worker.toy import ask, begin

torch = pytest.importorskip("torch")

FOLDER = Path(tempfile.gettempdir()) / f"files-of-{os.getpid()}"
NOTES: list[str] = []
FEATURES: dict[str, Any] = {}
Pair = namedtuple("Pair", "first second")


class NotThere(SlotError):
    code = 404


class Registry:
    names: ClassVar[list[str]] = []
    name = ""

    def __init__(self, name: str) -> None:
        Registry.names.append(name)


class Single:
    one: Any = None
    names: list[str]

    def __new__(cls) -> Any:
        if cls.one is None:
            cls.one = super().__new__(cls)
            cls.one.names = []
        return cls.one


class Timed:
    """A decorator that is a class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __get__(self, owner: Any, kind: type) -> Any:
        return functools.partial(self.function, owner)


def noted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def noting(self: Any, name: str) -> Any:
        NOTES.append(name)
        return function(self, name)

    return noting


def remember(name: str) -> None:
    remember.last = name  # type: ignore[attr-defined]


@functools.lru_cache
def cached_list(name: str) -> list[str]:
    return []


@functools.lru_cache
def note_once(name: str, number: float) -> None:
    NOTES.append(name)


class Left(Base):
    def prepare(self) -> None:
        NOTES.clear()
        Registry.names.clear()
        Single.one = None
        self.made = {"a": [[]]}

    def keep(self, name: str) -> None:
        self.names().append(name)

    def names(self) -> Any:
        raise NotImplementedError

    def told(self) -> str:
        return str(self.made["a"][0].pop(0))


class ADeepObject(Left):
    def prepare(self) -> None:
        self.made = self.holding(Keeper())

    def holding(self, keeper: Keeper) -> Any:
        return {"a": [keeper]}

    def keep(self, name: str) -> None:
        self.made["a"][0].note(name)

    def told(self) -> str:
        return str(self.made["a"][0].told())


class InAnOrderedDict(ADeepObject):
    def holding(self, keeper: Keeper) -> Any:
        return OrderedDict(a=Pair(keeper, 1))


class AnotherClass(Left):
    def keep(self, name: str) -> None:
        Registry.name = name

    def told(self) -> str:
        return Registry.name


class AnotherClassInANew(Left):
    def keep(self, name: str) -> None:
        Registry(name)

    def told(self) -> str:
        return Registry.names.pop(0)


class ASingle(Left):
    def names(self) -> Any:
        return Single().names

    def told(self) -> str:
        return str(Single().names.pop(0))


class OfAFunction(Left):
    def keep(self, name: str) -> None:
        remember(name)

    def told(self) -> str:
        return str(remember.last)  # type: ignore[attr-defined]


class ByAClassAsDecorator(Left):
    @Timed
    def keep(self, name: str) -> None:
        NOTES.append(name)

    def told(self) -> str:
        return NOTES.pop(0)


class ByADecorator(ByAClassAsDecorator):
    @noted
    def keep(self, name: str) -> None:
        pass


class ByACachedFunction(ByAClassAsDecorator):
    def keep(self, name: str) -> None:
        note_once(name, random.random())


class ByMap(ByAClassAsDecorator):
    def keep(self, name: str) -> None:
        list(map(NOTES.append, [name]))


class ByGetattr(Left):
    def names(self) -> Any:
        return getattr(self, "made")["a"][0]  # noqa: B009


class ByABoundMethod(Left):
    def keep(self, name: str) -> None:
        add = self.made["a"][0].append
        add(name)


class ByMatch(Left):
    def keep(self, name: str) -> None:
        match self.made:
            case {"a": [names]}:
                names.append(name)


class ByAStaticMethod(Left):
    @staticmethod
    def first(names: Any) -> Any:
        return names["a"][0]

    def names(self) -> Any:
        return self.first(self.made)


class ByAChoice(Left):
    def names(self) -> Any:
        return random.choice(self.made["a"])


class ByACopy(Left):
    def names(self) -> Any:
        return {**self.made}["a"][0]


class ByATable(Left):
    def prepare(self) -> None:
        super().prepare()
        self.table = {"note": self.note}

    def note(self, name: str) -> None:
        self.made["a"][0].append(name)

    def keep(self, name: str) -> None:
        self.table["note"](name)


class ByANameThatIsPutTogether(ByATable):
    def keep(self, name: str) -> None:
        getattr(self, f"no{'te'}")(name)


class AClosureInADict(Left):
    def prepare(self) -> None:
        last = ""

        def note(name: str) -> None:
            nonlocal last
            last = name

        self.made = {"note": note, "tell": lambda: last}

    def keep(self, name: str) -> None:
        self.made["note"](name)

    def told(self) -> str:
        return str(self.made["tell"]())


class ADefault(Left):
    def keep(self, name: str) -> None:
        self.by_default(name)

    def by_default(self, name: str = "", names: list[str] = []) -> str:  # noqa: B006
        if not name:
            return names.pop(0)
        names.append(name)
        return ""

    def told(self) -> str:
        return self.by_default()


class ItsGlobals(Left):
    def keep(self, name: str) -> None:
        globals()["CURRENT"] = name

    def told(self) -> str:
        return str(globals()["CURRENT"])


class ItsModule(Left):
    def keep(self, name: str) -> None:
        sys.modules[__name__].CURRENT = name  # type: ignore[attr-defined]

    def told(self) -> str:
        return str(globals()["CURRENT"])


class AsAnArray(Left):
    def prepare(self) -> None:
        self.made = np.zeros(1, "U16")

    def keep(self, name: str) -> None:
        np.asarray(self.made)[0] = name

    def told(self) -> str:
        return str(self.made[0])


class TheManifest(Left):
    def initialize(self, context: Any) -> None:
        super().initialize(context)
        self.manifest = context.manifest

    def keep(self, name: str) -> None:
        self.manifest["model"]["name"] = name

    def told(self) -> str:
        return str(self.context.manifest["model"]["name"])


class TheContext(Left):
    def keep(self, name: str) -> None:
        self.context.names = [*getattr(self.context, "names", []), name]

    def told(self) -> str:
        return str(self.context.names.pop(0))


class InACachedList(Left):
    def prepare(self) -> None:
        cached_list.cache_clear()

    def names(self) -> Any:
        return cached_list("a")

    def told(self) -> str:
        return cached_list("a").pop(0)


class TheEnvironment(Left):
    def keep(self, name: str) -> None:
        os.environ["NAME_OF_A_TEST"] = name

    def told(self) -> str:
        return os.environ["NAME_OF_A_TEST"]


class AFileOfOneName(Left):
    path: Any

    def prepare(self) -> None:
        self.folder = str(FOLDER)

    def keep(self, name: str) -> None:
        path = os.path.join(self.folder, "input.txt")
        with open(path, "w") as file:
            file.write(name)

    def told(self) -> str:
        return (FOLDER / "input.txt").read_text()


class AFileThatAPathWrites(AFileOfOneName):
    def keep(self, name: str) -> None:
        (FOLDER / f"{'input'}.txt").write_text(name)


class AFileThatALibraryWrites(AFileOfOneName):
    def keep(self, name: str) -> None:
        np.save(f"{self.folder}/input.npy", np.array([name]))

    def told(self) -> str:
        return str(np.load(FOLDER / "input.npy")[0])


class AStream(Left):
    def prepare(self) -> None:
        self.made = {"a": [io.StringIO()]}

    def keep(self, name: str) -> None:
        json.dump(name, self.made["a"][0])

    def told(self) -> str:
        stream = self.made["a"][0]
        name, end = json.JSONDecoder().raw_decode(text := stream.getvalue())
        stream.seek(0)
        stream.truncate()
        stream.write(text[end:])
        return str(name)


class ADrawing(Left):
    def prepare(self) -> None:
        self.made = Image.new("L", (16, 1))

    def keep(self, name: str) -> None:
        draw = ImageDraw.Draw(self.made)
        for x, letter in enumerate(name.encode().ljust(16, b"\0")):
            draw.point((x, 0), letter)

    def told(self) -> str:
        return bytes(self.made.tobytes()).rstrip(b"\0").decode()


class ALibrarysObject(Left):
    def prepare(self) -> None:
        self.made = pytest.importorskip("sklearn.preprocessing").LabelEncoder()

    def keep(self, name: str) -> None:
        self.made.fit_transform([name])

    def told(self) -> str:
        return str(self.made.inverse_transform([0])[0])


WAYS = [kind for kind in Left.__subclasses__() for kind in (kind, *kind.__subclasses__())]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    FOLDER.mkdir()
    yield
    shutil.rmtree(FOLDER)
    globals().pop("CURRENT", None)


@pytest.mark.parametrize("kind", WAYS)
def test_what_is_left_for_a_request_is_in_no_other_answer(kind: type[Left]) -> None:
    for batches in (
        [["alice2", "bob", "carolsecret"], ["d", "d", "bob", "e", "alice2"]],
        [["bad", "bob"], ["bob"], ["early", "d", "bad", "bob"], ["wrong"], ["d"], ["d", "wrong", "e"]],
    ):
        handler = begin(kind(), Settings(batch_size=4))
        for bodies in batches:
            answers = ask(handler, bodies, as_json(len(bodies)))
            wanted = [{"bad": 400, "early": 400, "wrong": 500}.get(body, [body, float(len(body))]) for body in bodies]
            assert [answer.value if answer.code == 200 else answer.code for answer in answers] == wanted
        assert handler.max_rows == 1


class Gathered:
    def __init__(self) -> None:
        self.outputs: Any = None

    def __call__(self, module: Any, given: Any, output: Any) -> None:
        self.outputs = output


class Attention(torch.nn.Module):
    def forward(self, data: Any) -> Any:
        self.outputs = data.clone()
        return data


class Network(TorchServeHandler):
    """postprocess answers with what a part of the network has kept."""

    def initialize(self, context: Any) -> None:
        self.model: Any = torch.nn.Sequential(torch.nn.Identity())
        self.gathered = Gathered()
        self.prepare()

    def prepare(self) -> None:
        self.model[0].register_forward_hook(self.gathered)

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        return torch.tensor([[float(row["body"])] for row in data])

    def outputs(self) -> Any:
        return self.gathered.outputs

    def postprocess(self, data: Any) -> Any:
        return [self.outputs().tolist()]


class AHook(Network):
    pass


class AFunctionAsHook(Network):
    def prepare(self) -> None:
        self.model[0].register_forward_hook(lambda module, given, output: FEATURES.update(x=output))

    def outputs(self) -> Any:
        return FEATURES["x"]


class AMethodAsHook(Network):
    def prepare(self) -> None:
        self.kept: dict[str, list[Any]] = {"x": []}
        self.model[0].register_forward_hook(self.hook)

    def hook(self, module: Any, given: Any, output: Any) -> None:
        self.kept["x"][:] = [output]

    def outputs(self) -> Any:
        return self.kept["x"][0]


class APart(Network):
    def prepare(self) -> None:
        self.model = torch.nn.Sequential(Attention())

    def outputs(self) -> Any:
        return self.model[0].outputs


@pytest.mark.parametrize("kind", Network.__subclasses__())
def test_what_a_part_of_a_network_keeps_is_of_one_request(kind: type[Network]) -> None:
    handler = begin(kind(), Settings(batch_size=4))
    for bodies in (["1", "2", "3"], ["4"], ["5", "6"]):
        assert [answer.value for answer in ask(handler, bodies, as_json(3))] == [[[float(body)]] for body in bodies]


def test_random_numbers_are_of_each_requests_seed() -> None:
    class Drawn(Network):
        def prepare(self) -> None:
            pass

        def preprocess(self, data: list[dict[str, Any]]) -> Any:
            torch.manual_seed(int(data[0]["body"]))
            return super().preprocess(data)

        def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
            return torch.rand(len(data), 1)

        def postprocess(self, data: Any) -> Any:
            return list(map(float, data[0]))

    alone = {body: ask(begin(Drawn(), Settings(batch_size=4)), [body], as_json(1))[0].value for body in "123"}
    handler = begin(Drawn(), Settings(batch_size=4))
    assert [answer.value for answer in ask(handler, [*"123123"], as_json(6))] == [alone[body] for body in "123123"]


class Noisy(Network):
    """Each row alone gets the first numbers of a generator."""

    def prepare(self) -> None:
        self.generator = torch.Generator()

    def noise(self, shape: Any) -> Any:
        return torch.rand(shape, generator=torch.Generator().manual_seed(0))

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return self.noise(data.shape)

    def postprocess(self, data: Any) -> Any:
        return data.tolist()


class NoisyByItsOwn(Noisy):
    def noise(self, shape: Any) -> Any:
        return torch.rand(shape, generator=self.generator.manual_seed(0))


class NoisyByNumpy(Noisy):
    def noise(self, shape: Any) -> Any:
        return np.random.default_rng(0).random(shape)


class NoisyByPython(Noisy):
    def noise(self, shape: Any) -> Any:
        generator = random.Random(0)
        return np.array([[generator.random()] for _ in range(shape[0])])


@pytest.mark.parametrize("kind", [Noisy, *Noisy.__subclasses__()])
def test_random_numbers_of_one_seed_are_those_of_a_row_alone(kind: type[Noisy]) -> None:
    handler = begin(kind(), Settings(batch_size=4))
    assert len({json.dumps(answer.value) for answer in ask(handler, [*"1231"], as_json(4))}) == 1


class Printed(Network):
    """Each request says with how many digits a library writes numbers."""

    def prepare(self) -> None:
        pass

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        self.put(int(data[0]["body"]))
        return super().preprocess(data)

    def put(self, digits: int) -> None:
        torch.set_printoptions(precision=digits)

    def written(self) -> str:
        return str(torch.tensor(1 / 3))

    def postprocess(self, data: Any) -> Any:
        return [self.written()]


class PrintedByAVariable(Printed):
    def put(self, digits: int) -> None:
        Image.MAX_IMAGE_PIXELS = digits

    def written(self) -> str:
        return f"tensor({1 / 3:.{Image.MAX_IMAGE_PIXELS}f})"


class PrintedByTheEnvironment(Printed):
    def put(self, digits: int) -> None:
        os.environ["DIGITS_OF_A_TEST"] = str(digits)

    def written(self) -> str:
        return f"tensor({1 / 3:.{int(subprocess.check_output(['printenv', 'DIGITS_OF_A_TEST']))}f})"


@pytest.mark.parametrize("kind", [Printed, *Printed.__subclasses__()])
def test_a_setting_of_a_library_is_each_requests_own(kind: type[Printed], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10**6)
    monkeypatch.setenv("DIGITS_OF_A_TEST", "")
    handler = begin(kind(), Settings(batch_size=4))
    answers = ask(handler, [*"1231"], as_json(4))
    torch.set_printoptions(profile="default")
    assert [answer.body.decode() for answer in answers] == [f"tensor({1 / 3:.{digits}f})" for digits in (1, 2, 3, 1)]


@dataclasses.dataclass
class Options:
    size: int = 3
    names: list[str] = dataclasses.field(default_factory=lambda: ["three"])


@functools.lru_cache
def cleaned(text: str) -> str:
    return text.strip()


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    def timing(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return timing


class Counting:
    """As a pipeline of transformers, which counts its calls."""

    call_count = 0

    def __call__(self, data: Any) -> Any:
        self.call_count += 1
        return data


Counting.__module__ = "pytest"


class KeepsNothing(Network):
    """What is like leaving something, and is not."""

    def prepare(self) -> None:
        self.options, self.folder, self.log = (
            Options(),
            tempfile.gettempdir(),
            logging.LoggerAdapter(logging.getLogger("x"), {}),
        )
        self.pipe, self.scaler = Counting(), pytest.importorskip("sklearn.preprocessing").StandardScaler()

    @functools.cached_property
    def labels(self) -> list[str]:
        return ["none", "one"]

    @staticmethod
    def halved(data: Any) -> Any:
        data /= 2
        return data

    @timed
    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        names = list(self.options.names)
        names.append(cleaned(data[0]["body"]))
        self.log.info("%s of %s", names, self.labels)
        stream = io.BytesIO()
        Image.new("L", (2, 2)).save(stream, "JPEG")
        path = os.path.join(self.folder, f"{uuid.uuid4()}.jpg")
        with open(path, "wb") as file:
            file.write(stream.getvalue())
        Path(path).unlink()
        noise = torch.rand(1, generator=torch.Generator().manual_seed(3))
        torch.backends.cudnn.benchmark = False
        return self.halved(super().preprocess(data)) + 0 * noise

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        return self.pipe(torch.multiply(data, self.scaler.with_mean))

    def postprocess(self, data: Any) -> Any:
        self.log.info("%s of %s", self.labels, self.scaler.with_std)
        return [[self.options.names[0], cleaned("a"), float(data[0])]]


def test_who_keeps_nothing_runs_in_batches() -> None:
    handler = begin(KeepsNothing(), Settings(batch_size=4))
    answers = [answer.value for _ in range(3) for answer in ask(handler, ["2", "4", "6"], as_json(3))]
    assert answers == [["three", "a", number] for number in (1.0, 2.0, 3.0)] * 3
    assert handler.max_rows is None


def test_a_user_dict_is_as_it_was() -> None:
    made = UserDict(a=[])

    class Kept(Base):
        def prepare(self) -> None:
            self.made = made

        def keep(self, name: str) -> None:
            self.made["a"].append(name)

        def told(self) -> str:
            return str(self.made["a"].pop(0))

    handler = begin(Kept(), Settings(batch_size=4))
    assert [answer.code for answer in ask(handler, ["bad"], as_json(1))] == [400]
    assert [answer.value for answer in ask(handler, ["bob"], as_json(1))] == [["bob", 3.0]]


def test_what_cannot_be_set_keeps_no_error_from_its_request() -> None:
    class Refuses(Base):
        def prepare(self) -> None:
            self.made = Frozen()

        def keep(self, name: str) -> None:
            self.made.add(name)
            if name == "gone":
                raise NotThere("gone")

        def told(self) -> str:
            return str(self.made.name)

    handler = begin(Refuses(), Settings(batch_size=4))
    assert [answer.code for answer in ask(handler, ["gone", "bob", "gone"], as_json(3))] == [404, 200, 404]


def test_a_slow_request_that_fails_takes_nothing_from_a_call_beside_it() -> None:
    class Beside(TorchServeHandler):
        def initialize(self, context: Any) -> None:
            self.last = np.zeros((1, 1))

        def preprocess(self, data: list[dict[str, Any]]) -> Any:
            if data[0]["body"] == "slow":
                time.sleep(3.0)
                raise ValueError
            return np.array([[float(data[0]["body"])]])

        def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
            self.last = data
            if (data == 2).any():
                time.sleep(1.6)
            return self.last

        def postprocess(self, data: Any) -> Any:
            return data.tolist()

    handler = begin(Beside(), Settings(batch_size=4, response_timeout_s=8.0))
    assert [answer.value for answer in ask(handler, ["1"], as_json(1))] == [[1.0]]
    answers = ask(handler, ["2", "slow"], as_json(2))
    assert [answer.code for answer in answers] == [200, 503]
    assert answers[0].value == [2.0]
