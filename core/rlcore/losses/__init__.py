"""The policy losses that come with the core."""
