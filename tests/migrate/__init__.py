"""Deployments of other servers that become ours."""
