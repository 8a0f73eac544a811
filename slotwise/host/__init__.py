"""The host that Slotwise itself is: front, queues and management in one process, the archives' workers behind it."""
