"""Profiles: batch, worker and server settings in files, and the config files that servers and Kubernetes read."""
