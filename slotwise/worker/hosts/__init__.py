"""What only a server's worker needs: its rows, its context, its message code, its metrics."""
