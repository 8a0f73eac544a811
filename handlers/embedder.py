"""Embed texts: what transformers' `save_pretrained` or sentence-transformers' `save` wrote in, a vector a text out.

The answer is `{"embedding": [0.12, -0.7, ...]}`. `[options] pooling` and `normalise` in model.toml say how the tokens' vectors
become one, unless the folder's own modules.json does.
"""

from __future__ import annotations

from slotwise.worker.texts.text_handler import TextHandler


class Embedder(TextHandler):
    """Its numbers are a text's embedding."""


handle = Embedder.entry_point()
