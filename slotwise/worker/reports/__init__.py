"""What a worker tells of what it does."""
