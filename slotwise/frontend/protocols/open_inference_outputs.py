"""What an answer of the Open Inference Protocol has: which outputs, of which type and shape, and a record's values in each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slotwise.frontend.protocols import json_pieces
from slotwise.frontend.protocols.open_inference_named import described_tensors, has_outputs, named_values
from slotwise.frontend.protocols.open_inference_tensors import V2_TYPES
from slotwise.frontend.protocols.records import NO_TEXT, Found, ModelInput, RecordAnswer, not_failed_alike
from slotwise.worker.labels import EVERY_SCORE, unlisted

ANSWERS = {"answer": "BYTES"}
OF_CLASSES = {"label": "BYTES", "probability": "FP32", "probabilities": "BYTES"}
SCORES = "scores"  # [n, classes], in the order of the labels
NO_SCORES = RecordAnswer.failed(500, "the model gave no scores that can be read")
NO_LABEL = RecordAnswer.failed(500, 'the model\'s answer is not one label: ask for the output "answer"')
LARGEST = 3.4028234663852886e38  # that FP32 can hold


@dataclass(frozen=True)
class InferRequest:
    """One request, over REST or gRPC. identity: the client's id. outputs: those that are wanted, and whether as binary data.

    in_full: some of them need every score, for which the model is to be asked.
    """

    records: Found
    identity: str
    outputs: Mapping[str, bool]
    in_full: bool = False

    def ask(self, headers: MutableMapping[str, str]) -> None:
        """Have the model say what is wanted of it, by the headers of its records."""
        headers.pop(EVERY_SCORE, None)
        if self.in_full:
            headers[EVERY_SCORE] = "all"


def output_types(model: ModelInput) -> dict[str, str]:
    """The outputs that a model has, and their datatypes."""
    if model.outputs:
        return {name: V2_TYPES[dtype] for name, dtype, _ in model.outputs}
    return ANSWERS | (OF_CLASSES if model.classes else {}) | dict.fromkeys(rows_of_scores(model), "FP32")


def rows_of_scores(model: ModelInput) -> list[str]:
    """The outputs of several numbers a record. The graph's own is not there under a name that means something else here."""
    own = model.own_output
    named = [own] if own and own not in (SCORES, *ANSWERS, *OF_CLASSES) else []
    return [SCORES, *named] if model.scores else []


def described(model: ModelInput) -> list[dict[str, Any]]:
    """The outputs as the model's metadata has them. The graph's own may be one number for two scores."""
    if model.outputs:
        return described_tensors(model.outputs)
    wide = {name: [model.scores if name == SCORES or model.scores > 2 else -1] for name in rows_of_scores(model)}
    return [{"name": name, "datatype": kind, "shape": [-1, *wide.get(name, [])]} for name, kind in output_types(model).items()]


def infer_request(records: Found, identity: str, outputs: Mapping[str, bool], model: ModelInput) -> InferRequest:
    """A request for these outputs of a model."""
    return InferRequest(records, identity, outputs, not outputs.keys().isdisjoint(rows_of_scores(model)))


def tensors(
    asked: InferRequest, model: ModelInput, answers: Sequence[RecordAnswer]
) -> Iterator[tuple[str, str, list[int], list[Any]]]:
    """Name, datatype, shape and values of each output that is wanted; what failed has an empty value, or zeros."""
    if model.outputs:
        yield from named_values(asked.outputs, model, [one.value if one.good else None for one in answers])
        return
    known, wide = output_types(model), rows_of_scores(model)
    columns: dict[str, list[Any]] = {output: [] for output in asked.outputs}
    for one in answers:  # each is taken apart once, and nothing of it is kept
        value = one.value if one.good and columns.keys() != {"answer"} else None
        for output, column in columns.items():
            if output in wide:
                column.append(own_scores(value, output) if one.good else None)
                continue
            empty = "" if known[output] == "BYTES" else 0.0
            column.append(_value(output, one, value, asked.in_full) if one.good else empty)
    for output, column in columns.items():
        if output not in wide:
            yield output, known[output], [len(answers)], column
            continue
        width = next((len(row) for row in column if row), 0)
        yield output, known[output], [len(answers), width], [number for row in column for number in row or [0.0] * width]


def own_scores(value: Any, output: str) -> list[float]:
    """A record's numbers for one of `rows_of_scores`; none where its answer has none that FP32 can hold."""
    fields = value if isinstance(value, dict) and "answer" in value else {}
    numbers = fields.get(SCORES)
    if output != SCORES:
        numbers = fields.get("outputs", numbers)
    if not isinstance(numbers, list) or not all(type(n) in (int, float) and abs(n) <= LARGEST for n in numbers):
        return []
    return numbers


