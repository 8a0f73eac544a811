"""Serve a SageMaker model as it is: its inference.py's model_fn, input_fn, predict_fn and output_fn, or transform_fn.

SageMaker's own toolkit loops over a batch, reads every body by the first one's content type, and answers one error for all.
Here the functions get one request at a time, as they were written for it, and one request's error is its own.

`files` in model.toml is what model.tar.gz holds: the model's files, and the folder code/ with inference.py in it (`program` in
[options], or else SAGEMAKER_PROGRAM, names another file). A function may take the context as one more argument, as there. What
is not written is the PyTorch toolkit's: TorchScript from the one .pt or .pth, a tensor of JSON, CSV or NPY, the answer as one
of them. Source: sagemaker-inference 1.10, sagemaker-pytorch-inference 2.0.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.worker import BadRequest, BatchHandler, Headers, ModelFault, Request, Settings, SlotError, UnsupportedMedia
from slotwise.worker.familiar.sagemaker_program import FUNCTIONS, program_of
from slotwise.worker.familiar.threads_context import ThreadsContext, context_of, what_it_set
from slotwise.worker.guard.blame import tells_of_bad_input
from slotwise.worker.slot_errors import text

JSON, CSV, NPY = "application/json", "text/csv", "application/x-npy"


class SageMaker(BatchHandler):
    """A row is a whole request: whether predict_fn keeps several apart is not known, so each runs alone."""

    max_rows = 1

    def load(self, model_dir: Path, settings: Settings) -> Any:
        self.context: ThreadsContext = context_of(model_dir, settings)
        self.accept = os.environ.get("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT", JSON)
        named = self.model.get("options", {}).get("program") or os.environ.get("SAGEMAKER_PROGRAM", "")
        self.own = _functions(model_dir / "code", named)
        if "pre_model_fn" in self.own:
            self.call("pre_model_fn", str(model_dir))
        self.network = self.call("model_fn", str(model_dir)) if "model_fn" in self.own else _torchscript(model_dir)
        if "model_warmup_fn" in self.own:
            self.call("model_warmup_fn", str(model_dir), self.network)
        return self.answered

    def example(self) -> None:
        """None: what its functions can read is not known."""

    def read(self, request: Request) -> list[Request]:
        if request.unclear:
            raise request.unclear
        if request.more:
            raise BadRequest("its functions take one body, and this form has several")
        return [request]

    def collate(self, items: list[Request]) -> Request:
        (request,) = items
        return request

    def predict(self, inputs: Request) -> list[tuple[Any, str]]:
        return [self.answered(inputs)]

    def answered(self, request: Request) -> tuple[Any, str]:
        """One request's answer and its content type."""
        with self.context.speaking_of([request.headers]) as (slot,):
            answer, accept = self._transformed(request)
        if refused := what_it_set(slot):
            raise refused
        value, answered_as = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, accept)
        return (bytes(value) if isinstance(value, bytearray) else value), text(answered_as)

    def _transformed(self, request: Request) -> tuple[Any, str]:
        """What the functions make of a request, and the content type that is asked for."""
        accept = request.headers.get("accept", "")
        accept = self.accept if accept in ("", "*/*") else accept
        kind = _kind(request.headers)
        try:
            body: Any = request.body.decode("utf-8") if kind in (JSON, CSV) else request.body
            return self.transformed(body, kind, accept), accept
        except Exception as error:
            raise _blamed(error) from error

    def transformed(self, body: Any, kind: str, accept: str) -> Any:
        """The functions in their order."""
        if "transform_fn" in self.own:
            return self.call("transform_fn", self.network, body, kind, accept)
        data = self.call("input_fn", body, kind) if "input_fn" in self.own else _tensor(body, kind)
        prediction = self.call("predict_fn", data, self.network) if "predict_fn" in self.own else _predicted(data, self.network)
        return self.call("output_fn", prediction, accept) if "output_fn" in self.own else _written(prediction, accept)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call one of its functions; one that takes an argument more gets the context."""
        function = self.own[name]
        takes = len(inspect.signature(function).parameters)
        if takes == len(arguments) + 1:
            return function(*arguments, self.context)
        if takes != len(arguments):
            raise ModelFault(f"{name} takes {takes} arguments, not {len(arguments)}")
        return function(*arguments)

    def encode(self, output: tuple[Any, str], item: Request) -> tuple[Any, str]:
        return output

    def respond(self, request: Request, results: list[Any]) -> tuple[Any, str]:
        (result,) = results
        if isinstance(result, SlotError):
            raise result
        value, answered_as = result
        return value, answered_as


def _functions(code: Path, named: str) -> dict[str, Callable[..., Any]]:
    """What the program defines; nothing where there is none, and none is named."""
    program = program_of(code, named)
    if not program:
        return {}
    sys.path.insert(0, str(code))
    module = importlib.import_module(program.removesuffix(".py"))
    if Path(str(module.__file__)).resolve() != (code / program).resolve():
        raise ImportError(f"another {program} is loaded in this process: a worker has one model")
    own = {name: getattr(module, name) for name in FUNCTIONS if callable(getattr(module, name, None))}
    if named and not own:
        raise ValueError(f"code/{program} is named as the program, but defines none of {', '.join(FUNCTIONS)}")
    if "transform_fn" in own and own.keys() & {"input_fn", "predict_fn", "output_fn"}:
        raise ValueError("transform_fn stands for input_fn, predict_fn and output_fn: have it, or them")
    return own


def _kind(headers: Headers) -> str:
    """The content type without its parameters."""
    return (headers.get("content-type") or "").partition(";")[0].strip().lower()


def _torchscript(model_dir: Path) -> Any:
    import torch

    files = [file for file in model_dir.iterdir() if file.suffix in (".pt", ".pth")]
    named = [file for file in files if file.name == "model.pt"] or files
    if len(named) != 1:
        raise ValueError("without a model_fn there has to be one .pt or .pth, of TorchScript")
    return torch.jit.load(str(named[0]), map_location=_device()).eval()


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _tensor(body: Any, kind: str) -> Any:
    """A tensor of a body: float32 of JSON and CSV, NPY's own type. In CSV an empty field, or "nan", is NaN."""
    import torch

    try:
        if kind == NPY:
            return torch.from_numpy(np.load(io.BytesIO(body), allow_pickle=False)).to(_device())
        if kind not in (JSON, CSV):
            raise UnsupportedMedia(f"this model takes {JSON}, {CSV} and {NPY}")
        if kind == JSON:
            array = np.array(json.loads(body, parse_constant=_no_number))
        else:
            array = np.genfromtxt(io.StringIO(body), delimiter=",", loose=False)  # loose: text would be NaN, a header too
        tensor = torch.as_tensor(array, dtype=torch.float32)  # FloatTensor takes one whole number as a size
    except (ValueError, TypeError, EOFError, RuntimeError, OverflowError) as error:
        raise BadRequest(f"the body is no array as {kind}") from error
    if torch.isinf(tensor).any():
        raise BadRequest("a number is beyond float32")
    return tensor.to(_device())


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _predicted(data: Any, network: Any) -> Any:
    import torch

    with torch.inference_mode():
        return network.to(_device()).eval()(data.to(_device()))


