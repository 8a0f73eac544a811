"""Archives of other tools, and the guard around them."""
