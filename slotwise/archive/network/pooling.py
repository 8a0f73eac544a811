"""Find out how an embedder makes one vector of a text's tokens: its folder says it, as sentence-transformers writes it, or
model.toml.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slotwise.errors import SlotwiseError
from slotwise.model_spec import ModelSpec
from slotwise.worker.engines.pretrained import FOLDER
from slotwise.worker.texts.text_engine import POOLING

MODULES = "modules.json"
MODES = {"cls": "first", "lasttoken": "last", "mean": "mean", "max": "max"}  # as sentence-transformers calls them
KEYS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max",
        "pooling_mode_lasttoken": "lasttoken", "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens": "weightedmean"}  # fmt: skip
LINE = f'write in model.toml below [options]: pooling = "mean" (or {", ".join(POOLING[1:])}), and normalise = true (or false)'


def fit_pooling(spec: ModelSpec, folder: Path) -> dict[str, Any]:
    """{"pooling": one of POOLING, "normalise": ...}, and "most_tokens" where the folder limits them.

    Raises SlotwiseError where nobody says it, model.toml contradicts the folder, or the folder does more than that.
    """
    if spec.labels or spec.output not in ("", "embedding"):
        raise SlotwiseError(f"{spec.name} answers embeddings", "write no labels and no output in model.toml")
    if spec.options.get("pairs"):
        raise SlotwiseError(f"{spec.name} embeds one text at a time", "write no pairs below [options]")
    by_model_toml: dict[str, Any] = {key: spec.options[key] for key in ("pooling", "normalise") if key in spec.options}
    if by_model_toml.get("pooling", "mean") not in POOLING or not isinstance(by_model_toml.get("normalise", True), bool):
        raise SlotwiseError(f"{spec.name}: pooling must be one of {', '.join(POOLING)}, normalise true or false", LINE)
    if not (folder / MODULES).is_file():
        if len(by_model_toml) < 2:
            raise SlotwiseError(f"nobody says how {spec.name} makes one vector of a text's tokens", LINE)
        return by_model_toml
    try:
        by_folder = _told(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SlotwiseError(f"{FOLDER}/{MODULES} cannot be followed: {error}", "write a handler of its own") from error
    for key, value in by_model_toml.items():
        if by_folder[key] != value:
            raise SlotwiseError(
                f"{FOLDER}/{MODULES} says that {key} is {by_folder[key]!r}, and model.toml {value!r}",
                f"write no {key} below [options]",
            )
    return by_folder


def _told(folder: Path) -> dict[str, Any]:
    """What the folder of sentence-transformers says. Raises ValueError for what is not known here."""
    modules = [(str(one["type"]).rpartition(".")[2], str(one["path"])) for one in _json(folder / MODULES)]
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0][1]:
        raise ValueError(f"its modules are {', '.join(kinds)}, not Transformer (in the folder itself), Pooling, Normalize")
    facts = {"pooling": _mode(_json(folder / modules[1][1] / "config.json")), "normalise": "Normalize" in kinds}
    first = _json(folder / "sentence_bert_config.json", {})
    if first.get("do_lower_case"):
        raise ValueError("it makes letters small before its tokenizer does anything")
    if _json(folder / "config_sentence_transformers.json", {}).get("default_prompt_name"):
        raise ValueError("it puts a prompt before each text")
    return {**facts, **({"most_tokens": int(first["max_seq_length"])} if first.get("max_seq_length") else {})}


def _mode(config: dict[str, Any]) -> str:
    named = [mode for key, mode in KEYS.items() if config.get(key)]
    if mode := config.get("pooling_mode"):
        named = [mode] if isinstance(mode, str) else list(mode)
    if len(named) != 1 or named[0] not in MODES:
        raise ValueError(f"it pools by {' and '.join(map(str, named)) or 'nothing'}, known is one of {', '.join(MODES)}")
    return MODES[named[0]]


def _json(path: Path, otherwise: Any = None) -> Any:
    return otherwise if otherwise is not None and not path.is_file() else json.loads(path.read_text("utf-8"))
