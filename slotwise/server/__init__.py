"""A real server started, watched and stopped; what differs between servers."""
