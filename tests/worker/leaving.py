"""A handler with TorchServe's four methods that leaves something of a request for its answer, in a way that is each class's."""

from __future__ import annotations

from typing import Any

import numpy as np

from slotwise.worker import TorchServeHandler

NOTES: list[str] = []


def as_json(count: int) -> dict[int, dict[str, str]]:
    return {i: {"content-type": "application/json"} for i in range(count)}


class Keeper:
    def __init__(self) -> None:
        self.names: list[str] = []

    def note(self, name: str) -> None:
        self.names.append(name)

    def told(self) -> str:
        return self.names.pop(0)

    def all(self) -> list[str]:
        return self.names


class Base(TorchServeHandler):
    """`keep` takes a name when a request is read, `told` gives it when it is answered; how, is each class's."""

    made: Any = None
    shared: list[str]

    def initialize(self, context: Any) -> None:
        self.model = lambda x: x
        self.runs: list[int] = []
        type(self).shared = []
        NOTES.clear()
        self.prepare()

    def prepare(self) -> None:
        self.made = []

    def keep(self, name: str) -> None:
        raise NotImplementedError

    def told(self) -> str:
        raise NotImplementedError

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        if data[0]["body"] == "early":
            raise ValueError
        self.keep(data[0]["body"])
        if data[0]["body"] == "bad":
            raise ValueError
        return np.array([[float(len(row["body"]))] for row in data])

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        self.runs.append(len(data))
        if (data == 5).any():
            raise RuntimeError
        return self.model(data)

    def postprocess(self, data: Any) -> Any:
        return [[self.told(), float(data[0][0])]]
