"""Batches for an archive's own worker on this machine."""
