"""Find a stranger's handler in its archive as the server would have found it, and start it as the server would have."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from slotwise.worker.environment import no_reports  # noqa: F401  before any library of theirs
from slotwise.worker.guard import micro_batching
from slotwise.worker.guard.owned import Miscounted

logger = logging.getLogger(__name__)

Handle = Callable[[Any, Any], Any]
ENVELOPES = "ts.torch_handler.request_envelope"


def start(handler: str, raw: Any, server: str, legacy: bool = False) -> Handle:
    """Load their handler, initialise it with the server's context, and return what answers a batch.

    handler: as it stood in their manifest. legacy: the archive is laid out as for MMS before 1.0. Whatever their code raises
    goes on to the server, as it did without a guard.
    """
    if legacy:
        return _legacy(handler, raw)
    if server == "torchserve":
        micro_batching.install()
    envelope = _envelope() if server == "torchserve" else None
    raw.manifest["model"]["handler"] = handler  # theirs may read it
    handle = _started(handler, raw, server)
    return envelope(handle).handle if envelope is not None else handle


def _started(handler: str, raw: Any, server: str) -> Handle:
    module, function = _module(handler, server)
    if hasattr(module, function):
        handle: Handle = getattr(module, function)
        handle(None, raw)
        return handle
    kinds = classes(module)
    if len(kinds) != 1:
        raise ValueError(f"Expected only one class in custom service code or a function entry point {kinds}")
    service = kinds[0]()
    handle = service.handle
    micro_batching.need_installed(handle)
    try:
        service.initialize(raw)
    except Exception:
        if server != "mms":
            raise
        logger.exception("the handler's initialize failed")  # MMS serves on, and so may the handler
    return handle


def _module(handler: str, server: str) -> tuple[ModuleType, str]:
    """The module that the manifest names, or TorchServe's default handler of that name, and the function in it."""
    name, _, function = handler.partition(":")
    try:
        module = importlib.import_module(name.removesuffix(".py").split("/")[-1])
    except ImportError as error:
        if server != "torchserve":
            raise
        try:
            return importlib.import_module(f".{handler}", "ts.torch_handler"), "handle"
        except ModuleNotFoundError as missing:
            raise (error if str(missing.name).startswith("ts.torch_handler.") else missing) from None
    return module, function or "handle"


def classes(module: ModuleType) -> list[Any]:
    """The classes that the module itself defines, as both servers list them."""
    members = inspect.getmembers(module, lambda member: inspect.isclass(member) and member.__module__ == module.__name__)
    return [kind for _, kind in members]


def _legacy(handler: str, raw: Any) -> Handle:
    """A service of MMS before 1.0: a SingleNodeService made with the model's name, folder, manifest and GPU."""
    folder = Path(raw.system_properties["model_dir"])
    raw.manifest = json.loads((folder / "MANIFEST.json").read_text("utf-8"))
    file = folder / f"{handler.removesuffix('.py')}.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    base = importlib.import_module("mms.model_service.mxnet_model_service").SingleNodeService
    kinds = [kind for kind in classes(module) if issubclass(kind, base)]
    service = kinds[0](raw.model_name, str(folder), raw.manifest, raw.system_properties.get("gpu_id"))
    service.initialize(raw)
    handle: Handle = service.handle
    return handle


def _counted(format_output: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An envelope's method that hands each request of a batch its part of the results, as many as it had instances.

    Where theirs has left one out, that would hand somebody else's on: it raises Miscounted, and each request is asked alone.
    """

    def counted(self: Any, results: Any) -> Any:
        lengths = getattr(self, "_lengths", ())
        if len(lengths) > 1 and len(results) != sum(lengths):
            raise Miscounted(f"{len(results)} results for {sum(lengths)} instances of {len(lengths)} requests")
        return format_output(self, results)

    return counted


def _envelope() -> Any | None:
    """The service envelope that the server's configuration names; from here on it hands the guard what it got itself.

    The server has put the envelope around the guard. An envelope reads all requests of a batch and fails for all of them, so it
    belongs around theirs, where what it raises can be isolated.
    """
    if named := os.environ.get("TS_SERVICE_ENVELOPE"):  # where there is no server that loads it
        importlib.import_module(f"{ENVELOPES}.{named}")
    base = getattr(sys.modules.get(f"{ENVELOPES}.base"), "BaseEnvelope", None)
    if base is None:
        return None
    loaded = [module for name, module in sorted(sys.modules.items()) if name.startswith(f"{ENVELOPES}.") and module is not None]
    outer = next((kind for module in loaded for kind in classes(module) if kind is not base and issubclass(kind, base)), None)
    if outer is None:
        return None
    inner = type(outer.__name__, (outer,), {"parse_input": outer.parse_input, "format_output": _counted(outer.format_output)})
    outer.parse_input = outer.format_output = lambda self, data: data
    return inner
