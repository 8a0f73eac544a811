"""Handlers in a form that authors know from elsewhere."""
