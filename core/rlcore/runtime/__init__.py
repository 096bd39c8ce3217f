"""Where the workers of a run live."""
