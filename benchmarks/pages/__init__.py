"""The tables and numbers of README and docs, written from docs/figures/*.json."""
