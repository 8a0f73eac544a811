"""Write a model of words that builds and serves as it is: it goes on with a sentence, piece by piece."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

STREAMING_TOML = """\
# Build:  slotwise build {path}
# Serve:  slotwise serve {path} --server slotwise
# Try:    slotwise predict {name} {path}/once.txt --stream
name = "{name}"
version = "1.0"
handler = "handler.py"           # a .py file of this folder
description = "Goes on with a sentence, word by word"
files = ["next_word.json"]       # what `load` reads: a network's weights, a vocabulary, a table
examples = ["once.txt", "every.txt", "nobody.txt"]  # bodies that the model answers; `slotwise check` replays them

# [profiles.cpu]                 # values for this model instead of the profile's
# batch_size = 16                # how many streams take turns
"""
HANDLER_PY = '''\
"""Go on with a sentence, word by word: each word is sent as soon as it is there. Who asks for no stream gets all at once."""

import json
import time

from slotwise.worker import StreamHandler, Unprocessable, decode_text


class Words(StreamHandler):
    def load(self, model_dir, settings):  # once, when a worker starts: your network and its weights
        return json.loads((model_dir / "next_word.json").read_text("utf-8"))  # of each word the one that follows

    def decode(self, body, headers):  # a request's body, as a list of what `stream` takes: here one word
        word = decode_text(body, headers).split()[-1].lower()
        if word not in self.engine:  # the engine is what `load` returned
            raise Unprocessable(f"no sentence is known that begins with {word!r}")  # this request's own error
        return [word]

    def example(self):  # one valid item, for the warm-up
        return "once"

    def stream(self, word):  # what is yielded is sent; other requests' streams take their turns between two words
        while word in self.engine:
            time.sleep(0.05)  # a real model computes here
            word = self.engine[word]
            yield f" {word}"


handle = Words.entry_point()
'''
SENTENCES = ("once upon a time there lived some slots", "every request keeps its slot", "nobody waits for the slowest reader")


def write_stream(folder: Path) -> None:
    """A handler of thirty lines and its table of words."""
    sentences = [sentence.split() for sentence in SENTENCES]
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text(STREAMING_TOML.format(name=folder.name, path=folder), "utf-8")
    (folder / "handler.py").write_text(HANDLER_PY, "utf-8")
    follows = {word: after for words in sentences for word, after in pairwise(words)}
    (folder / "next_word.json").write_text(json.dumps(follows, indent=2) + "\n", "utf-8")
    for first, *_ in sentences:
        (folder / f"{first}.txt").write_text(first, "utf-8")
