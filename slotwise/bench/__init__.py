"""Load, what is sent, measuring with and without a server, and what is written about it."""
