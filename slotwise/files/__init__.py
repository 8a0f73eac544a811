"""Where things are, and how files are written."""
