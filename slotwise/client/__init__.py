"""The management and inference APIs of a running server."""
