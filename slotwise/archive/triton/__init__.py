"""Archives for Triton."""
