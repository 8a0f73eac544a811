"""Several models in one process: what one of them finds is asked of the next, and comes back to its own request."""
