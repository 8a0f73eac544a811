"""The parts of `scripts/campaign.py`: each tries to break one thing, case after case, and counts what happened."""
