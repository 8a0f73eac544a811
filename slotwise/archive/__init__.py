"""From a model to one .mar, and back: built, verified, unpacked, fetched."""
