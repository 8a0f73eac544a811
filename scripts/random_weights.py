"""Write a large model's folder as save_pretrained would, with random weights: its size, memory and speed without a download.

    .venv/bin/python scripts/random_weights.py m2m100_418M FOLDER
    slotwise build translation --weights FOLDER

Its configuration is the published one. Texts are noise, and end after a few tokens. Weights are in shards of 500 MB.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from slotwise.zoo.transformers_files import ready, save

MODELS = Path(__file__).resolve().parents[1] / "models"
SHARD = "500MB"
ENDING = 30  # the end's row of the output layer is so much larger than others: about every second token ends the text
LARGE_EYES = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
GIT = {  # GitVisionConfig; the text decoder is the same in all
    "git-base": {"image_size": 224, "patch_size": 16},
    "git-base-vqav2": {"image_size": 480, "patch_size": 16},
    "git-large": {"image_size": 224, "patch_size": 14, **LARGE_EYES},
    "git-large-vqav2": {"image_size": 420, "patch_size": 14, **LARGE_EYES},
}
M2M100_PIECES = 128_004  # of vocab.json, before the languages
BERT_WORDS = 30_522
BERT_SPECIAL = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}


def main() -> int:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=["m2m100_418M", *GIT])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    ready()
    import torch

    torch.manual_seed(0)
    options.folder.mkdir(parents=True)
    network = git(options.size, options.folder) if options.size in GIT else m2m100(options.folder)
    with torch.no_grad():
        network.get_output_embeddings().weight[network.config.eos_token_id] *= ENDING
    save(network.eval(), options.folder, max_shard_size=SHARD)
    print(f"{options.size}: {sum(each.numel() for each in network.parameters()) / 1e6:.0f} million parameters")
    return 0


def git(size: str, folder: Path) -> Any:
    """GIT of one of its sizes; pictures are prepared as CLIP's are."""
    import transformers

    words = {BERT_SPECIAL.get(i, f"word{i}"): i for i in range(BERT_WORDS)}
    transformers.BertTokenizer(vocab=words).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    side = GIT[size]["image_size"]
    sides = {"height": side, "width": side}
    transformers.CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size=sides).save_pretrained(folder)
    vision = transformers.GitVisionConfig(**GIT[size]).to_dict()
    return transformers.GitForCausalLM(transformers.GitConfig(vision_config=vision))


def m2m100(folder: Path) -> Any:
    """M2M100 418M, which transformers' defaults describe; the pieces of the demonstration model, and fillers."""
    import transformers

    sys.path.insert(0, str(MODELS / "translation"))
    languages = list(importlib.import_module("tiny")._tokenizer(folder).lang_code_to_token.values())
    pieces = json.loads((folder / "vocab.json").read_text("utf-8"))
    pieces |= {f"piece{i}": i for i in range(len(pieces), M2M100_PIECES)}
    (folder / "vocab.json").write_text(json.dumps(pieces, ensure_ascii=False), "utf-8")
    files = (str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"))
    transformers.M2M100Tokenizer(*files, additional_special_tokens=languages).save_pretrained(folder)
    return transformers.M2M100ForConditionalGeneration(transformers.M2M100Config())


if __name__ == "__main__":
    sys.exit(main())
