"""Look at a folder of `save_pretrained` before it serves: its labels, its numbers, how long a text may be."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slotwise.archive.network.alike import FAR, alike
from slotwise.archive.network.graph_classes import check_order
from slotwise.archive.network.named_examples import named_examples
from slotwise.archive.network.pooling import fit_pooling
from slotwise.errors import SlotwiseError, first_line, missing_package
from slotwise.model_spec import ModelSpec
from slotwise.worker.engines.pretrained import FOLDER
from slotwise.worker.environment.settings import Settings
from slotwise.worker.labels import declared_output
from slotwise.worker.slot_errors import SlotError
from slotwise.worker.texts.text_body import Texts, texts_of
from slotwise.worker.texts.text_engine import BARE, HEAD, TextEngine, architecture
from slotwise.worker.texts.tokens import TextTokenizer, Tokens, limit

TEXTS, EMBEDDER = HANDLERS = ("text_classifier", "embedder")
KINDS = {"single_label_classification": "logits", "multi_label_classification": "probabilities", "regression": "regression"}
ROBERTA = 2  # positions that its kind keeps for itself
SAID = ("A text to try it with.", "Another one, which is quite a bit longer than the first, so that rows are padded.")


def fit_texts(spec: ModelSpec, sources: list[Path]) -> tuple[ModelSpec, dict[str, Any]]:
    """Look at the folder and run it. Returns the description with labels, output and `options.texts`, and the facts.

    Raises SlotwiseError where it cannot be served, or nobody says what its numbers are.
    """
    folder = _folder(spec, sources)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    facts: dict[str, Any]
    if spec.handler == EMBEDDER:
        kind, labels, facts = "embedding", [], fit_pooling(spec, folder)
    else:
        kind, sigmoid = _kind(spec, config)
        labels = _labels(spec, config) if kind != "regression" or _count(config) > 1 else []
        facts = {"sigmoid": sigmoid}
    _check_head(folder, BARE if spec.handler == EMBEDDER else HEAD)
    engine, tokenizer = _loaded(spec, folder, facts)
    facts["most_tokens"] = tokenizer.most
    pairs = bool(spec.options.get("pairs"))
    found = named_examples(
        spec, sources, lambda body, headers: texts_of(body, headers, pairs=pairs), "[options] pairs in model.toml"
    )
    rows = _tokens(spec, tokenizer, list(found))
    _check_rows(spec, engine, tokenizer, rows, len(labels) or (1 if kind == "regression" else None))
    spec = spec.model_copy(update={"labels": labels, "output": kind, "options": {**spec.options, "texts": facts}})
    return spec, {"texts": facts}


def _folder(spec: ModelSpec, sources: list[Path]) -> Path:
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise missing_package(package, f"the handler {spec.handler}")
    folder = next((path for source in sources if (path := source / FOLDER).is_dir()), None)
    if folder is None or not (folder / "config.json").is_file():
        raise SlotwiseError(
            f"{spec.name} has no folder {FOLDER}/ with a config.json",
            f'model.save_pretrained("{FOLDER}") and tokenizer.save_pretrained("{FOLDER}") write it',
        )
    if FOLDER not in spec.files:
        raise SlotwiseError(f"{spec.name} does not carry its folder {FOLDER}/", f'write in model.toml: files = ["{FOLDER}"]')
    pickles = sorted(folder.glob("*.bin")) if not any(folder.glob("*.safetensors")) else []
    if pickles:
        raise SlotwiseError(f"{FOLDER}/{pickles[0].name} is a pickle", "save_pretrained writes model.safetensors")
    return folder


def _check_head(folder: Path, head: str) -> None:
    """Raise SlotwiseError where the weights are not of a network with this head."""
    try:
        architecture(folder, head)
    except ValueError as error:
        hint = f'a network of ...{BARE} is for handler = "{EMBEDDER}", one of ...{HEAD} for "{TEXTS}"; any other needs your own'
        raise SlotwiseError(f"{FOLDER}/ cannot serve: {error}", hint) from error


def _count(config: dict[str, Any]) -> int:
    return len(config.get("id2label") or {}) or int(config.get("num_labels") or 2)


def _kind(spec: ModelSpec, config: dict[str, Any]) -> tuple[str, bool]:
    """What its numbers are answered as, and whether a sigmoid makes probabilities of them."""
    by_model_toml = declared_output(spec.model_dump())[1]
    if spec.output and not by_model_toml:
        raise SlotwiseError(f"{spec.name}: output is {spec.output!r}", 'write "logits", "probabilities" or "regression"')
    by_config = KINDS.get(str(config.get("problem_type") or ""), "logits" if _count(config) > 1 else "")
    if not (by_model_toml or by_config):
        raise SlotwiseError(
            f"{spec.name} gives one number a text, and its config.json has no problem_type",
            'write in model.toml: output = "regression" (the number as it is), or two labels and "probabilities" (its sigmoid)',
        )
    kind = by_model_toml or by_config
    if kind == "embedding":
        raise SlotwiseError(f"{spec.name}: a classifier gives no embedding", 'write "logits", "probabilities" or "regression"')
    if by_config and by_model_toml not in ("", by_config, "regression"):
        how = "several labels" if by_config == "probabilities" else "one number" if by_config == "regression" else "one label"
        raise SlotwiseError(
            f"{spec.name}: its config.json says that a text has {how}, and model.toml says {by_model_toml}",
            "write no output in model.toml, or the problem_type that it was trained with in its config.json",
        )
    return kind, kind == "probabilities"


def _labels(spec: ModelSpec, config: dict[str, Any]) -> list[str]:
    """Its labels in the order of its numbers: those of model.toml, or of its config."""
    names = {int(place): str(name) for place, name in (config.get("id2label") or {}).items()}
    own = [names[place] for place in sorted(names)]
    if sorted(names) != list(range(len(names))):
        raise SlotwiseError(f"{FOLDER}/config.json: id2label does not count from 0", "correct it")
    check_order(spec, f"{FOLDER}/config.json", own)
    if spec.labels:
        if len(spec.labels) not in (len(own), *([2] if len(own) == 1 else [])):
            raise SlotwiseError(f"{spec.name} gives {len(own)} scores, but there are {len(spec.labels)} labels", "one each")
        return list(spec.labels)
    if len(own) < 2 or len(set(own)) < len(own):
        raise SlotwiseError(f"{FOLDER}/config.json: its id2label names no labels to tell apart", "write labels in model.toml")
    return own


def _loaded(spec: ModelSpec, folder: Path, facts: Mapping[str, Any]) -> tuple[TextEngine, TextTokenizer]:
    """The encoder, and its tokenizer with the most tokens that it runs. Raises SlotwiseError for what cannot be served."""
    try:
        engine = TextEngine(folder, Settings(threads=1), "fp32", facts)
        most = min(filter(None, [limit(folder, engine.model.config), facts.get("most_tokens")]), default=0)
        if not most:
            raise ValueError("neither its tokenizer nor its config says how long a text may be")
        for length in (most, most - ROBERTA):
            tokenizer = TextTokenizer.load(folder, length, truncate=bool(spec.options.get("truncate")))
            if "attention_mask" not in tokenizer.names:
                raise ValueError("its tokenizer knows no attention mask, so that padding would change answers")
            if _runs(engine, tokenizer):
                return engine, tokenizer
        raise ValueError(f"it does not run on the {most} tokens that it says it takes")
    except Exception as error:
        hint = "save model and tokenizer with save_pretrained"
        raise SlotwiseError(f"{FOLDER}/ cannot serve: {first_line(error)}", hint) from error


def _runs(engine: TextEngine, tokenizer: TextTokenizer) -> bool:
    ids = np.full(tokenizer.most, tokenizer.tokenizer.encode("a").ids[0], np.int64)
    try:
        engine(tokenizer.padded([(ids, np.zeros_like(ids))]))
    except (IndexError, RuntimeError, ValueError):
        return False
    return True


def _tokens(spec: ModelSpec, tokenizer: TextTokenizer, texts: list[Texts]) -> list[Tokens]:
    """The tokens of the examples, or of made-up texts. Raises SlotwiseError for an example that is refused."""
    if texts:
        try:
            return [tokenizer(one) for one in texts]
        except SlotError as error:
            hint = "shorten it, or write truncate = true below [options]"
            raise SlotwiseError(f"an example of {spec.name}: {error.message}", hint) from error
    return _made_up(spec, tokenizer)


def _made_up(spec: ModelSpec, tokenizer: TextTokenizer) -> list[Tokens]:
    rows = [tokenizer.tokenizer.encode(*([one] * (2 if spec.options.get("pairs") else 1))) for one in SAID]
    most = tokenizer.most
    return [(np.array(row.ids[:most], np.int64), np.array(row.type_ids[:most], np.int64)) for row in rows]


def _check_rows(spec: ModelSpec, engine: TextEngine, tokenizer: TextTokenizer, rows: list[Tokens], labels: int | None) -> None:
    """Raise SlotwiseError where a row is refused, padding changes its numbers, or there are not as many as labels."""
    try:
        alone = np.concatenate([engine(tokenizer.padded([row])) for row in rows])
        together = engine(tokenizer.padded(rows))
        moved = max(_moved(engine, tokenizer, row) for row in [*rows, *_made_up(spec, tokenizer)])
    except Exception as error:
        raise SlotwiseError(f"{spec.name} does not run on its examples: {first_line(error)}", "see that line") from error
    if alone.ndim != 2 or (labels and alone.shape[1] not in (labels, *([1] if labels == 2 else []))):
        raise SlotwiseError(f"{spec.name} gives {alone.shape[1:]} numbers a text, but there are {labels} labels", "one each")
    moved = max(moved, _apart(alone, together))
    if moved > FAR or not alike(alone, together):
        raise SlotwiseError(
            f"{spec.name}: padding a text changes its numbers by {moved:.2g}",
            "its tokenizer's padding token is another one than its config's pad_token_id, or its padding_side another one than "
            "the network was trained with?",
        )


def _moved(engine: TextEngine, tokenizer: TextTokenizer, row: Tokens) -> float:
    """How far padding moves a row's numbers: as it is padded when served, from what they are without and with twice as much."""
    length, width = len(row[0]), tokenizer.width(len(row[0]))
    served = engine(tokenizer.padded([row]))
    twice = engine(tokenizer.padded([row], max(width, min(2 * width, tokenizer.most))))
    try:
        bare = engine(tokenizer.padded([row], length))
    except (IndexError, RuntimeError, ValueError):  # it takes some lengths only
        bare = served
    return max(_apart(served, bare), _apart(served, twice))


def _apart(one: Any, other: Any) -> float:
    """How far numbers are apart, those above 1 relative to themselves; infinite where they are not as many, or not finite."""
    if one.shape != other.shape or not np.isfinite([one, other]).all():
        return np.inf
    return float((np.abs(one - other) / (1 + np.abs(one))).max(initial=0.0))
