"""The description of the routes that go to models, which are no ordinary FastAPI routes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from slotwise.frontend.inference_request import NAME

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "request_id"],
            "properties": {
                "code": {"type": "integer"},
                "message": {"type": "string"},
                "request_id": {"type": "string"},
            },
        }
    },
}
MEANS = {
    "400": "The body cannot be decoded",
    "401": "A key is needed",
    "403": "Not this key's model",
    "404": "No such model",
    "413": "Too large",
    "415": "Of a kind that the model does not take",
    "422": "Well-formed, but it means nothing to the model; or a body that has ended its workers",
    "429": "The queue is full, or too many requests; Retry-After says when to come back",
    "500": "The model failed on this request",
    "502": "The model server cannot be reached",
    "503": "No worker can answer now",
    "504": "The deadline passed",
    "507": "It does not fit into the device's memory",
}
DEADLINE = {
    "name": "x-deadline-ms",
    "in": "header",
    "description": "Answer until this Unix time in milliseconds, or not at all (504).",
    "schema": {"type": "integer", "minimum": 0},
}
RECORDS = {
    "type": "object",
    "required": ["payload"],
    "properties": {
        "payload": {
            "type": "object",
            "required": ["fromLang", "toLang", "records"],
            "properties": {
                "fromLang": {"type": "string", "examples": ["ja"]},
                "toLang": {"type": "string", "examples": ["en"]},
                "records": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["id", "text"],
                        "properties": {"id": {"type": ["string", "number"]}, "text": {"type": "string"}},
                    },
                },
            },
        }
    },
}
ANY_BODY = {
    "content": {
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        "multipart/form-data": {"schema": {"type": "object", "properties": {"data": {"type": "string", "format": "binary"}}}},
    }
}
JSON_BODY = {"required": True, "content": {"application/json": {"schema": RECORDS}}}


def failure(description: str) -> dict[str, Any]:
    """An answer of the error's one shape."""
    return {"description": description, "content": {"application/json": {"schema": ERROR}}}


def text_failure(description: str) -> dict[str, Any]:
    """An error as other protocols have it: a text."""
    schema = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def content(media_type: str, description: str) -> dict[str, Any]:
    """An answer that is no JSON."""
    return {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": f"^{NAME}$"}}


def _operation(identity: str, summary: str, body: dict[str, Any], *in_path: str) -> dict[str, Any]:
    answer = {"content": {"application/json": {"schema": {}}, "text/plain": {"schema": {"type": "string"}}}}
    errors = {code: {"description": means, "content": {"application/json": {"schema": ERROR}}} for code, means in MEANS.items()}
    return {
        "operationId": identity,
        "summary": summary,
        "parameters": [*map(_in_path, in_path), DEADLINE],
        "requestBody": body,
        "responses": {"200": {"description": "The model's answer", **answer}, **errors},
    }


def _of_protocol(identity: str, summary: str, wanted: str, given: str, *in_path: str) -> dict[str, Any]:
    """A route of another protocol: an object with a list of this name in, one out; an error is a text."""

    def holding(name: str) -> dict[str, Any]:
        return {"type": "object", "required": [name], "properties": {name: {"type": "array"}}}

    errors = {code: text_failure(means) for code, means in MEANS.items()}
    kinds = {"application/json": {"schema": holding(given)}, "application/octet-stream": {"schema": {"type": "string"}}}
    return {
        "operationId": identity,
        "summary": summary,
        "parameters": [*map(_in_path, in_path), DEADLINE],
        "requestBody": {"required": True, "content": {"application/json": {"schema": holding(wanted)}}},
        "responses": {"200": {"description": "One answer a record, in order", "content": kinds}, **errors},
    }


def _paths() -> dict[str, Any]:
    ask, versioned, classify = "Ask a model", "Ask one version of a model (TorchServe)", "Ask a model (an alias)"
    return {
        "/predictions/{model}": {
            "post": _operation("predict", ask, ANY_BODY, "model"),
            "put": _operation("predict_put", ask, ANY_BODY, "model"),
        },
        "/predictions/{model}/{version}": {
            "post": _operation("predict_version", versioned, ANY_BODY, "model", "version"),
            "put": _operation("predict_version_put", versioned, ANY_BODY, "model", "version"),
        },
        "/classify/{model}": {
            "post": _operation("classify", classify, ANY_BODY, "model"),
            "put": _operation("classify_put", classify, ANY_BODY, "model"),
        },
        "/caption": {"post": _operation("caption", "Caption a picture", ANY_BODY)},
        "/translation": {"post": _operation("translate", "Translate records of text", JSON_BODY)},
        "/invocations": {"post": _operation("invocations", "SageMaker: ask the one model", ANY_BODY)},
        "/v1/models/{model}:predict": {
            "post": _of_protocol("v1_predict", "KServe V1: ask a model", "instances", "predictions", "model")
        },
        "/v2/models/{model}/infer": {
            "post": _of_protocol("v2_infer", "Open Inference Protocol: ask a model", "inputs", "outputs", "model")
        },
        "/v2/models/{model}/versions/{version}/infer": {
            "post": _of_protocol(
                "v2_infer_version", "Open Inference Protocol: ask a version", "inputs", "outputs", "model", "version"
            )
        },
    }


def describe(app: FastAPI) -> None:
    """Make the app's schema hold these paths before its own."""
    own = app.openapi

    def openapi() -> dict[str, Any]:
        schema = own()
        schema["paths"] = {**_paths(), **schema["paths"]}
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
