"""Handlers that explain their answers: by gradients, by captum, by hooks of the network."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.idioms.asked import apart, each_of, no_answer_is_wrong, together
from tests.worker.idioms.pictures import PICTURES, Reads

torch = pytest.importorskip("torch")


@together(PICTURES)
class Saliency(Reads):
    """Explains each answer by the gradient of its input."""

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        data.requires_grad_()
        scores = self.model(data)
        scores.max(1).values.sum().backward()
        self.model.zero_grad()
        return {"scores": scores.detach(), "grown": data.grad.abs().amax((1, 2, 3))}

    def postprocess(self, data: Any) -> Any:
        return [{"scores": row.tolist(), "grown": float(one)} for row, one in zip(data["scores"], data["grown"], strict=True)]


@together(PICTURES)
class ExplainedByCaptum(Reads):
    """Asks captum's integrated gradients, an object that it has on itself."""

    def prepare(self) -> None:
        self.gradients = pytest.importorskip("captum.attr").IntegratedGradients(self.model)

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        scores = super().inference(data)
        found = self.gradients.attribute(data, target=scores.argmax(1), n_steps=5)
        return {"scores": scores, "found": found.mean((1, 2, 3))}

    def postprocess(self, data: Any) -> Any:
        return [{"scores": row.tolist(), "found": float(one)} for row, one in zip(data["scores"], data["found"], strict=True)]


@apart(PICTURES)
class GradCam(Reads):
    """Two hooks keep the activations and the gradients of a layer in dicts, for postprocess."""

    def prepare(self) -> None:
        self.activations: dict[str, Any] = {}
        self.gradients: dict[str, Any] = {}
        self.model[0].register_forward_hook(lambda module, given, output: self.activations.__setitem__("value", output))
        self.model[0].register_full_backward_hook(self.save_gradient)

    def save_gradient(self, module: Any, given: Any, output: Any) -> None:
        self.gradients["value"] = output[0]

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        scores = self.model(data.requires_grad_())
        scores.max(1).values.sum().backward()
        self.model.zero_grad()
        return scores.detach()

    def postprocess(self, data: Any) -> Any:
        weights = self.gradients["value"].mean((2, 3), keepdim=True)
        seen = torch.nn.functional.relu((weights * self.activations["value"]).sum(1))
        return [{"scores": data[0].tolist(), "seen": seen.mean((1, 2)).tolist()}]


class Attends(torch.nn.Module):
    """A layer that keeps what it has seen, to be drawn."""

    def forward(self, data: Any) -> Any:
        self.seen = data.mean((2, 3))
        return data


@apart(PICTURES)
class WhatALayerKeeps(Reads):
    """Answers with what a layer within the network has kept in its forward."""

    def prepare(self) -> None:
        self.model.insert(1, Attends())

    def postprocess(self, data: Any) -> Any:
        return [{"scores": data[0].tolist(), "seen": self.model[1].seen[0].tolist()}]


@together(PICTURES)
class AHookWithTheRow(Reads):
    """A hook keeps what it sees in a list, which inference empties, and hands on with the rows."""

    def prepare(self) -> None:
        self.seen: list[Any] = []
        self.model[0].register_forward_hook(self.hook)

    def hook(self, module: Any, given: Any, output: Any) -> None:
        self.seen.append(output.mean((1, 2, 3)))

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        self.seen.clear()
        return {"scores": super().inference(data), "seen": self.seen[-1]}

    def postprocess(self, data: Any) -> Any:
        return [{"scores": row.tolist(), "seen": float(one)} for row, one in zip(data["scores"], data["seen"], strict=True)]


@each_of(__name__)
def test_no_answer_is_wrong(kind: type[Reads], rows_at_once: list[int]) -> None:
    no_answer_is_wrong(kind, rows_at_once)
