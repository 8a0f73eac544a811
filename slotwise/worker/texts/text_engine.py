"""Run an encoder of transformers that classifies texts: the inputs of b rows become [b, labels]."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slotwise.worker.engines.choice import choose, installed
from slotwise.worker.engines.pretrained import FOLDER, load_pretrained, precision_of, release
from slotwise.worker.environment.settings import Settings

ORDER = {"cpu": ("transformers",), "cuda": ("transformers",)}
HEAD = "ForSequenceClassification"


class TextEngine:
    """An encoder with its head. sigmoid: each of its numbers is a label's own, so that they are answered as probabilities."""

    name = "transformers"

    def __init__(self, folder: Path, settings: Settings, precision: str, *, sigmoid: bool) -> None:
        import torch  # noqa: PLC0415  heavy

        torch.set_num_threads(settings.threads)
        self.device, self.precision, self.sigmoid = settings.device, precision, sigmoid
        self.model = load_pretrained(architecture(folder), folder, settings.device, precision, trust_remote_code=False)

    def __call__(self, inputs: dict[str, Any]) -> Any:
        """Inputs [b, t] by name to an array [b, labels]."""
        import torch  # noqa: PLC0415  heavy

        with torch.inference_mode():
            given = {name: torch.from_numpy(value).to(self.device) for name, value in inputs.items()}
            outputs = self.model(**given).logits.float()
            return (outputs.sigmoid() if self.sigmoid else outputs).cpu().numpy()

    def release(self) -> None:
        """Free what a failed call holds."""
        release(self.device)


def architecture(folder: Path) -> str:
    """The class of transformers that these weights are of. Raises ValueError where that is none that classifies texts."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    named = [name for name in config.get("architectures") or [] if isinstance(name, str)]
    if "auto_map" in config or any("auto_map" in _json(folder / name) for name in ("tokenizer_config.json",)):
        raise ValueError("its folder brings code of its own, which is not run")
    if len(named) != 1 or not named[0].endswith(HEAD):
        raise ValueError(f"its config.json says {', '.join(named) or 'nothing'}, and no ...{HEAD}")
    return named[0]


def load_encoder(model_dir: Path, settings: Settings) -> TextEngine:
    """The archive's encoder as the profile wants it. Raises ValueError, one sentence, where it cannot be served so."""
    if settings.engine == "torch":  # which it is
        settings = settings.but(engine="auto")
    precision = precision_of(settings)
    if settings.device == "cpu" and precision != "fp32":
        raise ValueError(f"precision is {precision}, but texts are classified in fp32 on the CPU: use precision auto")
    about = settings.model.get("options", {}).get("texts", {})

    def start(name: str) -> TextEngine:
        return TextEngine(model_dir / FOLDER, settings, precision, sigmoid=bool(about.get("sigmoid")))

    chosen: TextEngine = choose(settings, ORDER, lambda name: None if installed(name) else f"{name} is not installed", start)
    return chosen


def _json(path: Path) -> dict[str, Any]:
    data = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return data if isinstance(data, dict) else {}
