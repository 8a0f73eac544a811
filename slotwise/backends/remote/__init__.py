"""A server behind: its connections, the race of copies, hedges, and requests that go alone."""
