"""The one error root outside the worker.

SlotwiseError        what went wrong in one sentence, and a hint what to do; the command line prints both and exits with 1
"""

from __future__ import annotations


class SlotwiseError(Exception):
    """A failure that the person at the keyboard can do something about: `message` says what, `hint` what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
