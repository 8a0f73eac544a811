"""What measures Slotwise, by itself and beside others, and writes the figures into README and docs."""
