"""Contract tests and tiny models for the authors of plugins."""
