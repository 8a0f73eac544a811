"""Decode what requests carry: pictures, drawn signs, text, records."""
