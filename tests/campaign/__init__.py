"""The campaign (`python -m tests.campaign`): each part tries to break one thing, case after case, and counts what happened."""
