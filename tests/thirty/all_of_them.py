"""The thirty, in their order."""

from __future__ import annotations

from tests.thirty.tables import TABLES
from tests.thirty.tensors import TENSORS
from tests.thirty.texts import TEXTS

THIRTY = [*TABLES.all, *TEXTS.all, *TENSORS.all]
