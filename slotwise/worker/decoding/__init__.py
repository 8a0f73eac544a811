"""Which requests of a batch are decoded, in which order, and by which threads."""
