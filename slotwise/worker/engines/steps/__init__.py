"""Networks that decode step by step, with a cache for each slot (docs/streams.md)."""
