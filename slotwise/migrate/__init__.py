"""Deployments of other servers, read and written anew for this one."""
