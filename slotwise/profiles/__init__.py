"""Batch, worker and server settings in files, and what the servers and Kubernetes read of them."""
