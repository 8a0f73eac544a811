"""Slotwise: every request keeps its slot."""

__version__ = "0.3.0"
