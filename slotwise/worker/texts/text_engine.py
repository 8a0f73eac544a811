"""Run an encoder of transformers: the inputs of b rows become [b, labels], or embeddings [b, size]."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotwise.worker.engines.choice import choose, installed
from slotwise.worker.engines.pretrained import FOLDER, load_pretrained, precision_of, release
from slotwise.worker.environment.settings import Settings, json_object

ORDER = {"cpu": ("transformers",), "cuda": ("transformers",)}
HEAD, BARE = "ForSequenceClassification", "Model"
POOLING = ("mean", "first", "last", "max")  # of a text's tokens: how their vectors become one
LEAST_NORM = 1e-12


class TextEngine:
    """An encoder. about: what the build found: `sigmoid`, where each of its numbers is a label's own, so that they are answered
    as probabilities; `pooling` and `normalise`, where it has no head and embeds.
    """

    name = "transformers"

    def __init__(self, folder: Path, settings: Settings, precision: str, about: Mapping[str, Any]) -> None:
        import torch  # noqa: PLC0415  heavy

        torch.set_num_threads(settings.threads)
        self.device, self.precision, self.about = settings.device, precision, about
        name = architecture(folder, BARE if about.get("pooling") else HEAD)
        spare = ("pooler.",) if about.get("pooling") else ()  # a pooler that is not asked
        self.model = load_pretrained(name, folder, settings.device, precision, spare, trust_remote_code=False)

    def __call__(self, inputs: dict[str, Any]) -> Any:
        """Inputs [b, t] by name to an array [b, labels], or [b, size]."""
        import torch  # noqa: PLC0415  heavy

        with torch.inference_mode():
            given = {name: torch.from_numpy(value).to(self.device) for name, value in inputs.items()}
            found = self.model(**given)
            if pooling := self.about.get("pooling"):
                outputs = pooled(found.last_hidden_state.float(), given["attention_mask"], pooling)
                if self.about.get("normalise"):
                    outputs = outputs / outputs.norm(dim=1, keepdim=True).clamp(min=LEAST_NORM)
            else:
                outputs = found.logits.float()
                outputs = outputs.sigmoid() if self.about.get("sigmoid") else outputs
            return outputs.cpu().numpy()

    def release(self) -> None:
        """Free what a failed call holds."""
        release(self.device)


def pooled(states: Any, mask: Any, pooling: str) -> Any:
    """The tokens' vectors [b, t, size] as one a row, [b, size]. mask [b, t]: 1 for a token, 0 for padding on either side."""
    there = mask.to(states.dtype).unsqueeze(-1)  # [b, t, 1]
    if pooling == "mean":
        return (states * there).sum(1) / there.sum(1)
    if pooling == "max":
        return states.masked_fill(there == 0, -float("inf")).amax(1)
    first = mask.argmax(1)
    place = first if pooling == "first" else first + mask.sum(1) - 1
    return states.take_along_dim(place.view(-1, 1, 1), 1).squeeze(1)


def architecture(folder: Path, head: str) -> str:
    """The class of transformers that these weights are of. Raises ValueError where its name does not end as `head` says."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    named = [name for name in config.get("architectures") or [] if isinstance(name, str)]
    if "auto_map" in config or "auto_map" in json_object(folder / "tokenizer_config.json"):
        raise ValueError("its folder brings code of its own, which is not run")
    if len(named) != 1 or not named[0].endswith(head):
        raise ValueError(f"its config.json says {', '.join(named) or 'nothing'}, and no ...{head}")
    return named[0]


def load_encoder(model_dir: Path, settings: Settings) -> TextEngine:
    """The archive's encoder as the profile wants it. Raises ValueError, one sentence, where it cannot be served so."""
    if settings.engine == "torch":  # which it is
        settings = settings.but(engine="auto")
    precision = precision_of(settings)
    if settings.device == "cpu" and precision != "fp32":
        raise ValueError(f"precision is {precision}, but texts are read in fp32 on the CPU: use precision auto")
    about = settings.model.get("options", {}).get("texts", {})

    def start(name: str) -> TextEngine:
        return TextEngine(model_dir / FOLDER, settings, precision, about)

    chosen: TextEngine = choose(settings, ORDER, lambda name: None if installed(name) else f"{name} is not installed", start)
    return chosen
