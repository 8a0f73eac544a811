"""What is seen of requests, where an operator wants to see it: logs, memory, traces."""
