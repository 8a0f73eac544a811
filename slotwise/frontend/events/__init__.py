"""Answers that clients get piece by piece, as server-sent events."""
