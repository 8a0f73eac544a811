"""Streams: answers piece by piece, which requests join and leave between two steps (docs/streams.md)."""
