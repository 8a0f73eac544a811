"""What only Ray needs."""