def with_what_is_there(asked: InferRequest, model: ModelInput, answers: Sequence[RecordAnswer]) -> InferRequest:
    """The request; without labels where it wants all outputs and an answer has none, such as one to a list of pictures."""
    wants_all = not model.outputs and asked.outputs.keys() == output_types(model).keys()
    if not wants_all or all(label_of(one.value, asked.in_full) is not None for one in answers if one.good):
        return asked
    return replace(asked, outputs={name: binary for name, binary in asked.outputs.items() if name not in OF_CLASSES})


def with_scores(asked: InferRequest, model: ModelInput, answers: Sequence[RecordAnswer]) -> Sequence[RecordAnswer]:
    """The answers, and an error in place of each that has not the label or scores that are wanted: nothing can stand there.

    Raises ProtocolFault where that is the error of all of them.
    """
    if model.outputs:
        fitting = [not one.good or has_outputs(asked.outputs, model, one.value) for one in answers]
        return not_failed_alike([one if fits else NO_SCORES for one, fits in zip(answers, fitting, strict=True)])
    if not asked.in_full:
        return _with_labels(asked, answers)
    widths = dict.fromkeys(asked.outputs.keys() & set(rows_of_scores(model)), 0)
    if SCORES in widths:
        widths[SCORES] = max(model.scores, 0)
    checked = []
    for one in answers:
        value = one.value if one.good else None
        lengths = {output: len(own_scores(value, output)) for output in widths}
        fits = all(lengths[output] and lengths[output] == (width or lengths[output]) for output, width in widths.items())
        if one.good and fits:
            widths = lengths
        checked.append(one if fits or not one.good else NO_SCORES)
    return _with_labels(asked, not_failed_alike(checked))


def _with_labels(asked: InferRequest, answers: Sequence[RecordAnswer]) -> Sequence[RecordAnswer]:
    """The answers, and an error in place of each that has no label where that is wanted, such as one to a list of pictures."""
    if asked.outputs.keys().isdisjoint(OF_CLASSES):
        return answers
    fitting = [not one.good or label_of(one.value, asked.in_full) is not None for one in answers]
    return not_failed_alike([one if fits else NO_LABEL for one, fits in zip(answers, fitting, strict=True)])


def label_of(value: Any, in_full: bool = False) -> Any:
    """The label in an answer; None where it has none. in_full: the answer is only a part of what was said."""
    if in_full:
        value = value.get("answer") if isinstance(value, dict) else None
    value = unlisted(value)
    return value.get("label") if isinstance(value, dict) else None


def with_texts(asked: InferRequest, answers: Sequence[RecordAnswer]) -> Sequence[RecordAnswer]:
    """The answers, and an error in place of each that is no text, where JSON is to hold it: no byte of one is ever replaced.

    Raises ProtocolFault where that is the error of all of them.
    """
    if asked.outputs.get("answer", True):  # as binary data, or not at all
        return answers
    return not_failed_alike([one if one.is_text or not one.good else RecordAnswer.failed(500, NO_TEXT) for one in answers])


def errors(answers: Sequence[RecordAnswer]) -> str:
    """What failed, and why, as JSON by the record's place; "" where nothing did."""
    by_place = {str(i): {"code": one.status, "message": one.message} for i, one in enumerate(answers) if not one.good}
    return json.dumps(by_place) if by_place else ""


def _value(output: str, one: RecordAnswer, value: Any, in_full: bool) -> Any:
    """One record's element of an output; what the model said comes as it is. value: the answer as JSON has it.

    in_full: it is only a part of what was said.
    """
    if in_full:
        value = value["answer"]
    if output == "answer":
        return json_pieces.dumped(value) if in_full else one.body
    value = unlisted(value)
    fields = value if isinstance(value, dict) else {}
    probabilities = fields.get("probabilities") if isinstance(fields.get("probabilities"), dict) else {}
    if output == "probabilities":
        return json.dumps(probabilities)
    label = str(fields.get("label", ""))
    return label if output == "label" else _probability((probabilities or {}).get(label))


def _probability(value: Any) -> float:
    """What the model says, where that is a number that JSON and FP32 can hold; else 0."""
    return float(value) if isinstance(value, int | float) and abs(value) <= LARGEST else 0.0
