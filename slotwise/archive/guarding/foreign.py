"""Archives of other tools (torch-model-archiver, MMS, MMS before 1.0): their manifests, and which handlers can be guarded."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from slotwise.archive.packaging import DIGESTS, MANIFEST, WITHOUT_SERVER
from slotwise.archive.zip_safety import read_small
from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from slotwise.archive.archive_info import ArchiveInfo

LEGACY_MANIFEST = "MANIFEST.json"
GUARD = "_slotwise_guard"  # the folder that a guard adds to an archive
TERMS = f"{GUARD}/guard.json"  # the handler that theirs was, and how it is guarded
SOURCE_BYTES = 16 << 20  # of one Python file
MOST_VALUES, MOST_DEEP = 10_000, 50  # of a model-config.yaml; the depth of JSON, too
DEFAULT_HANDLERS = (
    *("image_classifier", "object_detector", "image_segmenter", "text_classifier", "base_handler"),
    *("dali_image_classifier", "vllm_handler", "trt_llm_handler"),
)

# What shows that a handler's calls must not be repeated, or are made side by side in several processes
PIECES = "send_intermediate_predict_response"
CRITERIA = "stopping_criteria"
STREAMS = {CRITERIA, "ts_stream_next"}
SEQUENCES = {"get_sequence_id", "ts_request_sequence_id", "ts_request_sequence_start", "ts_request_sequence_end"}
PROCESSES = {"BasePippyHandler", "BaseDeepSpeedHandler"}
ENGINES = {"VLLMHandler", "TRTLLMHandler", "vllm_handler", "trt_llm_handler"}
COROUTINES = "asyncCommunication"
SEQUENCED = "sequenceBatching"
CONTINUOUS = "continuousBatching"
CONFIGURED = {
    CONTINUOUS: "its config has continuousBatching: it streams",
    COROUTINES: "its config has asyncCommunication: it streams",
    SEQUENCED: "its config has sequenceBatching: its requests depend on one another",
    "parallelType": "its config has parallelType: several processes answer one batch together",
}
UNREADABLE = "its model-config.yaml cannot be read"


def check_handler(info: ArchiveInfo, asked: str) -> None:
    """Raise SlotwiseError where an archive is to be registered with another handler than its own. asked: "" asks for none."""
    own = info.handler
    if own.startswith(f"{GUARD}:"):
        with zipfile.ZipFile(info.path) as source:
            own = str(json.loads(read_small(source, TERMS))["handler"])
    if asked and _function(asked) != _function(own):
        hint = "make an archive that names it"
        raise SlotwiseError(f"handler={asked:.100} is refused: the handler of this archive is {own:.100}", hint)


def _function(handler: str) -> tuple[str, str]:
    """Module and function that a handler stands for."""
    module, _, function = handler.partition(":")
    return module.removesuffix(".py"), function or "handle"


def lacks(info: ArchiveInfo) -> list[str]:
    """One line for everything that an archive of another tool lacks; none for one of ours."""
    names = {entry.name for entry in info.entries}
    if DIGESTS in names:
        return []
    lines = ["foreign: no digests, so nobody can tell whether it is what was built"]
    if not any(name.startswith("examples/") for name in names):
        lines.append("foreign: no examples, so `slotwise check` needs a body to ask with (--body FILE)")
    if MANIFEST not in names:
        lines.append("foreign: laid out for Multi Model Server before 1.0, so TorchServe cannot read it")
    elif f"{info.handler.partition(':')[0].removesuffix('.py').split('/')[-1]}.py" not in names:
        known = "is TorchServe's own" if info.handler in DEFAULT_HANDLERS else "has to be installed where the server runs"
        lines.append(f"foreign: no handler of its own: {info.handler} {known}")
    return [*lines, "foreign: no guard, so one bad request can cost a whole batch (`slotwise guard`)"]


def migrated(legacy: dict[str, Any]) -> dict[str, Any]:
    """The manifest of an archive for MMS before 1.0 as MMS itself migrates it; raises KeyError where it is none."""
    model = legacy["Model"]
    named = {"modelName": model["Model-Name"], "handler": model["Service"], "modelVersion": "1.0"}
    about = {"specificationVersion": "0.1", "runtime": "python", "description": legacy.get("Model-Archive-Description", "")}
    return {**about, "model": {**named, "description": model.get("Description", "")}}


def config_of(source: zipfile.ZipFile, manifest: dict[str, Any]) -> dict[str, Any]:
    """The model-config.yaml that the manifest names; {} where there is none, or it cannot be read."""
    return _config(source, manifest) or {}


def _config(source: zipfile.ZipFile, manifest: dict[str, Any]) -> dict[str, Any] | None:
    """As `config_of`; None where it cannot be read, or PyYAML is not here."""
    name = _config_file(source, manifest)
    if not name:
        return {}
    if importlib.util.find_spec("yaml") is None:
        return None
    import yaml  # noqa: PLC0415  optional: TorchServe brings it

    text = read_small(source, name)
    try:
        config = yaml.safe_load(text)
    except Exception:  # its constructors raise whatever an odd value meets: AttributeError, KeyError, IndexError
        return None
    config = {} if config is None else config
    return config if isinstance(config, dict) and is_small(config) else None


def _config_file(source: zipfile.ZipFile, manifest: dict[str, Any]) -> str:
    """The model-config.yaml within the archive, "" where there is none: where the manifest has it, or at the top."""
    named = PurePosixPath(str(manifest["model"].get("configFile", "")))
    return next((name for name in (named.as_posix(), named.name) if name in source.namelist()), "")


def is_small(data: Any, most: int = MOST_VALUES) -> bool:
    """Whether this can be written as JSON: at most so many values, nested no deeper than MOST_DEEP.

    The aliases of a YAML file may stand for billions of values, or for themselves.
    """
    waiting = [(data, 0)]
    for _ in range(most):
        if not waiting:
            return True
        value, depth = waiting.pop()
        if depth > MOST_DEEP:
            return False
        if isinstance(value, dict):
            if not all(isinstance(key, str | int | float) for key in value):
                return False
            value = value.values()
        elif not isinstance(value, list | tuple | set):
            continue
        waiting += [(one, depth + 1) for one in value]
    return False


def asked_once(source: zipfile.ZipFile, manifest: dict[str, Any]) -> Literal["", "pieces", "sequence", "steps"]:
    """What keeps the archive's handler from being asked twice: it sends pieces, or keeps what came before.

    Of a sequence, or of the one request for which it is called step by step.
    """
    words = {word for _, tree in _modules(source, _handler_file(manifest)) for word in _words(tree)}
    if words & SEQUENCES or SEQUENCED in _configured(source, manifest):
        return "sequence"
    if CRITERIA in words:
        return "steps"
    return "pieces" if PIECES in words else ""


def objection(source: zipfile.ZipFile, manifest: dict[str, Any], bare: bool = False, sequences: bool = False) -> str:
    """Why the archive's handler cannot be guarded, "" where nothing is against it.

    bare: it is called once a batch only. sequences: where it is served, the requests of one stay in one worker, and pieces are
    taken as they come.
    """
    handler = str(manifest["model"]["handler"])
    if not str(manifest.get("runtime", "python")).lower().startswith("python"):
        return f"its handler is no Python, but for {manifest['runtime']}"
    configured = _configured(source, manifest)
    once = asked_once(source, manifest)
    steps = sequences and CONTINUOUS in configured and once == "steps"
    for key, why in configured.items():
        if not ((bare and key == COROUTINES) or (sequences and key == SEQUENCED) or (steps and key == CONTINUOUS)):
            return why
    name, _, function = handler.partition(":")
    if name in ENGINES:
        return f"its handler {name} streams its answers"
    for file, tree in _modules(source, _handler_file(manifest)):
        if why := _fault(tree, function or "handle", bare and not once, sequences and SEQUENCED in configured, steps):
            return f"{why} ({file})"
    return ""


def _configured(source: zipfile.ZipFile, manifest: dict[str, Any]) -> dict[str, str]:
    """The keys of CONFIGURED that its model-config.yaml sets, and what each says; what cannot be read may say anything."""
    config = _config(source, manifest)
    if config is not None:
        set_to = {key: config.get(key) or None for key in CONFIGURED}
    elif importlib.util.find_spec("yaml") is not None:
        return {UNREADABLE: UNREADABLE}
    else:  # every mention of a key counts, wherever it is
        text = read_small(source, _config_file(source, manifest)).decode("utf-8", "replace")
        if "\ufffd" in text or "\\" in text:  # in UTF-16, or with names in escapes
            return {UNREADABLE: f"{UNREADABLE} without PyYAML"}
        text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
        found = {key: re.findall(rf"{key}[\"']?\s*:\s*(?:!\S*\s+)?[\"']?(\w+)|{key}", text) for key in CONFIGURED}
        set_to = {key: next((one for one in values if not _is_off(one)), None) for key, values in found.items()}
    return {key: why for key, why in CONFIGURED.items() if not _is_off(set_to[key])}


def _is_off(value: Any) -> bool:
    return value is None or str(value).lower() in ("false", "no", "off")


def _handler_file(manifest: dict[str, Any]) -> str:
    name = str(manifest["model"]["handler"]).partition(":")[0]
    return f"{name.removesuffix('.py').split('/')[-1]}.py"


def _modules(source: zipfile.ZipFile, first: str) -> Iterator[tuple[str, ast.Module]]:
    """The handler's file and the archive's own modules that it imports, one after the other."""
    names, seen, waiting = set(source.namelist()), set(), [first]
    while waiting:
        file = waiting.pop()
        if file in seen or file not in names:
            continue
        seen.add(file)
        try:
            tree = ast.parse(read_small(source, file, SOURCE_BYTES))
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # the server will say what it thinks of it
            continue
        yield file, tree
        for name in _imported(tree, file):
            waiting += [f"{name}.py", f"{name}/__init__.py"]


def _imported(tree: ast.Module, file: str) -> Iterator[str]:
    """Paths, without .py, of everything that a module may import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.replace(".", "/") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = PurePosixPath(file).parents
            above = parents[min(node.level, len(parents)) - 1].as_posix() if node.level else "."
            base = f"{above}/" if above != "." else ""
            path = base + (node.module or "").replace(".", "/")
            yield path
            yield from (f"{path}/{alias.name}".removeprefix("/") for alias in node.names)


