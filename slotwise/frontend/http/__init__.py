"""HTTP/1.1: connections, heads, bodies, and the app behind them."""
