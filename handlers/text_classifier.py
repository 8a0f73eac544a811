"""Classify texts, or pairs of texts: what transformers' `save_pretrained` wrote in, a label and its probabilities out.

A text comes as it is or as JSON. With `[options] pairs = true` in model.toml a record is two of them; with `truncate = true`
what is too long is cut, and not refused. With `Accept: text/plain` the answer is the bare label.
"""

from __future__ import annotations

from slotwise.worker.texts.text_handler import TextHandler


class TextClassifier(TextHandler):
    """Its numbers are its labels' scores, or a value."""


handle = TextClassifier.entry_point()
