"""The hostile-neighbour benchmark: what becomes of innocent requests at each server while a neighbour misbehaves."""
