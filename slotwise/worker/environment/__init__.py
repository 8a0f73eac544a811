"""What a worker's process is given: its cores, its settings, and files that are what was built."""
