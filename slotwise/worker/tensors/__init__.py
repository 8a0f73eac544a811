"""Several named tensors in, several named tensors out: bodies to arrays, and the engine that runs their graph."""
