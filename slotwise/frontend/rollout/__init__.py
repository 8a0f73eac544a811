"""A new archive beside the old: its share of the requests, what is seen of both, and a server that takes over."""
