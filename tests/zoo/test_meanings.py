"""models/meanings: sentences of one meaning are nearer to each other than to any other, as transformers itself has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotwise.archive.build import build
from slotwise.files import project
from tests.worker.serving import Served

pytest.importorskip("transformers")
EXAMPLES = project.model_folder("meanings") / "examples"


def library(folder: Path, texts: list[str]) -> Any:
    """What transformers gives, each text by itself: the mean of its tokens, of length 1."""
    import torch
    import transformers

    model, tokenizer = (kind.from_pretrained(folder) for kind in (transformers.AutoModel, transformers.AutoTokenizer))
    with torch.inference_mode():
        rows = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).numpy() for text in texts]
    return np.stack([row / np.linalg.norm(row) for row in rows])


@pytest.mark.slow
def test_its_examples_are_answered_as_the_library_does_and_near_what_means_the_same(tmp_path: Path) -> None:
    served = Served.of(build("meanings", tmp_path, prove=lambda *_: None), {})
    texts = json.loads((EXAMPLES / "several.json").read_text())
    headers = [{"content-type": "text/plain"}, *[{"content-type": "application/json"}] * 2]
    bodies = [(EXAMPLES / name).read_bytes() for name in ("tea.txt", "coffee.json", "several.json")]
    tea, coffee, several, empty = served.ask([*bodies, b" "], [*headers, headers[0]])
    vectors = np.array([one["embedding"] for one in several.value])
    assert empty.code == 422
    assert np.allclose([tea.value["embedding"], coffee.value["embedding"]], vectors[:2], atol=1e-5)
    assert np.allclose(vectors, library(served.model_dir / "model", texts), atol=1e-5)
    near = vectors @ vectors.T
    assert near[0].argsort()[-2] == 1  # a good tea is nearest to a good coffee
    assert near[2].argsort()[-2] == 3
