"""Read a model's description, `model.toml`: which handler serves it, with which weights, input and labels.

    name = "digits"
    version = "1.0"
    handler = "image_classifier"          # a given handler, or a .py file of this folder
    labels = "labels.txt"                 # a list, or a file with one label a line
    examples = ["seven.png"]              # bodies that the model answers; `slotwise check` replays them

    [input]
    shape = [1, 28, 28]                   # one item, without the batch axis

    [weights]                             # one file or several; the profile's engine picks
    state_dict = "weights.pt"
    module = "net.py"

    [profiles.cuda]                       # values for this model instead of those in profiles/cuda.toml
    batch_size = 32

Every path is relative to the folder of the model (or to what its make.py wrote). Unknown keys are errors.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from slotwise.errors import SlotwiseError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}")  # the gateway finds no longer one


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or any(part.startswith(".") for part in parts) or {*"\\,\0"} & {*path}:
        raise ValueError(f"{path!r} is not a path inside the model's folder")
    return path


def _named(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be a model's name: use letters, digits, - _ and .")
    return name


File = Annotated[str, AfterValidator(_inside)]
Count = Annotated[int, Field(ge=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]  # OpenVINO makes an answer of what is not finite
_Model = TypeVar("_Model", bound=BaseModel)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TableColumn(_Section):
    """One column of a table; in model.toml `age = "int"`, `income = "float?"` (a number that may be missing), `city = "text"`,
    `colour = ["red", "green"]` (one of these texts), or all keys: `age = {kind = "int", input = "numbers"}`.

    input: the graph's input that it is a part of, where that has another name.
    """

    name: str
    kind: Literal["float", "int", "bool", "text"] = "float"
    values: list[str] = []
    missing: bool = False
    input: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> TableColumn:
        if self.kind == "text" and self.missing:
            raise ValueError("a text cannot be missing: list its values with an empty one among them")
        if self.values and self.kind != "text":
            raise ValueError("only a column of texts lists its values")
        return self


def _columns(given: Any) -> Any:
    """[input.columns] as a list; a list stays as it is. Raises ValueError for a column that nobody can read."""
    if not isinstance(given, dict):
        return given
    return [_column(name, about) for name, about in given.items()]


def _column(name: str, about: Any) -> dict[str, Any]:
    if isinstance(about, list):
        return {"name": name, "kind": "text", "values": about}
    if isinstance(about, str):
        kind = about.removesuffix("?")
        return {"name": name, "kind": kind, **({"missing": True} if kind != about else {})}
    if isinstance(about, dict):
        return {**about, "name": name}
    raise ValueError(f'{name} must be "float", "int", "bool", "text" or a list of texts')


class Input(_Section):
    """What one item is before it reaches the engine.

    name: the ONNX graph's input, checked at build. shape: [c, h, w] for a picture (c = 1 is greyscale), [t] or anything else
    for other tensors. dtype: what the weights take. resize: the shorter side before h x w are cut out of the middle; without
    it the whole picture is squeezed. ink: find a drawn sign on its paper. mean, std: one number for each channel, for values
    0..1, where the weights take normalised floats. max_pixels: a larger picture is refused with 413. columns: of a table.
    """

    name: str | None = None
    shape: list[int] = []
    dtype: Literal["float32", "uint8", "int64"] = "float32"
    resize: Count | None = None
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    ink: bool = False
    mean: list[Number] = []
    std: list[Number] = []
    max_pixels: Count | None = None
    columns: Annotated[list[TableColumn], BeforeValidator(_columns)] = []

    @model_validator(mode="after")
    def _consistent(self) -> Input:
        if any(side < 1 for side in self.shape):
            raise ValueError("shape must be of positive sizes, without the batch axis")
        for key in ("mean", "std"):
            numbers = getattr(self, key)
            if numbers and self.shape and len(numbers) != self.shape[0]:
                raise ValueError(f"{key} has {len(numbers)} numbers for {self.shape[0]} channels")
        if any(number <= 0 for number in self.std):
            raise ValueError("std must be positive")
        return self


class Weights(_Section):
    """The weights, one file for each form.

    module: the Python file whose network `state_dict` fits, "net.py" or "net.py:Net". openvino_int8: an .xml with its .bin
    beside it. lightgbm, xgboost, skops: a table's model in the library's own file.
    """

    torchscript: File | None = None
    onnx: File | None = None
    openvino_int8: File | None = None
    export: File | None = None
    state_dict: File | None = None
    module: File | None = None
    lightgbm: File | None = None
    xgboost: File | None = None
    skops: File | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Weights:
        if self.tables and len(self.files()) > 1:
            raise ValueError(f"{self.tables[0]} is a model by itself: name no other file beside it")
        if (self.state_dict is None) != (self.module is None):
            raise ValueError("state_dict and module belong together: the tensors, and the .py file of their module")
        return self

    @property
    def tables(self) -> list[str]:
        """The forms of a table's model that are named, each in its library's own file."""
        return [form for form in ("lightgbm", "xgboost", "skops") if getattr(self, form)]

    def files(self) -> list[str]:
        """Every file named here, once."""
        named = [self.torchscript, self.onnx, self.export, self.state_dict, (self.module or "").split(":")[0]]
        named += [getattr(self, form) for form in self.tables]
        named += [self.openvino_int8, self.openvino_int8 and str(PurePosixPath(self.openvino_int8).with_suffix(".bin"))]
        return list(dict.fromkeys(name for name in named if name))


class Stage(_Section):
    """One model of several in a process. model: a folder beside this one or below it, or a known model's name."""

    name: Annotated[str, AfterValidator(_named)]
    model: str


