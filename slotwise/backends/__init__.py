"""What answers a request; it knows nothing of the front end."""
