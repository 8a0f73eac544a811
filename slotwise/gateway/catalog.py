"""What a model takes, for the page: from the model.toml of its name, where this machine has one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from slotwise import bodies, project
from slotwise.bodies import Body
from slotwise.errors import SlotwiseError
from slotwise.model_spec import load_spec

INPUTS = {
    "image_classifier": "picture",
    "captioner": "picture",
    "translator": "translation",
    "tensor_classifier": "tensor",
}
LANGUAGES = ["en", "ja", "fr", "de"]
DRAWABLE_SIDE = 32  # pictures this small are drawn by hand more easily than found


@dataclass(frozen=True)
class Card:
    """`takes`: picture, translation, tensor, or file when nothing is known. `examples`: by name.

    draw: what is drawn by hand can be sent; as a tensor it is `side` by `side`.
    """

    takes: str = "file"
    description: str = ""
    draw: bool = False
    side: int = 0
    languages: list[str] = field(default_factory=list)
    examples: dict[str, Body] = field(default_factory=dict)


def card(name: str) -> Card:
    """The card of a model by its name; an unknown model, or a description with a fault in it, gets the empty one."""
    try:
        spec = load_spec(project.model_folder(name))
    except SlotwiseError:
        return Card()
    takes = INPUTS.get(Path(spec.handler).stem, "file")
    shape = spec.input.shape
    return Card(
        takes=takes,
        description=spec.description,
        draw=takes in ("picture", "tensor") and len(shape) == 3 and max(shape) <= DRAWABLE_SIDE,
        side=shape[-1] if shape else 0,
        languages=spec.options.get("languages", LANGUAGES) if takes == "translation" else [],
        examples=_examples(name),
    )


def _examples(name: str) -> dict[str, Body]:
    """The model's own example bodies by file name."""
    try:
        return {body.name: body for body in bodies.examples(name)}
    except SlotwiseError:
        return {}
