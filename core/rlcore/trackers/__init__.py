"""The trackers that come with the core."""