class ModelSpec(_Section):
    """One model.toml.

    files: further files or folders for the archive. options: for the handler alone. hedge: whether the gateway may send a
    request a second time when its answer is late; false where answering has side effects. separable: "required" refuses to
    build and to serve a network that is not proven to keep the rows of a batch apart; with "auto" its rows run one by one.

    expected: of a table, a file of rows and of what its library answers; the build compares.

    inputs: of a graph of several tensors, the shape of a record's where the graph leaves sides free, by name.

    output: what the given classifiers take the network's numbers for, "probabilities", "logits", "regression" or "embedding";
    or the name of one of an ONNX graph's outputs; or both, "scores:logits".
    """

    name: Annotated[str, AfterValidator(_named)]
    version: str = Field("1.0", pattern=r"^[0-9]+(\.[0-9]+)*$")
    handler: File
    description: str = ""
    labels: list[str] | File = []
    top_k: Count = 5
    examples: list[File] = []
    expected: File | None = None
    files: list[File] = []
    input: Input = Input()
    inputs: dict[str, list[Count]] = {}
    weights: Weights = Weights()
    options: dict[str, Any] = {}
    stages: list[Stage] = []
    hedge: bool = True
    output: str = ""
    separable: Literal["auto", "required"] = "auto"
    profiles: dict[str, dict[str, Any]] = {}

    @model_validator(mode="after")
    def _consistent(self) -> ModelSpec:
        if self.expected and self.handler != "tabular":
            raise ValueError('only a table (handler = "tabular") is compared with what is expected')
        own = self.handler == "tabular" or self.handler.endswith(".py")
        if self.weights.tables and not own:
            raise ValueError('LightGBM, XGBoost and skops are models of tables: handler = "tabular"')
        called: dict[str, str] = {}
        for path in self.examples:
            if called.setdefault(PurePosixPath(path).name, path) != path:
                raise ValueError(f"examples: {called[PurePosixPath(path).name]} and {path} would have one name in the archive")
        named = self.content()
        for path in named:
            if folder := next((other for other in named if PurePosixPath(other) in PurePosixPath(path).parents), None):
                raise ValueError(f"files: {folder} holds {path}, which is named as well: name its other files one by one")
        return self

    def content(self) -> list[str]:
        """Every file or folder that the archive carries besides its handler and examples."""
        return list(dict.fromkeys([*self.weights.files(), *self.files]))


def load_spec(folder: Path) -> ModelSpec:
    """Read and check `folder`/model.toml. A file of labels is read into `labels`.

    Raises SlotwiseError, one line that names the file and the key.
    """
    path = folder / "model.toml"
    spec = parse(ModelSpec, read_toml(path), path)
    if isinstance(spec.labels, str):
        try:
            lines = (folder / spec.labels).read_text("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SlotwiseError(f"{path}: labels: {spec.labels} cannot be read", str(error)) from error
        spec = spec.model_copy(update={"labels": [line.strip() for line in lines if line.strip()]})
    if (broken := two_lines(spec.labels)) is not None:
        raise SlotwiseError(f"{path}: labels: {broken!r:.100} holds a line break", "a label is one line")
    if len(set(spec.labels)) < len(spec.labels):
        repeated = next(label for i, label in enumerate(spec.labels) if label in spec.labels[:i])
        raise SlotwiseError(f"{path}: labels: {repeated!r} is there twice", "an answer needs distinct labels")
    return spec


def two_lines(labels: Iterable[str]) -> str | None:
    """A label that holds a line break; None where there is none."""
    return next((label for label in labels if "\n" in label or "\r" in label), None)


def read_toml(path: Path) -> dict[str, Any]:
    """The TOML file as a dict. Raises SlotwiseError where there is none, or it is not TOML."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        hint = "`slotwise new NAME` writes one to start from" if path.name == "model.toml" else "name a TOML file that is there"
        raise SlotwiseError(f"there is no {path}", hint) from error
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no TOML, or a number of 5000 digits
        raise SlotwiseError(f"{path} cannot be read: {error}", "it must be a TOML file in UTF-8") from error


def parse(model: type[_Model], data: dict[str, Any], path: Path) -> _Model:
    """`data` as a `model`. Raises SlotwiseError, one line that names `path` and the first key that is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as failed:
        first = failed.errors()[0]
        keys = [str(part) for part in first["loc"] if not re.search(r"[\[\]()]", str(part)) and part not in ("str", "int")]
        key = ".".join(keys)
        if first["type"] == "extra_forbidden":
            known = _known_keys(model, keys[:-1])
            close = difflib.get_close_matches(keys[-1], known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
            raise SlotwiseError(f"{path}: unknown key {key!r}", hint) from failed
        if first["type"] == "missing":
            hint = "every model.toml has a name and a handler" if model is ModelSpec and len(keys) == 1 else "add that key"
            raise SlotwiseError(f"{path}: the key {key!r} is missing", hint) from failed
        reason = first["msg"].removeprefix("Value error, ")
        raise SlotwiseError(f"{path}: {key}: {reason}" if key else f"{path}: {reason}", "correct that key") from failed


def _known_keys(model: type[BaseModel], section: list[str]) -> list[str]:
    for key in (key for key in section if not key.isdecimal()):  # a number is a place in a list
        field = model.model_fields.get(key)
        kinds = [field.annotation, *get_args(field.annotation)] if field else []
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if inner is None:
            return []
        model = inner
    return sorted(model.model_fields)
