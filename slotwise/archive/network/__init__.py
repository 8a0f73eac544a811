"""What an archive's network can do: its graph, its outputs, its forms, int8."""
