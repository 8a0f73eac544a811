"""Texts for encoders: bodies to one text or a pair, their tokens, and the engine that classifies them."""
