"""From what a person names to a live model: obtain, apply, compare declared with live."""
