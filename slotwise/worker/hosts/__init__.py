"""What only a server needs: its rows, its context, its codec, its metrics."""
