"""What serves a handler whose answers come piece by piece: its base class, its requests, and the frames they come in."""
