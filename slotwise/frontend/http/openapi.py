"""The description of the routes that go to models, which are no ordinary FastAPI routes, and of errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Path
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from slotwise.frontend.inference_request import NAME

MEANS = {
    400: "The body cannot be decoded",
    401: "A key is needed",
    403: "Not this key's model",
    404: "No such model",
    413: "Too large",
    415: "Of a kind that the model does not take",
    422: "Well-formed, but it means nothing to the model; or a body that has ended its workers",
    429: "The queue is full, or too many requests; Retry-After says when to come back",
    500: "The model failed on this request",
    502: "The model server cannot be reached",
    503: "No worker can answer now",
    504: "The deadline passed",
    507: "It does not fit into the device's memory",
}
BYTES = {"type": "string", "format": "binary"}
BINARY = {"application/octet-stream": {"schema": BYTES}}
FORM = {"multipart/form-data": {"schema": {"type": "object", "properties": {"data": BYTES}}}}
ANY_BODY = {"requestBody": {"content": BINARY | FORM}}

ModelName = Annotated[str, Path(pattern=f"^{NAME}$")]
Milliseconds = Annotated[int, Field(ge=0)] | SkipJsonSchema[None]
Deadline = Annotated[Milliseconds, Header(description="Answer until this Unix time in milliseconds, or not at all (504).")]


class GenerateRequest(BaseModel):
    """Other fields, and parameters, reach the model as they are."""

    model_config = ConfigDict(extra="allow")

    text_input: str = Field(examples=["a text"])
    parameters: dict[str, str | float | bool] | SkipJsonSchema[None] = None


class GenerateAnswer(BaseModel):
    model_name: str
    model_version: str
    text_output: str


class ErrorDetail(BaseModel):
    code: int
    message: str
    request_id: str


class Error(BaseModel):
    error: ErrorDetail


class TextError(BaseModel):
    error: str


class Record(BaseModel):
    id: str | float
    text: str


class Payload(BaseModel):
    fromLang: str = Field(examples=["ja"])
    toLang: str = Field(examples=["en"])
    records: list[Record]


class Translation(BaseModel):
    payload: Payload


async def _one(x_deadline_ms: Deadline = None) -> None: ...
async def _model(model: ModelName, x_deadline_ms: Deadline = None) -> None: ...
async def _version(model: ModelName, version: ModelName, x_deadline_ms: Deadline = None) -> None: ...
async def _generate(model: ModelName, body: GenerateRequest, x_deadline_ms: Deadline = None) -> None: ...
async def _generate_version(
    model: ModelName, version: ModelName, body: GenerateRequest, x_deadline_ms: Deadline = None
) -> None: ...
async def _translation(body: Translation, x_deadline_ms: Deadline = None) -> None: ...


ROUTES = (
    ("/predictions/{model}", "predict", "Ask a model", _model),
    ("/predictions/{model}/{version}", "predict_version", "Ask one version of a model", _version),
    ("/classify/{model}", "classify", "Ask a model (an alias)", _model),
    ("/caption", "caption", "Caption a picture", _one),
    ("/translation", "translate", "Translate records of text", _translation),
    ("/invocations", "invocations", "SageMaker: ask the one model", _one),
)
V1, V2 = ("instances", "predictions"), ("inputs", "outputs")  # the lists of a request and of an answer
PROTOCOLS = (
    ("/v1/models/{model}:predict", "v1_predict", "KServe V1: ask a model", _model, V1),
    ("/v2/models/{model}/infer", "v2_infer", "Open Inference Protocol: ask a model", _model, V2),
    ("/v2/models/{model}/versions/{version}/infer", "v2_infer_version", "Open Inference Protocol: ask a version", _version, V2),
)
GENERATE = (
    ("/v2/models/{model}", "", _generate),
    ("/v2/models/{model}/versions/{version}", "_version", _generate_version),
)
WHOLE_ONLY = "The model, or the server, gives whole answers only"


def failure(description: str) -> dict[str, Any]:
    """An answer of the error's one shape."""
    return {"description": description, "model": Error}


def text_failure(description: str) -> dict[str, Any]:
    """An error as other protocols have it: a text."""
    return {"description": description, "model": TextError}


def content(media_type: str, description: str) -> dict[str, Any]:
    """An answer that is no JSON."""
    return {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}


def _described() -> APIRouter:
    """The routes to models, as FastAPI would have them. They are described only: nobody calls these functions."""
    router = APIRouter()
    answers = _answers(content("text/plain", "The model's answer"), failure)
    for path, identity, summary, function in ROUTES:
        body: dict[str, Any] = {} if function is _translation else ANY_BODY
        router.post(path, operation_id=identity, summary=summary, responses=answers, openapi_extra=body)(function)
        if "{model}" in path:
            router.put(path, operation_id=f"{identity}_put", summary=summary, responses=answers, openapi_extra=body)(function)
    for path, identity, summary, function, (given, found) in PROTOCOLS:
        answers = _answers({"description": "One answer a record, in order", "content": _holding(found) | BINARY}, text_failure)
        body = {"requestBody": {"required": True, "content": _holding(given)}}
        router.post(path, operation_id=identity, summary=summary, responses=answers, openapi_extra=body)(function)
    _add_generate(router)
    return router


def _add_generate(router: APIRouter) -> None:
    whole = _answers({"description": "The answer", "model": GenerateAnswer}, text_failure)
    pieces = _answers(content("text/event-stream", "An answer a piece"), text_failure) | {406: text_failure(WHOLE_ONLY)}
    for path, ending, function in GENERATE:
        for name, summary, answers in (("generate", "whole", whole), ("generate_stream", "piece by piece", pieces)):
            about = f"Triton: a text for a text, {summary}"
            router.post(f"{path}/{name}", operation_id=f"v2_{name}{ending}", summary=about, responses=answers)(function)


def _answers(ok: dict[str, Any], failed: Callable[[str], dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    return {200: ok, **{code: failed(means) for code, means in MEANS.items()}}


def _holding(name: str) -> dict[str, Any]:
    """JSON: an object with a list of this name."""
    return {"application/json": {"schema": {"type": "object", "required": [name], "properties": {name: {"type": "array"}}}}}


def describe(app: FastAPI) -> None:
    """Make the app's schema hold these paths before its own."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            routes = [*_described().routes, *app.routes]
            app.openapi_schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=routes)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
