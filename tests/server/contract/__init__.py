"""Tests that every server must pass: a test module that imports them runs them on its own `live` server."""
