"""Whether a network keeps the rows of a batch apart: proven to the bit, and asked again while serving."""
