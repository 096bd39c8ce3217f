"""Prompts, samples and the ragged batch."""