def _written(prediction: Any, accept: str) -> tuple[Any, str]:
    """The prediction in the first form of `Accept` that there is."""
    value = prediction.detach().cpu().tolist() if hasattr(prediction, "detach") else prediction
    for kind in accept.replace(" ", "").split(","):
        if kind == JSON:
            return _json(value), kind
        if kind == CSV:
            lines = io.StringIO()
            np.savetxt(lines, value, delimiter=",", fmt="%s")
            return lines.getvalue(), kind
        if kind == NPY:
            array = io.BytesIO()
            np.save(array, np.asarray(value), allow_pickle=False)
            return array.getvalue(), kind
    refused = SlotError(f"this model answers as {JSON}, {CSV} and {NPY}")
    refused.code = 406
    raise refused


def _json(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, default=lambda one: one.tolist())
    except ValueError as error:
        raise ModelFault("the model's output is not finite") from error


def _blamed(error: Exception) -> SlotError:
    """What the one request is answered whose functions raised: a message only where it was meant for the client."""
    if isinstance(error, SlotError):
        return error
    names = [kind.__name__ for kind in type(error).__mro__]
    if "UnsupportedFormatError" in names:
        return UnsupportedMedia("this model does not take, or does not answer, this kind")
    if "BaseInferenceToolkitError" in names:
        said = SlotError(getattr(error, "message", "Invalid Request"))
        code = getattr(error, "status_code", 500)
        said.code = code if type(code) is int and 400 <= code <= 599 else 500
        return said
    if tells_of_bad_input(error):
        return BadRequest(f"the model's code cannot read this request ({type(error).__name__})")
    return ModelFault("the model's code failed on this request")


handle = SageMaker.entry_point()
