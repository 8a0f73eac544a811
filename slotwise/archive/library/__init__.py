"""What the library that made a model answers itself: written down, so that the build can compare."""
