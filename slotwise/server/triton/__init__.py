"""What only Triton needs."""