def _fault(tree: ast.Module, function: str, bare: bool, sequences: bool, steps: bool) -> str:
    """What a module says that shows that its calls must not be repeated; "" for nothing. steps: it is called until it stops."""
    words = set(_words(tree))
    if "BatchHandler" in words and "slotwise" in {name.partition("/")[0] for name in _imported(tree, "_")}:  # else it is theirs
        return "it is a BatchHandler, and so keeps every request's slot by itself"
    if found := words & ((STREAMS | ENGINES) - ({CRITERIA} if steps else set())):
        return f"it streams its answers: {min(found)}"
    if not sequences and (found := words & SEQUENCES):
        return f"its requests depend on one another: {min(found)}"
    if found := words & PROCESSES:
        return f"several processes answer one batch together: {min(found)}"
    if bare:
        return ""
    if any(isinstance(node, ast.AsyncFunctionDef) and node.name == function for node in ast.walk(tree)):
        return f"{function} is a coroutine: it streams its answers"
    if any(isinstance(node, ast.ClassDef) and node.name == "MicroBatching" for node in ast.walk(tree)):
        return "it brings a MicroBatching of its own, whose threads end at an exception: use ts.handler_utils.micro_batching"
    return ""


def _words(tree: ast.Module) -> Iterator[str]:
    """What a module names. Criteria count where they are a context's: transformers has an argument of that name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr != CRITERIA or ast.unparse(node.value) != "self":
                yield node.attr
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Name | ast.Constant):
            word = node.id if isinstance(node, ast.Name) else node.value
            if isinstance(word, str) and len(word) < 40 and word != CRITERIA:
                yield word


def need_worker(info: ArchiveInfo, server: str, host: str) -> None:
    """Raise SlotwiseError where the archive carries no worker that runs on the server. host: its module in the worker."""
    with zipfile.ZipFile(info.path) as source:
        names = set(source.namelist())
        carried = json.loads(source.read("slotwise.json")) if "slotwise.json" in names else {}
    if f"{GUARD}/{host}" in names or (carried.get("worker", 1) >= WITHOUT_SERVER and f"slotwise/worker/{host}" in names):
        return
    if info.foreign:
        hint = f"`slotwise guard` makes one of it that runs on {server}"
        raise SlotwiseError(f"{info.path.name} is another tool's archive", hint)
    hint = f"build it again: `slotwise build {info.name}`"
    raise SlotwiseError(f"{info.path.name} carries no worker that runs on {server}", hint)
