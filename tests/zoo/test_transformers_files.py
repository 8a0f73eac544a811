"""`--weights FOLDER` for captions and translation: every layout that the hub's repositories have."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from slotwise.errors import SlotwiseError
from slotwise.zoo.transformers_files import ready, save_local
from tests.zoo.hub import ID, hub

MODELS = Path(__file__).parents[2] / "models"
CLASSES = {
    "captions": ("GitForCausalLM", "BertTokenizer", "CLIPImageProcessorPil"),
    "translation": ("M2M100ForConditionalGeneration", "M2M100Tokenizer"),
}
SHARD = "100KB"


def tiny(model: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """models/MODEL/tiny.py, which finds its neighbours."""
    monkeypatch.syspath_prepend(MODELS / model)
    for name in ("tiny", "drawing", "corpus"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("tiny", MODELS / model / "tiny.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["captions", "translation"])
def model(request: pytest.FixtureRequest) -> str:
    """The model's name."""
    name: str = request.param
    return name


@pytest.fixture
def folder(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What save_pretrained writes of a random network of that kind, one shard."""
    ready()
    made, source = tiny(model, monkeypatch), tmp_path / "source"
    source.mkdir()
    if model == "translation":
        tokenizer = made._tokenizer(source)
        network: Any = transformers.M2M100ForConditionalGeneration(made._config(len(tokenizer) + tokenizer.num_madeup_words))
    else:
        network = transformers.GitForCausalLM(made._config())
        transformers.BertTokenizer(vocab={word: i for i, word in enumerate(made.WORDS)}).save_pretrained(source)
        sides = {"height": made.SIDE, "width": made.SIDE}
        transformers.CLIPImageProcessorPil(size={"shortest_edge": made.SIDE}, crop_size=sides).save_pretrained(source)
    network.save_pretrained(source)
    return source


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder, from however many files."""
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def taken(model: str, folder: Path, out: Path) -> dict[str, torch.Tensor]:
    """What a build takes over."""
    out.mkdir()
    save_local(str(folder), out, *CLASSES[model])
    return tensors(out)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_weights_in_shards(model: str, folder: Path, tmp_path: Path) -> None:
    whole = tensors(folder)
    loaded = getattr(transformers, CLASSES[model][0]).from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    loaded.save_pretrained(folder, max_shard_size=SHARD)
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    assert (folder / "model.safetensors.index.json").is_file()
    assert same(taken(model, folder, tmp_path / "out"), whole)


def test_a_shard_that_is_missing_is_one_line(model: str, folder: Path, tmp_path: Path) -> None:
    loaded = getattr(transformers, CLASSES[model][0]).from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    loaded.save_pretrained(folder, max_shard_size=SHARD)
    sorted(folder.glob("model-*-of-*.safetensors"))[1].unlink()
    with pytest.raises(SlotwiseError, match="cannot be loaded") as error:
        taken(model, folder, tmp_path / "out")
    assert "\n" not in error.value.message


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin"])
def test_a_pickle_is_refused(model: str, folder: Path, tmp_path: Path, name: str) -> None:
    torch.save(tensors(folder), folder / name)
    assert taken(model, folder, tmp_path / "beside")  # beside safetensors it is not read
    (folder / "model.safetensors").unlink()
    with pytest.raises(SlotwiseError, match=f"{name}, which is a pickle") as error:
        taken(model, folder, tmp_path / "out")
    assert "save_pretrained" in error.value.hint


def test_a_tokenizer_in_both_forms(model: str, folder: Path, tmp_path: Path) -> None:
    """As repositories have them: sentencepiece or vocab.txt, and tokenizer.json beside it."""
    loaded = getattr(transformers, CLASSES[model][1]).from_pretrained(folder)
    text = "a red circle" if model == "captions" else "Guten Morgen."
    expected = loaded(text).input_ids
    if model == "captions":
        words = sorted(loaded.get_vocab().items(), key=lambda word: word[1])
        (folder / "vocab.txt").write_text("\n".join(word for word, _ in words) + "\n", "utf-8")
        assert (folder / "tokenizer.json").is_file()
    else:
        assert (folder / "sentencepiece.bpe.model").is_file()
        shutil.copy(_word_tokenizer(tmp_path), folder / "tokenizer.json")
    taken(model, folder, tmp_path / "out")
    again = getattr(transformers, CLASSES[model][1]).from_pretrained(tmp_path / "out", local_files_only=True)
    assert again(text).input_ids == expected


TAKE = """
import sys
from pathlib import Path
from slotwise.zoo.transformers_files import ready, save_local
ready()
save_local(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
"""


def test_weights_by_id(model: str, folder: Path, tmp_path: Path) -> None:
    """In a process of its own, for transformers reads the hub's address once. M2M100's repository has its pickle only."""
    form = {"captions": "shards", "translation": "pytorch_model.bin"}[model]
    whole, loaded = tensors(folder), getattr(transformers, CLASSES[model][0]).from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    if form == "shards":
        loaded.save_pretrained(folder, max_shard_size=SHARD)
    else:
        torch.save(loaded.state_dict(), folder / form)
    out = tmp_path / "out"
    out.mkdir()
    with hub(folder) as (endpoint, fetched):
        environ = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
        environ |= {"HF_HUB_ETAG_TIMEOUT": "120", "HF_HUB_DOWNLOAD_TIMEOUT": "120"}
        command = [sys.executable, "-c", TAKE, ID, str(out), *CLASSES[model]]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert same(tensors(out), whole)
    assert any(("-00002-of-" if form == "shards" else form) in path for path in fetched)


def _word_tokenizer(folder: Path) -> Path:
    """A tokenizer.json that knows other tokens."""
    import tokenizers

    known = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "Guten": 1}, unk_token="<unk>"))
    known.save(str(folder / "other.json"))
    return folder / "other.json"
