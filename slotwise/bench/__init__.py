"""Measure a model: load on a server, the bodies to send, the handler without a server, and reports."""
